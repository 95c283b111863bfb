/* SPDX-License-Identifier: GPL-2.0 */
/*
 * D and T of a device, found while it runs: what is counted for the controllers, who steps them?
 *
 * Source: blk/src/path/tuning.rs. A completion adds to words of its CPU, a dispatch to words under its
 * queue's lock; the n-th completion on a CPU sums all of them up, if nobody else does so just now,
 * and puts in force what the controllers say.
 *
 * No request is timed for this. A completion comes with the time, an insertion with the time of
 * its request, and what leaves a queue does so after one of these or a kick: the queue keeps the
 * last of these times. A unit on the device from d to c adds c - d to the integral of units over
 * time, so sums of units * c and of units * d will do. U1: device_unit_ns = sum(units * c) -
 * sum(units * d) + out * now, modulo 2^64, for any interleaving. The same with the time of
 * submission for the system.
 *
 * A request is counted when it completes if and only if it was counted when it was dispatched (U2):
 * its COUNTED bit is beside its tokens.
 */
#ifndef MQFQ_TUNING_H
#define MQFQ_TUNING_H

#include <linux/percpu.h>
#include "depth.h"
#include "window_rule.h"

struct mqfq_elevator;

/* In elv.priv[1], above the units. */
#define MQFQ_COUNTED 0x20000UL
#define MQFQ_UNITS_MASK 0x1ffffUL

/*
 * Sums of units times absolute times are of no use by halves: one unit that is in `units` and not
 * in `unit_ns` is an error of all the time since boot. So a reader takes the words of a CPU, and of
 * a queue, as they were at one moment, or goes without a step.
 */

/* Of one CPU; a nested interrupt may lose what is not a sum. */
struct mqfq_counts {
	u32 begun, done;		/* equal while nobody changes what follows */
	struct mqfq_work work[MQFQ_CLASSES];	/* completed */
	u64 unit_ns;			/* units times when they completed */
	u64 completed_ns;		/* the last */
	u64 silent_from_ns, silent_to_ns;	/* longest time between two, in this epoch */
	u32 epoch;
};

/* Of one hardware queue, under its lock but for the clock. */
struct mqfq_meter {
	u64 clock_ns;			/* the last time that is known here */
	u64 begun, units;		/* dispatched; equal while nobody changes the next two */
	u64 unit_ns;			/* units times when they were dispatched */
	u64 start_unit_ns;		/* units times when they were submitted */
	u64 waited_ns;			/* for a token, until since_ns if it waits now */
	u64 since_ns;
	bool is_waiting;
	u64 seen_ns;			/* of waited_ns, by the last step */
};

struct mqfq_tuning {
	struct mqfq_counts __percpu *counts;
	u32 period_mask;		/* completions on a CPU from one step to the next, less 1 */
	u32 epoch;			/* the controller's, for completions */
	bool finds_depth, finds_window;
	/* Whoever changes D or T. Taken with interrupts off; a completion only tries it. */
	spinlock_t lock;
	struct mqfq_controller controller;
	struct mqfq_window_rule rule;
	struct mqfq_sample sample;	/* the last */
};

int mqfq_tuning_init(struct mqfq_elevator *e, u32 depth, u64 window);
void mqfq_tuning_exit(struct mqfq_elevator *e);
void mqfq_tuning_step(struct mqfq_elevator *e, u64 now);
void mqfq_tuning_waits(struct mqfq_meter *meter, bool waits);
void mqfq_tuning_find_depth(struct mqfq_elevator *e, bool finds, u32 depth);
void mqfq_tuning_find_window(struct mqfq_elevator *e, bool finds, u64 window);

static inline bool mqfq_tuning_is_on(struct mqfq_tuning *tuning)
{
	return READ_ONCE(tuning->finds_depth) || READ_ONCE(tuning->finds_window);
}

#endif
