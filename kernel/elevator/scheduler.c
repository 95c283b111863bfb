// SPDX-License-Identifier: GPL-2.0
/* Multi-queue fair queueing: see scheduler.h. Loom: sched/src/policy/mqfq/loom_tests.rs. */
#include "scheduler.h"

/* Lease and quantum that go with T: T/2 over the queues, at least T/16. */
static void set_terms(struct mqfq *s, u64 window)
{
	u64 lease = div64_u64(window, 2 * min_t(u32, s->hctxs, 8));

	WRITE_ONCE(s->lease, lease & ~(MQFQ_GRAIN - 1));
	WRITE_ONCE(s->quantum_mask, ~((1ULL << ilog2(lease)) - 1));
}

/* @socket_of: of each of @hctxs queues, numbers from 0 on; @window: in units of virtual time. */
int mqfq_init(struct mqfq *s, u32 hctxs, const u16 *socket_of, u32 depth, u64 window)
{
	u32 hctx;
	int error = -ENOMEM;

	if (hctxs < 1 || hctxs > MQFQ_HCTXS_MAX)
		return -E2BIG;
	s->hctxs = hctxs;
	s->socket_of = kvcalloc(hctxs, sizeof(u16), GFP_KERNEL);
	s->queues = kvcalloc(hctxs, sizeof(struct mqfq_queue), GFP_KERNEL);
	if (!s->socket_of || !s->queues)
		goto fail;
	for (hctx = 0; hctx < hctxs; hctx++) {
		s->socket_of[hctx] = socket_of[hctx];
		s->queues[hctx].hctx = hctx;
	}
	set_terms(s, window);
	error = mqfq_mindicator_init(&s->mind, hctxs, s->socket_of, 0);
	if (!error)
		error = mqfq_tokens_init(&s->tokens, hctxs, s->socket_of, depth);
	if (!error)
		error = mqfq_ready_init(&s->ready, hctxs, s->socket_of);
	if (!error)
		error = mqfq_wheel_init(&s->wheel, hctxs, window, 0);
	if (!error)
		return 0;
fail:
	mqfq_exit(s);
	return error;
}

/* Also of a scheduler that was not initialised to its end, if its memory was zero. */
void mqfq_exit(struct mqfq *s)
{
	mqfq_wheel_exit(&s->wheel);
	mqfq_ready_exit(&s->ready);
	mqfq_tokens_exit(&s->tokens);
	mqfq_mindicator_exit(&s->mind);
	kvfree(s->queues);
	kvfree(s->socket_of);
	s->queues = NULL;
	s->socket_of = NULL;
}

static void kick(struct mqfq *s, u32 hctx)
{
	WRITE_ONCE(s->queues[hctx].waiting, 0);
	s->kick(s, hctx);
}

/*
 * Kicks ready queues, nearest first, one for each free token. True if @from was among them: it is
 * not kicked if @self, its pick goes on instead.
 */
static bool wake_ready(struct mqfq *s, u32 from, bool self)
{
	s64 tokens = mqfq_tokens_free(&s->tokens);
	bool own = false;

	while (tokens > 0) {
		s32 hctx = mqfq_ready_take_nearest(&s->ready, from);

		if (hctx < 0)
			break;
		if (self && (u32)hctx == from) {
			WRITE_ONCE(s->queues[hctx].waiting, 0);
			own = true;
			continue;
		}
		kick(s, hctx);
		/* One that is empty by now takes none; see rest_empty(). */
		if (READ_ONCE(s->queues[hctx].stage.staged))
			tokens--;
	}
	return own;
}

/* Before a queue stops picking: it may have been kicked for a token. True: it is ready itself. */
static bool rest(struct mqfq *s, u32 hctx)
{
	return mqfq_ready_any(&s->ready) && wake_ready(s, hctx, true);
}

/*
 * The queue is empty, and a kick that comes now leads to no pick. Who kicks puts a token down,
 * fences, and reads `staged`; we have written `staged`, fence, and look for the token.
 */
