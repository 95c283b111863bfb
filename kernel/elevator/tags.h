/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How many of the scheduler's tags may a flow hold?
 *
 * Tags are few, and a request without one cannot even be staged. Each request is counted on its lane
 * from insert to finish; a task whose flow holds its part waits (tags.c). Queues that share one set
 * of tags count on the first of them. No lock; sums may be off for a moment, and only limits go by
 * them.
 *
 * A reservation counts a tag from the check to insert. Without it 64 threads that wait for the tag
 * of one request would all pass the check before the first of them is counted, and take all tags of
 * a small set. The task finds its reservation again in prepare_request(), which is told nothing of
 * the check; from there elv.priv[0] of the request has it, until the request is inserted or freed.
 * R1: a reservation ends once. Between the check and prepare_request() nothing lets a task go
 * without a request: it may wait there, and the queue cannot be frozen meanwhile.
 */
#ifndef MQFQ_TAGS_H
#define MQFQ_TAGS_H

#include <linux/wait.h>
#include "glue.h"

/*
 * What a flow's part of the tags goes by: weights share bytes, and tags hold requests, so it is the
 * weight over the mean size. Of 100 with 16 KiB and 300 with 128 KiB that is 25 to 9.4. Without
 * requests that have been dispatched it is the weight.
 */
static inline u64 mqfq_tag_share_of(struct mqfq_lane *lane)
{
	u64 weight = READ_ONCE(lane->flow->part);

	return READ_ONCE(lane->tag_share) ?: weight;
}

/* The share that counts for the lane is @share from now on; the sum follows. */
static inline void mqfq_set_share(struct mqfq_hctx *own, struct mqfq_lane *lane, u64 share)
{
	u64 before = atomic64_xchg(&lane->share, share);

	if (before != share)
		atomic64_add(share - before, &own->share_out);
}

/*
 * The request holds a scheduler tag on its flow's account until it is finished. Its bio holds the
 * flow while it is inserted; from then on the count does (cgroup.c).
 */
static inline void mqfq_hold_tag(struct mqfq_hctx *own, struct mqfq_lane *lane)
{
	if (own != own->account) {
		own = own->account;
		lane = lane->flow->lanes[own->index];
	}
	atomic_inc(&own->tags_out);
	if (!atomic64_fetch_inc(&lane->requests_out))
		mqfq_set_share(own, lane, mqfq_tag_share_of(lane));
}

/*
 * With preemption off, which is on again when it returns: lanes are freed after a grace period, and
 * that waits for such a CPU too.
 */
static inline void mqfq_give_tag_back(struct mqfq_hctx *own, struct mqfq_lane *lane)
{
	bool has_waiter;

	if (own != own->account) {
		own = own->account;
		lane = lane->flow->lanes[own->index];
	}
	atomic_dec(&own->tags_out);
	/*
	 * Fully ordered: pairs with the acquire before the flow is freed; and a waiter queues
	 * itself, fences, and looks at this count. Beside mqfq_hold_tag() the lane may come to
	 * count nothing while it holds a tag, until it looks for its share or its tags are back.
	 */
	if (!atomic64_dec_return(&lane->requests_out) && !atomic64_read(&lane->reserved))
		mqfq_set_share(own, lane, 0);
	/* It needs no barrier of its own: see above. */
	has_waiter = waitqueue_active(&lane->wait);
	if (unlikely(has_waiter))
		rcu_read_lock();
	preempt_enable();
	if (unlikely(has_waiter)) {
		wake_up(&lane->wait);
		rcu_read_unlock();
	}
}

void mqfq_tags_limit(blk_opf_t opf, struct blk_mq_alloc_data *data);
void *mqfq_take_reservation(struct mqfq_elevator *e);
void mqfq_unreserve(struct mqfq_elevator *e, struct mqfq_lane *lane, bool wakes);

/* In elv.priv[0]: the lane has a tag reserved, and is not the lane of the request. */
#define MQFQ_RESERVED 1UL

/* The lane on which a request that was not inserted yet has a reservation, or NULL. */
static inline struct mqfq_lane *mqfq_reserved_by(struct request *rq)
{
	unsigned long lane = (unsigned long)rq->elv.priv[0];

	return lane & MQFQ_RESERVED ? (struct mqfq_lane *)(lane & ~MQFQ_RESERVED) : NULL;
}

struct mqfq_lane *mqfq_hold_tag_of_process(struct mqfq_elevator *e, struct mqfq_hctx *own,
					   struct request *rq);

#endif
