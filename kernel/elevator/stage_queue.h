/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The requests staged in one hardware queue, first in order of start tag.
 *
 * Source: MQFQ section 2.1. Each flow's requests stand in a FIFO, a lane; only lanes are sorted, in
 * a pairing heap of their heads. Only a lane's head has an interval: the next request gets one when
 * it becomes the head, so that merging and new weights need no second thoughts (the deferred form
 * of sched/src/queue/stage_queue.rs).
 *
 * Of equal start tags the shorter interval goes first, then the first to become a head. All of it
 * belongs to whoever holds the queue's lock.
 */
#ifndef MQFQ_STAGE_QUEUE_H
#define MQFQ_STAGE_QUEUE_H

#include "flow.h"

/* One flow in one hardware queue. */
struct mqfq_lane {
	struct list_head requests;	/* staged, the head first */
	struct mqfq_flow *flow;
	u64 start;			/* of the head */
	u64 span;
	u64 cost;			/* of the head, as charged */
	u32 arrival;
	u32 hctx;
	struct mqfq_lane *child;	/* pairing heap: the first below */
	struct mqfq_lane *sibling;
	struct mqfq_lease lease;
	/* Written by those who complete. */
	atomic64_t requests_out ____cacheline_aligned_in_smp;	/* scheduler tags held */
#ifdef __KERNEL__
	atomic64_t reserved;		/* scheduler tags that tasks are about to take (tags.h) */
	wait_queue_head_t wait;		/* for one of them, by a flow that holds its part */
	atomic64_t share;		/* what counts in share_out while tags are held */
	u64 tag_share;			/* weight over size of a request; 0: not known yet */
	u64 seen[2];			/* bytes and requests dispatched when that was found */
	u64 lag, seen_skipped;		/* see find_lag(); what the flow had skipped then */
	unsigned long lag_jiffies;	/* when it was found */
	u64 bytes[2], done[2];		/* dispatched, by direction; the queue's lock */
	atomic64_t system_ns;		/* submission to completion, of all */
	struct rcu_head rcu;		/* of the first lane of a piece */
#endif
};

struct mqfq_stage {
	struct mqfq_lane *first;
	u32 staged;
	u32 lanes;
	u32 arrivals;
};

/*
 * Lanes of a piece of memory. A flow's lanes come in pieces of at most a page: its first request may
 * be one that must not wait for memory, and then pages are free where 20 KiB in a row, the lanes of
 * 64 queues, may not be.
 */
#define MQFQ_LANES_PER_PIECE (4096 / sizeof(struct mqfq_lane))

int mqfq_lanes_alloc(struct mqfq_flow *flow, u32 hctxs, gfp_t gfp);
void mqfq_lanes_free(struct mqfq_flow *flow, u32 hctxs);
#ifdef __KERNEL__
void mqfq_lanes_free_later(struct mqfq_flow *flow, u32 hctxs);
#endif

bool mqfq_stage_add(struct mqfq_stage *stage, struct mqfq_lane *lane);
void mqfq_stage_rekey_first(struct mqfq_stage *stage);
void mqfq_stage_drop_first(struct mqfq_stage *stage);

#endif