static bool rest_empty(struct mqfq *s, u32 hctx)
{
	smp_mb(); /* pairs with the fences of mqfq_tokens_release() and mqfq_tokens_pass() */
	return rest(s, hctx);
}

struct turn {
	struct mqfq *s;
	bool has_marked;
};

static void mark_unthrottled(void *context, u32 hctx)
{
	struct turn *turn = context;

	mqfq_ready_mark(&turn->s->ready, hctx);
	turn->has_marked = true;
}

/* True if the leaf shows less than it should: it was too far ahead, or the quantum was another. */
static bool is_far(struct mqfq *s, struct mqfq_queue *queue, u64 lead)
{
	return vtime_before(queue->shown, mqfq_quantised(s, lead));
}

/* Shows the lead of a queue, or that it has none. True if the leaf has changed. */
static bool publish(struct mqfq *s, struct mqfq_queue *queue)
{
	u64 now, shown;

	if (!queue->stage.first) {
		if (!queue->is_shown)
			return false;
		queue->is_shown = false;
		mqfq_mindicator_depart(&s->mind, queue->hctx);
		return true;
	}
	now = mqfq_gvt(&s->mind);
	shown = vtime_earlier(vtime_later(queue->stage.first->start, now), now + MQFQ_HORIZON);
	shown = mqfq_quantised(s, shown);
	if (queue->is_shown && queue->shown == shown)
		return false;
	queue->shown = shown;
	queue->is_shown = true;
	mqfq_mindicator_publish(&s->mind, queue->hctx, shown);
	return true;
}

/* Tells everybody about the lead of a queue (P1): moves virtual time, wakes whom that lets go. */
static void announce(struct mqfq *s, struct mqfq_queue *queue)
{
	while (publish(s, queue)) {
		u64 now = mqfq_mindicator_query(&s->mind);
		struct turn turn = { s, false };

		mqfq_wheel_turn(&s->wheel, now, mark_unthrottled, &turn);
		if (turn.has_marked)
			wake_ready(s, queue->hctx, true);
		/* Again only if the lead is farther than a leaf can show, and was the smallest. */
		if (!queue->stage.first || !is_far(s, queue, queue->stage.first->start) ||
		    vtime_before(now, queue->shown))
			return;
	}
}

/* A queue that picks needs no mark and no place. */
static void unlist(struct mqfq *s, struct mqfq_queue *queue)
{
	queue->is_listed = false;
	WRITE_ONCE(queue->waiting, 0);
	mqfq_ready_unmark(&s->ready, queue->hctx);
	if (queue->has_place) {
		queue->has_place = false;
		/* If a turner has it, its mark may come yet: the next pick looks once more. */
		queue->is_listed = !mqfq_wheel_withdraw(&s->wheel, queue->hctx, queue->slot);
	}
}

/* Puts a queue to wait until its lead is due. False if it must pick again. */
static bool throttle(struct mqfq *s, struct mqfq_queue *queue, u64 lead)
{
	u64 wanted = lead;

	if (is_far(s, queue, lead)) {
		announce(s, queue);
		/* By what the leaf shows: virtual time comes there, not by itself to the lead. */
		if (is_far(s, queue, lead))
			wanted = queue->shown;
	}
	queue->is_listed = true;
	WRITE_ONCE(queue->waiting, 1);
	queue->has_place = mqfq_wheel_throttle(&s->wheel, queue->hctx, wanted, &s->mind,
					       &queue->slot);
	/* A quantum that was set meanwhile: what the leaf shows is to be rounded by that one. */
	if (queue->has_place && !(wanted == lead && is_far(s, queue, lead)) &&
	    !rest(s, queue->hctx)) {
		queue->is_pinned = atomic64_read(&s->tokens.root.value) <= 0;
		return true;
	}
	WRITE_ONCE(queue->waiting, 0);
	return false;
}

