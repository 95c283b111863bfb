/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How many units of work should be on the device at once? A controller of samples: no clock, no
 * float, no memory of its own, nothing shared.
 *
 * Source: sched/src/tune/depth, rules R1 to R5, to the unit and to the last bit (agreement/tests/
 * controllers.rs). Here requests never go to the device in parts, so that rule is left out.
 * Logarithms are to base 2, in 65536ths. Times may be in any unit as long as all of them are.
 */
#ifndef MQFQ_DEPTH_H
#define MQFQ_DEPTH_H

#include "shim.h"

/* Classes of requests by units: 1, 2, 3 to 4, 5 to 8, and so on to 65536. */
#define MQFQ_CLASSES 17

/* The class of a request of @units units, 1 to 65536. */
static inline u32 mqfq_class_of(u32 units)
{
	return units > 1 ? ilog2((u64)units - 1) + 1 : 0;
}

struct mqfq_work {
	u64 units;
	u64 requests;
};

/* What is known of a device at a moment, since some beginning. Sums may wrap. */
struct mqfq_sample {
	u64 now_ns;
	struct mqfq_work work[MQFQ_CLASSES];	/* completed, by class */
	u64 device_unit_ns;	/* units on the device, summed over time */
	u64 system_unit_ns;	/* units in the system, summed over time */
	u64 waiting_ns;		/* in which a request waited for a token */
	u64 silence_ns;		/* longest time without a completion in this epoch */
	u64 out_units;		/* on the device now */
};

/* What happened between two samples. */
struct mqfq_span {
	u64 elapsed_ns;
	u64 units;
	u64 requests;
	u64 device_unit_ns;
	u64 system_unit_ns;
	u64 waiting_ns;
};

/* One measurement at one D. */
struct mqfq_phase {
	s32 units_log;		/* units per ns */
	s32 weighed_log;	/* units and requests per ns */
	s32 device_log;		/* mean units on the device */
	s32 request_log;	/* mean units of a request */
	u32 request_units;	/* the same, rounded */
	s32 system_log;		/* mean units in the system */
	u64 device_units;	/* the first of these, rounded down */
	s32 waiting;		/* part of the time that somebody waited, 65536ths */
	u32 step;		/* of the grid, units */
	s32 step_log;
};

/* Which sizes complete, averaged over some phases. */
struct mqfq_sizes {
	s64 share[MQFQ_CLASSES];	/* of the work, 65536ths */
	u32 mean[MQFQ_CLASSES];		/* units of a request, rounded up */
	u32 step;			/* n: those of this size and more are a quarter */
};

enum mqfq_verdict { MQFQ_BETTER, MQFQ_WORSE, MQFQ_UNSURE, MQFQ_NOT_COMPARABLE };

enum mqfq_reason { MQFQ_START, MQFQ_QUIET, MQFQ_SEARCHING, MQFQ_FOUND, MQFQ_CHANGED };

enum mqfq_task { MQFQ_LOOK, MQFQ_FIRST, MQFQ_TRIAL, MQFQ_AGAIN, MQFQ_HOLD };

/* Rounds of a comparison at most; at D one phase more is measured. */
#define MQFQ_ROUNDS_MAX 64

/* Phases of one depth in one comparison; each row is in order, the largest first. */
struct mqfq_phases {
	u32 count;
	s64 device_log, system_log, request_log, waiting;	/* sums */
	s32 logs[3][MQFQ_ROUNDS_MAX + 1];
};

/* Phases at D and at a candidate in turn, until one of the two is surely better. */
struct mqfq_search {
	u32 depth_max;
	u32 base;		/* D as chosen */
	enum mqfq_task task;
	struct mqfq_phase before, tried;	/* of a trial, and of its measuring again */
	u32 left, others;			/* phases of a hold */
	u32 trial;
	struct mqfq_phases at_base, at_trial;
	s64 variance;		/* of the phases of one depth */
	bool is_up;
	u32 refused[2];		/* the last shallower and deeper candidate; 0: none */
	u32 fails;
	u32 factor;
	bool is_fast;
	u32 hold;
	bool has_found;
	struct mqfq_phase found;	/* the load for which D was found */
	u64 chosen_ns;
	enum mqfq_reason reason;
	u64 phases;
};

struct mqfq_controller {
	u32 depth;		/* to be in force now */
	enum { MQFQ_NEW, MQFQ_SETTLING, MQFQ_MEASURING } stage;
	u64 until_units;	/* settling ends */
	struct mqfq_sample from;	/* measuring began */
	u32 epoch;		/* measuring has begun so often */
	u32 voids;
	struct mqfq_sizes sizes;
	struct mqfq_search search;
};

void mqfq_controller_init(struct mqfq_controller *controller, u32 depth, u32 depth_max);
u32 mqfq_controller_step(struct mqfq_controller *controller, const struct mqfq_sample *sample);
const char *mqfq_reason_name(enum mqfq_reason reason);

/* Within the controller. */
s32 mqfq_log2(u64 value);
struct mqfq_work mqfq_work_of(const struct mqfq_sample *sample);
void mqfq_span_between(struct mqfq_span *span, const struct mqfq_sample *from,
		       const struct mqfq_sample *to);
void mqfq_phase_of(struct mqfq_phase *phase, const struct mqfq_span *span, u32 step);
void mqfq_sizes_init(struct mqfq_sizes *sizes);
void mqfq_sizes_take(struct mqfq_sizes *sizes, const struct mqfq_sample *from,
		     const struct mqfq_sample *to);
void mqfq_search_init(struct mqfq_search *search, u32 depth, u32 depth_max);
u64 mqfq_search_longer(const struct mqfq_search *search);
u32 mqfq_search_learn(struct mqfq_search *search, const struct mqfq_phase *phase, u32 depth,
		      u64 now_ns);

#endif
