// SPDX-License-Identifier: GPL-2.0
/* Throttled queues: see throttle_wheel.h. Loom: sched/src/shared/throttle_wheel/loom_tests.rs. */
#include "throttle_wheel.h"

#define SLOT_MASK ((1ULL << MQFQ_SLOT_SHIFT) - 1)

int mqfq_wheel_init(struct mqfq_wheel *wheel, u32 hctxs, u64 window, u64 start)
{
	u32 per_line = sizeof(struct mqfq_word) / sizeof(atomic64_t);

	wheel->words = DIV_ROUND_UP(hctxs, 64);
	wheel->stride = DIV_ROUND_UP(wheel->words, per_line) * per_line;
	wheel->window = window;
	atomic64_set(&wheel->position.value, start & ~SLOT_MASK);
	wheel->lines = kvcalloc(MQFQ_BUCKETS * wheel->stride / per_line, sizeof(struct mqfq_word),
				GFP_KERNEL);
	return wheel->lines ? 0 : -ENOMEM;
}

void mqfq_wheel_exit(struct mqfq_wheel *wheel)
{
	kvfree(wheel->lines);
	wheel->lines = NULL;
}

static atomic64_t *bucket(struct mqfq_wheel *wheel, u64 slot)
{
	slot = (slot >> MQFQ_SLOT_SHIFT) % MQFQ_BUCKETS;
	return (atomic64_t *)wheel->lines + slot * wheel->stride;
}

/* The first slot that starts at @due or later, or the last that has a bucket of its own. */
static u64 slot_for(u64 due, u64 now)
{
	return vtime_earlier((due + SLOT_MASK) & ~SLOT_MASK,
			     (now & ~SLOT_MASK) + ((MQFQ_BUCKETS - 1ULL) << MQFQ_SLOT_SHIFT));
}

/*
 * Puts @hctx to wait until virtual time is near enough to @lead. False: it need not wait. Only
 * whoever holds the queue's lock may call this, and not while it has a place already.
 */
bool mqfq_wheel_throttle(struct mqfq_wheel *wheel, u32 hctx, u64 lead,
			 struct mqfq_mindicator *mind, u64 *slot)
{
	u64 now = mqfq_gvt(mind);

	for (;;) {
		u64 window = READ_ONCE(wheel->window), due = lead - window;

		if (!vtime_before(now, due))
			return false;
		*slot = slot_for(due, now);
		/* Release: pairs with empty(): the turner sees that the queue waits. */
		atomic64_fetch_or_release((s64)(1ULL << (hctx % 64)),
					  bucket(wheel, *slot) + hctx / 64);
		/*
		 * Pairs with the fences in turn and set_window: if ours is first they find our bit;
		 * if theirs is, we read a virtual time past our slot, or the new window.
		 */
		smp_mb__after_atomic();
		now = mqfq_gvt(mind);
		if (vtime_before(now, *slot) && READ_ONCE(wheel->window) == window)
			return true;
		mqfq_wheel_withdraw(wheel, hctx, *slot);
	}
}

/* Gives up a place. False: a turner has taken the queue out, and will unthrottle it. */
bool mqfq_wheel_withdraw(struct mqfq_wheel *wheel, u32 hctx, u64 slot)
{
	atomic64_t *word = bucket(wheel, slot) + hctx / 64;
	s64 bit = (s64)(1ULL << (hctx % 64));

	return (atomic64_read(word) & bit) && (atomic64_fetch_and_acquire(~bit, word) & bit);
}

static void empty(struct mqfq_wheel *wheel, u64 slot, mqfq_unthrottle_fn unthrottle,
		  void *context)
{
	u32 at;

	for (at = 0; at < wheel->words; at++) {
		atomic64_t *word = bucket(wheel, slot) + at;
		u64 bits = atomic64_read(word);

		if (!bits)
			continue;
		/* The exchange decides who wakes whom (W2). */
		for (bits = atomic64_xchg_acquire(word, 0); bits; bits &= bits - 1)
			unthrottle(context, at * 64 + __ffs64(bits));
	}
}

/* Turns the wheel to @gvt, which the caller got from a query. Cheap if no slot was passed. */
void mqfq_wheel_turn(struct mqfq_wheel *wheel, u64 gvt, mqfq_unthrottle_fn unthrottle,
		     void *context)
{
	u64 to = gvt & ~SLOT_MASK, passed;
	s64 from = atomic64_read(&wheel->position.value);

	if (!vtime_before((u64)from, to))
		return;
	/* Pairs with the fence in throttle; stands between virtual time and the buckets. */
	smp_mb();
	while (!atomic64_try_cmpxchg_relaxed(&wheel->position.value, &from, to))
		if (!vtime_before((u64)from, to))
			return;
	/* If more than all buckets were passed, the last 64 slots name each of them once. */
	passed = min_t(u64, (to - (u64)from) >> MQFQ_SLOT_SHIFT, MQFQ_BUCKETS);
	while (passed--) {
		u64 slot = to - (passed << MQFQ_SLOT_SHIFT);

		/* The common case, in short. */
		if (wheel->words > 1 || atomic64_read(bucket(wheel, slot)))
			empty(wheel, slot, unthrottle, context);
	}
}

/* T is @window from now on; every queue that has a place is unthrottled, to look again (W4). */
void mqfq_wheel_set_window(struct mqfq_wheel *wheel, u64 window, mqfq_unthrottle_fn unthrottle,
			   void *context)
{
	u64 slot;

	WRITE_ONCE(wheel->window, window);
	/* Pairs with the fence in throttle. */
	smp_mb();
	for (slot = 0; slot < MQFQ_BUCKETS; slot++)
		empty(wheel, slot << MQFQ_SLOT_SHIFT, unthrottle, context);
}
