// SPDX-License-Identifier: GPL-2.0
/* Who holds its part of the scheduler's tags, and waits: see tags.h. */
#include "tags.h"

/* Requests of a size that was last seen so often are enough to go by. */
#define SEEN_MIN 8

/* What was found of a flow that tags limit is of use for so long; and a part of it, for a mean. */
#define LAG_JIFFIES (HZ / 10)
#define LAG_PARTS 16

/* Tags that the flow holds or has reserved. */
static u64 tags_of(struct mqfq_lane *lane)
{
	return atomic64_read(&lane->requests_out) + atomic64_read(&lane->reserved);
}

static void find_tag_share(struct mqfq_hctx *own, struct mqfq_lane *lane)
{
	u64 bytes = READ_ONCE(lane->bytes[0]) + READ_ONCE(lane->bytes[1]) - lane->seen[0];
	u64 done = READ_ONCE(lane->done[0]) + READ_ONCE(lane->done[1]) - lane->seen[1];
	u64 size;

	if (done < SEEN_MIN)
		return;
	/* Two that do so at once come to about the same. */
	WRITE_ONCE(lane->seen[0], lane->seen[0] + bytes);
	WRITE_ONCE(lane->seen[1], lane->seen[1] + done);
	/* In sectors: 8 are a unit. A discard costs a unit and may be of any size. */
	size = clamp_t(u64, div64_u64(bytes >> SECTOR_SHIFT, done), 8, 2048);
	WRITE_ONCE(lane->tag_share, div64_u64((u64)READ_ONCE(lane->flow->part) * 8, size) ?: 1);
	mqfq_set_share(own, lane, mqfq_tag_share_of(lane));
	/* Fully ordered, as giving back is: the last tag went before, or its share goes. */
	if (!tags_of(lane))
		mqfq_set_share(own, lane, 0);
}

/* Shares of all that hold tags or are about to, this flow among them. */
static u64 shares_with(struct mqfq_hctx *own, struct mqfq_lane *lane)
{
	return atomic64_read(&own->share_out) - atomic64_read(&lane->share) +
	       mqfq_tag_share_of(lane);
}

static bool is_alone(struct mqfq_hctx *own, struct mqfq_lane *lane)
{
	return shares_with(own, lane) <= mqfq_tag_share_of(lane);
}

/*
 * True if one more would be more than the flow's part of the tags: all of them, if it is alone.
 * More tasks of it would stand before the first one of a flow that comes.
 */
static bool is_at_its_part(struct mqfq_hctx *own, struct mqfq_lane *lane, u32 tags)
{
	u64 out = tags_of(lane);

	return out && (out + 1) * shares_with(own, lane) > mqfq_tag_share_of(lane) * tags;
}

/*
 * Parts of a tag: of 4.4 and 11.6 of 16 the flows cannot have 5 and 12. Where tags, and not D, are
 * the limit, all that holds one is granted, and shares are those of the tags. Virtual time goes on
 * with the flows that have more than their share, and passes the others' finish tags: by so much a
 * flow lags. A flow that lags less than the mean of those that tags limit leaves the last quarter
 * of the tags to the others where it would have more than its part. Two that do so at once come to
 * about the same.
 */
static void find_lag(struct mqfq_hctx *own, struct mqfq_lane *lane, u32 tags)
{
	u64 skipped = atomic64_read(&lane->flow->skipped), mean = READ_ONCE(own->lag);

	if (!is_at_its_part(own, lane, tags) || is_alone(own, lane))
		return;
	/* Who comes anew lags like the others. */
	if (time_after(jiffies, lane->lag_jiffies + LAG_JIFFIES))
		WRITE_ONCE(lane->lag, mean);
	else
		WRITE_ONCE(lane->lag, lane->lag + skipped - lane->seen_skipped);
	WRITE_ONCE(lane->seen_skipped, skipped);
	WRITE_ONCE(lane->lag_jiffies, jiffies);
	WRITE_ONCE(own->lag, mean + (s64)(lane->lag - mean) / LAG_PARTS);
}

/* True if the flow holds its part of the tags. */
static bool holds_its_part(struct mqfq_hctx *own, struct mqfq_lane *lane, u32 tags)
{
	u64 out = tags_of(lane);

	if (!is_at_its_part(own, lane, tags))
		return false;
	if (out * shares_with(own, lane) >= mqfq_tag_share_of(lane) * tags)
		return true;
	return !is_alone(own, lane) && (s64)(READ_ONCE(lane->lag) - READ_ONCE(own->lag)) < 0 &&
	       atomic_read(&own->tags_out) + 1 + tags / 4 >= tags;
}

/* True if the flow may have one more tag, which is then counted as reserved. */
static bool try_reserve(struct mqfq_hctx *own, struct mqfq_lane *lane, u32 tags)
{
	unsigned long flags;
	bool may;

	/* One task at a time looks and counts. */
	spin_lock_irqsave(&lane->wait.lock, flags);
	may = !holds_its_part(own, lane, tags);
	if (may) {
		atomic64_inc(&lane->reserved);
		mqfq_set_share(own, lane, mqfq_tag_share_of(lane));
	}
	spin_unlock_irqrestore(&lane->wait.lock, flags);
	return may;
}

