// SPDX-License-Identifier: GPL-2.0
/*
 * Does a slot change hands while a request is on its account, or has a process two, when real
 * threads look up, claim, charge and complete at once?
 *
 * There are more processes than slots. A second account says whose requests each slot has.
 */
#include "process.h"
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, HCTXS = 3, PROCESSES = 80, STEPS = 2000, HELD_MAX = 40 };

static struct mqfq_processes processes;
static struct mqfq_flow flows[MQFQ_PROCESSES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of each slot: the process in the high half, its requests in the low one. */
static atomic64_t shadow[MQFQ_PROCESSES];
static atomic64_t charged, found_none;
static u32 rounds;

static u64 random_of(u64 *state)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return *state >> 33;
}

static void stop(const char *why, u32 slot, u32 number)
{
	printf("slot %u, process %u: %s\n", slot, number, why);
	exit(1);
}

static void enter(u32 slot, u32 number)
{
	s64 before = atomic64_read(&shadow[slot]), after;

	do {
		if ((u32)before && (u64)before >> 32 != number)
			stop("it has requests of another", slot, number);
		after = (s64)((u64)number << 32 | ((u32)before + 1));
	} while (!atomic64_try_cmpxchg(&shadow[slot], &before, after));
}

static void *work(void *argument)
{
	u64 state = (u64)(size_t)argument * 977 + 1;
	struct { u32 slot, hctx; } held[HELD_MAX];
	u32 step, count = 0;

	for (step = 0; step < STEPS * rounds; step++) {
		u32 number = 1 + random_of(&state) % PROCESSES, hctx = random_of(&state) % HCTXS;
		struct mqfq_flow *flow;
		u64 key;

		if (count == HELD_MAX || (count && random_of(&state) % 5 < 2)) {
			u32 at = random_of(&state) % count;
			struct mqfq_flow *was = &flows[held[at].slot];

			/* The second account first: the slot is another's at once after its own. */
			atomic64_add(-1, &shadow[held[at].slot]);
			atomic64_dec_return(&was->lanes[held[at].hctx]->requests_out);
			held[at] = held[--count];
			continue;
		}
		key = mqfq_process_find(&processes, number);
		if (!key) {
			pthread_mutex_lock(&lock);
			key = mqfq_process_claim(&processes, number, step);
			pthread_mutex_unlock(&lock);
		}
		flow = key ? mqfq_process_flow(&processes, key) : NULL;
		if (!flow) {
			atomic64_add(1, &found_none);
			continue;
		}
		/* As hold_tag_of_process(). */
		atomic64_fetch_inc(&flow->lanes[hctx]->requests_out);
		if (mqfq_process_flow(&processes, key) != flow) {
			atomic64_dec_return(&flow->lanes[hctx]->requests_out);
			continue;
		}
		enter(flow - flows, number);
		if (mqfq_process_flow(&processes, key) != flow) {
			/* A claim that looks at the slot has taken its key away, and gives it back. */
			pthread_mutex_lock(&lock);
			if (mqfq_process_flow(&processes, key) != flow)
				stop("it is another's while it has a request", flow - flows, number);
			pthread_mutex_unlock(&lock);
		}
		atomic64_add(1, &charged);
		held[count].slot = flow - flows;
		held[count++].hctx = hctx;
	}
	while (count--) {
		atomic64_add(-1, &shadow[held[count].slot]);
		atomic64_dec_return(&flows[held[count].slot].lanes[held[count].hctx]->requests_out);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t threads[THREADS];
	u32 at, other;

	rounds = count > 1 ? atoi(arguments[1]) : 50;
	processes.flows = flows;
	processes.hctxs = HCTXS;
	for (at = 0; at < MQFQ_PROCESSES; at++)
		if (mqfq_lanes_alloc(&flows[at], HCTXS, GFP_KERNEL))
			return 2;
	for (at = 0; at < THREADS; at++)
		pthread_create(&threads[at], NULL, work, (void *)(size_t)at);
	for (at = 0; at < THREADS; at++)
		pthread_join(threads[at], NULL);
	for (at = 0; at < MQFQ_PROCESSES; at++) {
		u32 number = atomic64_read(&processes.key[at]);

		for (other = at + 1; number && other < MQFQ_PROCESSES; other++)
			if ((u32)atomic64_read(&processes.key[other]) == number)
				stop("it has two", other, number);
		for (other = 0; other < HCTXS; other++)
			if (atomic64_read(&flows[at].lanes[other]->requests_out))
				stop("a request is left", at, number);
	}
	printf("%lld requests charged, %lld found no slot, %u slots were given\n",
	       (long long)atomic64_read(&charged), (long long)atomic64_read(&found_none),
	       processes.generation);
	return !atomic64_read(&charged) || !atomic64_read(&found_none);
}