/* Tokens that a queue takes beside those it needs: for what it has staged, up to its part of D. */
static u32 spare_for(struct mqfq *s, struct mqfq_queue *queue)
{
	u32 batch = clamp_t(u32, READ_ONCE(s->tokens.depth) / (4 * s->hctxs), 1, 32);

	return min_t(u32, batch, queue->stage.staged) - 1;
}

static struct list_head *head_of(struct mqfq_lane *lane)
{
	return lane->requests.next;
}

/*
 * What becomes of the first request now? With @take, MQFQ_DISPATCH holds *@units tokens.
 * Without, it is a look: if there was no way to dispatch, the queue waits.
 */
static enum mqfq_state admit(struct mqfq *s, struct mqfq_queue *queue, bool take, u32 *units)
{
	struct mqfq_lane *lane;

	for (;;) {
		if (queue->is_listed)
			unlist(s, queue);
		lane = queue->stage.first;
		if (!lane) {
			if (rest_empty(s, queue->hctx))
				continue;
			return MQFQ_IDLE;
		}
		if (!mqfq_wheel_is_due(&s->wheel, lane->start, mqfq_gvt(&s->mind))) {
			if (throttle(s, queue, lane->start))
				return MQFQ_THROTTLED;
			continue;
		}
		*units = mqfq_units_for(mqfq_item_cost(head_of(lane)));
		if (take ? mqfq_tokens_acquire(&s->tokens, queue->hctx, *units,
					       spare_for(s, queue), false) :
			   mqfq_tokens_near(&s->tokens, queue->hctx))
			return MQFQ_DISPATCH;
		WRITE_ONCE(queue->waiting, 1);
		/* Ends with the fence that makes the second look see what a releaser put down. */
		mqfq_ready_mark(&s->ready, queue->hctx);
		if (take ? mqfq_tokens_acquire(&s->tokens, queue->hctx, *units, 0, true) :
			   mqfq_tokens_free(&s->tokens) > 0) {
			mqfq_ready_unmark(&s->ready, queue->hctx);
			WRITE_ONCE(queue->waiting, 0);
			return MQFQ_DISPATCH;
		}
		queue->is_listed = true;
		return MQFQ_NO_TOKEN;
	}
}

static void set_head(struct mqfq_lane *lane, u64 cost, struct mqfq_interval interval)
{
	lane->cost = cost;
	lane->start = interval.start;
	lane->span = interval.span;
}

/* Stages a request, after which its queue is to be picked from. Under the queue's lock. */
void mqfq_submit(struct mqfq *s, struct mqfq_queue *queue, struct mqfq_lane *lane,
		 struct list_head *item)
{
	bool is_alone = list_empty(&lane->requests);
	u64 cost;

	list_add_tail(item, &lane->requests);
	/* Others read it to see whether there is work. */
	WRITE_ONCE(queue->stage.staged, queue->stage.staged + 1);
	if (!is_alone)
		return;
	cost = mqfq_item_cost(item);
	set_head(lane, cost, mqfq_charge_first(lane->flow, cost, mqfq_gvt(&s->mind), &lane->lease));
	if (mqfq_stage_add(&queue->stage, lane)) {
		announce(s, queue);
		WRITE_ONCE(queue->waiting, 0);
	}
}

/* Virtual time has moved to @now, by a lead of @queue that is gone again. */
void mqfq_passed(struct mqfq *s, struct mqfq_queue *queue, u64 now)
{
	struct turn turn = { s, false };

	mqfq_wheel_turn(&s->wheel, now, mark_unthrottled, &turn);
	if (turn.has_marked)
		wake_ready(s, queue->hctx, true);
}

/*
 * A request that was charged for itself, with @lane's start and @span, has to wait after all: as in
 * mqfq_submit().
 */
void mqfq_stay(struct mqfq *s, struct mqfq_queue *queue, struct mqfq_lane *lane,
	       struct list_head *item, u64 span)
{
	lane->cost = mqfq_item_cost(item);
	lane->span = span;
	list_add_tail(item, &lane->requests);
	WRITE_ONCE(queue->stage.staged, 1);
	/* A lease of what it has. */
	lane->lease.next = lane->start + span;
	lane->lease.end = lane->lease.next;
	mqfq_stage_add(&queue->stage, lane);
	announce(s, queue);
	WRITE_ONCE(queue->waiting, 0);
}