/* The next place at which a task looks for its reservation. */
static struct mqfq_reservation *reservation_at(struct mqfq_elevator *e, u32 attempt)
{
	u32 at = hash_ptr(current, MQFQ_RESERVATIONS_BITS) + attempt;

	return &e->reservations[at & ((1 << MQFQ_RESERVATIONS_BITS) - 1)];
}

/* Places in a row at which a reservation may lie. */
#define PLACES 8

/* The reservation waits for the task's next request. False: there is no place for it. */
static bool keep_reservation(struct mqfq_elevator *e, struct mqfq_lane *lane)
{
	u32 attempt;

	for (attempt = 0; attempt < PLACES; attempt++) {
		struct mqfq_reservation *at = reservation_at(e, attempt);

		/* Acquire: pairs with the release of the place. */
		if (!READ_ONCE(at->task) && !cmpxchg_acquire(&at->task, NULL, current)) {
			/* Only this task reads it. */
			at->lane = lane;
			atomic_inc(&e->reserving);
			return true;
		}
	}
	return false;
}

/* For elv.priv[0] of a new request: the reservation of the task, or NULL. */
void *mqfq_take_reservation(struct mqfq_elevator *e)
{
	u32 attempt;

	for (attempt = 0; attempt < PLACES; attempt++) {
		struct mqfq_reservation *at = reservation_at(e, attempt);

		if (READ_ONCE(at->task) == current) {
			unsigned long lane = (unsigned long)at->lane | MQFQ_RESERVED;

			/* Release: pairs with the acquire of the next task here. */
			smp_store_release(&at->task, NULL);
			atomic_dec(&e->reserving);
			return (void *)lane;
		}
	}
	return NULL;
}

/* The tag is held by now, by whichever flow, or not wanted any more. In any context. */
void mqfq_unreserve(struct mqfq_elevator *e, struct mqfq_lane *lane, bool wakes)
{
	/* Fully ordered: a waiter queues itself, fences, and looks at this count. */
	if (!atomic64_dec_return(&lane->reserved) && !atomic64_read(&lane->requests_out))
		mqfq_set_share(&e->hctxs[lane->hctx], lane, 0);
	if (wakes && waitqueue_active(&lane->wait))
		wake_up(&lane->wait);
	if (!mqfq_flow_is_lasting(e, lane->flow))
		mqfq_cgroup_unpin(lane->flow);
}

/*
 * Scheduler tags must not starve a cgroup, however deep another one submits: a flow that holds its
 * part waits for its own completions before it asks for a tag. A task that may not wait, and kernel
 * threads that write back for others, get along with the lower half of the tags. Metadata and swap
 * are never held up: others may wait for them.
 */
void mqfq_tags_limit(blk_opf_t opf, struct blk_mq_alloc_data *data)
{
	struct mqfq_elevator *e = data->q->elevator->elevator_data;
	struct mqfq_hctx *own = ((struct mqfq_hctx *)data->hctx->sched_data)->account;
	u32 tags = data->q->nr_requests;
	struct mqfq_lane *lane;

	if (opf & (REQ_META | REQ_SWAP))
		return;
	if ((current->flags & PF_KTHREAD) && !op_is_sync(opf)) {
		data->shallow_depth = mqfq_shallow_depth(data, 1, 2);
		return;
	}
	rcu_read_lock();
	lane = mqfq_flow_of_current(e, NULL)->lanes[own->index];
	find_tag_share(own, lane);
	find_lag(own, lane, tags);
	/* A plug asks for many at once; one is reserved. */
	if (!is_alone(own, lane))
		data->nr_tags = min(data->nr_tags, 1U);
	if (!mqfq_flow_is_lasting(e, lane->flow) && !mqfq_cgroup_try_pin(lane->flow)) {
		/* A cgroup that is being removed. */
		if (holds_its_part(own, lane, tags) && !is_alone(own, lane))
			data->shallow_depth = mqfq_shallow_depth(data, 1, 2);
		rcu_read_unlock();
		return;
	}
	rcu_read_unlock();
	if (data->flags & BLK_MQ_REQ_NOWAIT) {
		/* It may come to no request: nothing is reserved. */
		if (holds_its_part(own, lane, tags) && !is_alone(own, lane))
			data->shallow_depth = mqfq_shallow_depth(data, 1, 2);
		if (!mqfq_flow_is_lasting(e, lane->flow))
			mqfq_cgroup_unpin(lane->flow);
		return;
	}
	/*
	 * One of its requests will finish, and wakes one waiter. Our plug is flushed before we sleep.
	 * A waiter that goes on wakes the next if there is room for both: the part may have grown.
	 */
	(void)___wait_event(lane->wait, try_reserve(own, lane, tags), TASK_UNINTERRUPTIBLE, 1, 0,
			    io_schedule());
	if (waitqueue_active(&lane->wait) && !holds_its_part(own, lane, tags))
		wake_up(&lane->wait);
	if (!keep_reservation(e, lane))
		mqfq_unreserve(e, lane, false);
}
