/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Multi-queue fair queueing: may the first request of this queue go to the device now, and if not,
 * who will tell?
 *
 * Source: MQFQ section 2.1, Figure 2, sections 3.1 to 3.3, in the relaxed form; invariants, races
 * and the bound: sched/src/policy/mqfq/mod.rs. Differences from there:
 *
 *  - A queue's lock stands in for the worker that owns it there. No two queues share a lock.
 *  - Completions take no lock: tokens at a leaf are anybody's (token_tree.h), so a queue that rests
 *    percolates nothing; it wakes those who are ready if a token is free.
 *  - `waiting` says that there is no use in picking. It is set before a queue enters the wheel or
 *    the ready set and cleared by whoever takes it out, before the kick.
 *
 *	insert -> lane, heap of lanes -> mindicator -> virtual time
 *	dispatch: too far ahead -> throttle wheel; no token -> ready set; else out
 */
#ifndef MQFQ_SCHEDULER_H
#define MQFQ_SCHEDULER_H

#include "mindicator.h"
#include "ready_set.h"
#include "stage_queue.h"
#include "throttle_wheel.h"
#include "token_tree.h"

#define MQFQ_DEPTH_MAX 65535
#define MQFQ_UNIT_BYTES 4096	/* a unit of D */

enum mqfq_state { MQFQ_DISPATCH, MQFQ_IDLE, MQFQ_THROTTLED, MQFQ_NO_TOKEN };

/* What the holder of one hardware queue's lock owns. */
struct mqfq_queue {
	u32 hctx;
	u32 waiting;		/* also cleared by others */
	struct mqfq_stage stage;
	u64 shown;		/* by the leaf of the mindicator, if is_shown */
	u64 slot;		/* of the wheel, if has_place */
	bool is_shown;
	bool has_place;
	bool is_listed;		/* has left a mark or a place that it must take back */
	bool is_pinned;		/* throttled while no token was free: it waits for one too */
} ____cacheline_aligned_in_smp;

struct mqfq {
	u32 hctxs;
	u64 quantum_mask;	/* clears what is below a quantum */
	u64 lease;
	u16 *socket_of;
	struct mqfq_queue *queues;
	/* Picks of @hctx are to be tried again. Called in any context. */
	void (*kick)(struct mqfq *s, u32 hctx);
	struct mqfq_wheel wheel;
	struct mqfq_ready ready;
	struct mqfq_tokens tokens;
	struct mqfq_mindicator mind;
};

int mqfq_init(struct mqfq *s, u32 hctxs, const u16 *socket_of, u32 depth, u64 window);
void mqfq_exit(struct mqfq *s);
void mqfq_submit(struct mqfq *s, struct mqfq_queue *queue, struct mqfq_lane *lane,
		 struct list_head *item);
enum mqfq_state mqfq_pick(struct mqfq *s, struct mqfq_queue *queue, struct list_head **item,
			  struct mqfq_lane **lane, u32 *units);
enum mqfq_state mqfq_settle(struct mqfq *s, struct mqfq_queue *queue);
void mqfq_passed(struct mqfq *s, struct mqfq_queue *queue, u64 now);
void mqfq_stay(struct mqfq *s, struct mqfq_queue *queue, struct mqfq_lane *lane,
	       struct list_head *item, u64 span);
void mqfq_hand_on(struct mqfq *s, u32 hctx, u32 units, u32 left);
void mqfq_set_depth(struct mqfq *s, u32 depth);
void mqfq_set_window(struct mqfq *s, u64 window);

/* How far ahead of virtual time a leaf shows a lead. */
#define MQFQ_HORIZON 0x20000000000000ULL

static inline u64 mqfq_quantised(struct mqfq *s, u64 lead)
{
	return lead & READ_ONCE(s->quantum_mask);
}

static inline u32 mqfq_units_for(u64 cost)
{
	return clamp_t(u64, DIV_ROUND_UP(cost, MQFQ_UNIT_BYTES), 1, MQFQ_DEPTH_MAX);
}

/*
 * Submits a request and, if its queue is empty, picks it at once if it may go: then it holds as
 * many units as are returned until mqfq_complete(). Its lead is never shown, since it was gone
 * again before another could see it. 0: it is staged. Under the queue's lock.
 */
static inline u32 mqfq_enter(struct mqfq *s, struct mqfq_queue *queue, struct mqfq_lane *lane,
			     struct list_head *item)
{
	u64 cost, now, span, start;

	/* Where there is a mark or a place to take back, the next pick does so. */
	if (queue->stage.first || queue->is_listed)
		goto submit;
	cost = mqfq_item_cost(item);
	now = mqfq_gvt(&s->mind);
	span = mqfq_charge_alone(lane->flow, cost, now, &start);
	if (!span)
		goto submit;
	lane->start = start;
	if (!vtime_before(now + MQFQ_HORIZON, start)) {
		u32 units = mqfq_units_for(cost);

		/* Virtual time, as it is after a lead was shown that is gone at once. */
		if (mqfq_mindicator_pass(&s->mind, mqfq_quantised(s, start), &now))
			mqfq_passed(s, queue, now);
		if (mqfq_wheel_is_due(&s->wheel, start, now) &&
		    (mqfq_tokens_take(&s->tokens, queue->hctx, units) ||
		     mqfq_tokens_acquire(&s->tokens, queue->hctx, units, 0, false)))
			return units;
	}
	mqfq_stay(s, queue, lane, item, span);
	return 0;
submit:
	mqfq_submit(s, queue, lane, item);
	return 0;
}

/* The device finished a request of @hctx that held @units tokens. In any context, no lock. */
static inline void mqfq_complete(struct mqfq *s, u32 hctx, u32 units)
{
	u32 left = mqfq_tokens_release(&s->tokens, hctx, units);

	if (mqfq_ready_any(&s->ready))
		mqfq_hand_on(s, hctx, units, left);
}

#endif
