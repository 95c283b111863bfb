/* SPDX-License-Identifier: GPL-2.0 */
/*
 * When to look again at a queue that is too far ahead of virtual time?
 *
 * Source: MQFQ section 3.3 and figure 4. A bucket belongs to an absolute slot of virtual time. A
 * queue that has taken a place checks that the wheel has not passed it meanwhile. W1 to W4 and the
 * tables of races: sched/src/shared/throttle_wheel.rs. Slots are half of the smallest T, so T may be set
 * while the wheel turns.
 */
#ifndef MQFQ_THROTTLE_WHEEL_H
#define MQFQ_THROTTLE_WHEEL_H

#include "mindicator.h"

#define MQFQ_BUCKETS 64

/* T in units of virtual time: 16 KiB at least, at weight 100, and 16 MiB at most. */
#define MQFQ_WINDOW_LEAST (16384 * MQFQ_UNITS_PER_BYTE)
#define MQFQ_WINDOW_MAX (1024 * MQFQ_WINDOW_LEAST)

/* log2 of a slot. */
#define MQFQ_SLOT_SHIFT 23

struct mqfq_wheel {
	u32 words;			/* of a bucket */
	u32 stride;			/* words between two buckets: whole lines */
	u64 window;			/* T */
	struct mqfq_word position;	/* start of the slot that it has turned to */
	struct mqfq_word *lines;
};

typedef void (*mqfq_unthrottle_fn)(void *context, u32 hctx);

int mqfq_wheel_init(struct mqfq_wheel *wheel, u32 hctxs, u64 window, u64 start);
void mqfq_wheel_exit(struct mqfq_wheel *wheel);
bool mqfq_wheel_throttle(struct mqfq_wheel *wheel, u32 hctx, u64 lead,
			 struct mqfq_mindicator *mind, u64 *slot);
bool mqfq_wheel_withdraw(struct mqfq_wheel *wheel, u32 hctx, u64 slot);
void mqfq_wheel_turn(struct mqfq_wheel *wheel, u64 gvt, mqfq_unthrottle_fn unthrottle,
		     void *context);
void mqfq_wheel_set_window(struct mqfq_wheel *wheel, u64 window, mqfq_unthrottle_fn unthrottle,
			   void *context);

/* True if a request with start tag @lead may be dispatched at @gvt (I3). */
static inline bool mqfq_wheel_is_due(struct mqfq_wheel *wheel, u64 lead, u64 gvt)
{
	return !vtime_before(gvt, lead - READ_ONCE(wheel->window));
}

#endif
