// SPDX-License-Identifier: GPL-2.0
/*
 * Does a wake-up get lost, or a token, when real threads submit, pick and complete at once?
 *
 * Threads work on all queues for a round; then one of them alone completes what is out and picks
 * where a kernel would. If a request is left staged then, nobody would ever have dispatched it.
 */
#include "scheduler.h"
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, HCTXS = 6, FLOWS = 5, STEPS = 300, OUT_MAX = 4096 };

static struct mqfq s;
static struct mqfq_flow flows[FLOWS];
static pthread_mutex_t queue_locks[HCTXS], device_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { u32 hctx, units; } out[OUT_MAX];
static u32 out_count, rounds;
static u32 depth = 7;
static pthread_barrier_t barrier;
static unsigned long dispatched;

static void on_kick(struct mqfq *scheduler, u32 hctx)
{
	/* Whoever looks next at has_work() runs it. */
	(void)scheduler;
	(void)hctx;
}

static u64 random_of(u64 *state)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return *state >> 33;
}

static bool has_work(u32 hctx)
{
	struct mqfq_queue *queue = &s.queues[hctx];

	return READ_ONCE(queue->stage.staged) && !READ_ONCE(queue->waiting);
}

static void put_out(u32 hctx, u32 units)
{
	pthread_mutex_lock(&device_lock);
	out[out_count].hctx = hctx;
	out[out_count++].units = units;
	dispatched++;
	pthread_mutex_unlock(&device_lock);
}

/* With @at_once it goes at once if it may, as in a kernel. */
static void submit(u32 hctx, u32 flow, u64 cost, bool at_once)
{
	struct mqfq_item *item = malloc(sizeof(*item));
	struct mqfq_lane *lane = flows[flow].lanes[hctx];
	u32 units = 0;

	item->cost = cost;
	pthread_mutex_lock(&queue_locks[hctx]);
	if (at_once)
		units = mqfq_enter(&s, &s.queues[hctx], lane, &item->node);
	else
		mqfq_submit(&s, &s.queues[hctx], lane, &item->node);
	pthread_mutex_unlock(&queue_locks[hctx]);
	if (units) {
		free(item);
		put_out(hctx, units);
	}
}

static bool pick(u32 hctx)
{
	struct list_head *node;
	struct mqfq_lane *lane;
	enum mqfq_state state;
	u32 units;

	pthread_mutex_lock(&queue_locks[hctx]);
	state = mqfq_pick(&s, &s.queues[hctx], &node, &lane, &units);
	if (state == MQFQ_DISPATCH)
		mqfq_settle(&s, &s.queues[hctx]);
	pthread_mutex_unlock(&queue_locks[hctx]);
	if (state != MQFQ_DISPATCH)
		return false;
	free(list_entry(node, struct mqfq_item, node));
	put_out(hctx, units);
	return true;
}

static bool complete(u64 random)
{
	u32 hctx, units;

	pthread_mutex_lock(&device_lock);
	if (!out_count) {
		pthread_mutex_unlock(&device_lock);
		return false;
	}
	random %= out_count;
	hctx = out[random].hctx;
	units = out[random].units;
	out[random] = out[--out_count];
	pthread_mutex_unlock(&device_lock);
	mqfq_complete(&s, hctx, units);
	return true;
}

static void drain(u32 round)
{
	bool moved = true;
	u32 hctx;

	while (moved) {
		moved = false;
		for (hctx = 0; hctx < HCTXS; hctx++)
			while (has_work(hctx) && pick(hctx))
				moved = true;
		while (complete(0))
			moved = true;
	}
	for (hctx = 0; hctx < HCTXS; hctx++) {
		if (s.queues[hctx].stage.staged) {
			printf("round %u: queue %u holds %u requests that nobody will pick\n", round,
			       hctx, s.queues[hctx].stage.staged);
			exit(1);
		}
	}
	if (mqfq_tokens_free(&s.tokens) != depth) {
		printf("round %u: %lld of %u tokens are free\n", round,
		       (long long)mqfq_tokens_free(&s.tokens), depth);
		exit(1);
	}
}

static void *work(void *argument)
{
	u64 own = (u64)(size_t)argument, state = own * 977 + 1;
	u32 round, step;

	for (round = 0; round < rounds; round++) {
		for (step = 0; step < STEPS; step++) {
			u32 hctx = random_of(&state) % HCTXS, what = random_of(&state) % 10;

			if (what < 3)
				submit(hctx, random_of(&state) % FLOWS,
				       512 * (1 + random_of(&state) % 64), random_of(&state) % 4);
			else if (what < 6)
				complete(random_of(&state));
			else if (has_work(hctx))
				pick(hctx);
		}
		pthread_barrier_wait(&barrier);
		if (!own) {
			drain(round);
			if (round % 8 == 7) {
				depth = 1 + random_of(&state) % 20;
				mqfq_set_depth(&s, depth);
				mqfq_set_window(&s, MQFQ_WINDOW_LEAST << random_of(&state) % 5);
			}
		}
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	static const u16 socket_of[HCTXS] = { 0, 0, 0, 1, 1, 1 };
	pthread_t threads[THREADS];
	u32 at, hctx;

	rounds = count > 1 ? atoi(arguments[1]) : 50;
	if (mqfq_init(&s, HCTXS, socket_of, depth, MQFQ_WINDOW_LEAST))
		return 2;
	s.kick = on_kick;
	for (hctx = 0; hctx < HCTXS; hctx++)
		pthread_mutex_init(&queue_locks[hctx], NULL);
	for (at = 0; at < FLOWS; at++) {
		mqfq_flow_init(&flows[at], 100 * (at + 1), 0);
		if (mqfq_lanes_alloc(&flows[at], HCTXS, GFP_KERNEL))
			return 2;
	}
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (at = 0; at < THREADS; at++)
		pthread_create(&threads[at], NULL, work, (void *)(size_t)at);
	for (at = 0; at < THREADS; at++)
		pthread_join(threads[at], NULL);
	printf("%lu requests dispatched in %u rounds\n", dispatched, rounds);
	return 0;
}