/*
 * The next request of @queue for the device, which holds *@units tokens until mqfq_complete(). The
 * caller holds the queue's lock. Any other answer but MQFQ_IDLE: the queue will be kicked.
 */
enum mqfq_state mqfq_pick(struct mqfq *s, struct mqfq_queue *queue, struct list_head **item,
			  struct mqfq_lane **picked, u32 *units)
{
	enum mqfq_state state = admit(s, queue, true, units);
	struct mqfq_lane *lane = queue->stage.first;
	u64 cost;

	if (state != MQFQ_DISPATCH)
		return state;
	*picked = lane;
	*item = head_of(lane);
	list_del_init(*item);
	WRITE_ONCE(queue->stage.staged, queue->stage.staged - 1);
	cost = mqfq_item_cost(*item);
	if (cost > lane->cost)
		mqfq_charge_more(lane->flow, cost - lane->cost);
	if (list_empty(&lane->requests)) {
		mqfq_give_back(lane->flow, &lane->lease);
		mqfq_stage_drop_first(&queue->stage);
	} else {
		/* The one before is still shown: virtual time has not passed the flow's finish. */
		cost = mqfq_item_cost(head_of(lane));
		set_head(lane, cost, mqfq_charge_leased(lane->flow, cost, mqfq_gvt(&s->mind),
							&lane->lease, READ_ONCE(s->lease)));
		mqfq_stage_rekey_first(&queue->stage);
	}
	if (!queue->stage.first || queue->shown != mqfq_quantised(s, queue->stage.first->start))
		announce(s, queue);
	if (!queue->stage.first)
		rest_empty(s, queue->hctx);
	return MQFQ_DISPATCH;
}

/* Whether the next pick would find something. If not, the queue waits and will be kicked. */
enum mqfq_state mqfq_settle(struct mqfq *s, struct mqfq_queue *queue)
{
	struct mqfq_lane *first = queue->stage.first;
	u32 units;

	if (!first)
		return MQFQ_IDLE;
	/* The common case, in short. */
	if (!queue->is_listed && mqfq_wheel_is_due(&s->wheel, first->start, mqfq_gvt(&s->mind)) &&
	    mqfq_tokens_near(&s->tokens, queue->hctx))
		return MQFQ_DISPATCH;
	return admit(s, queue, false, &units);
}

/* Of @units that came back @left lie at the leaf of @hctx now, and somebody is ready. */
void mqfq_hand_on(struct mqfq *s, u32 hctx, u32 units, u32 left)
{
	/* With the debt paid, what lies at any leaf is free again. */
	if (left != units) {
		wake_ready(s, hctx, false);
		return;
	}
	while (left && mqfq_ready_any(&s->ready)) {
		s32 to = mqfq_ready_take_nearest(&s->ready, hctx);

		if (to < 0)
			return;
		mqfq_tokens_pass(&s->tokens, hctx, to);
		kick(s, to);
		/* One that is empty by now takes none; see rest_empty(). */
		if (READ_ONCE(s->queues[to].stage.staged))
			left--;
	}
}

/* Another D, 1 to MQFQ_DEPTH_MAX, for what is dispatched from now on. One caller at a time. */
void mqfq_set_depth(struct mqfq *s, u32 depth)
{
	mqfq_tokens_set_depth(&s->tokens, depth);
	wake_ready(s, 0, false);
}

/* Another T, MQFQ_WINDOW_LEAST to MQFQ_WINDOW_MAX. One caller at a time. */
void mqfq_set_window(struct mqfq *s, u64 window)
{
	struct turn turn = { s, false };

	set_terms(s, window);
	/* Fences: who sees this window after it took a place sees all three. */
	mqfq_wheel_set_window(&s->wheel, window, mark_unthrottled, &turn);
	wake_ready(s, 0, false);
}
