// SPDX-License-Identifier: GPL-2.0
/*
 * Which D is better, and when is that sure? See depth.h and sched/src/tune/depth/search.rs, whose text
 * has the reasons: phases at D and at a candidate in turn, until the difference of their means is
 * surer than their scatter.
 *
 *   look -> trial -> again -> sure? -no-> trial ...
 *    ^                          | better: D = trial
 *    +--------------------------+ worse: the other direction, then a smaller step, then hold
 */
#include "depth.h"

#define ONE 65536

/* A deeper queue must earn 0.15 of its relative depth. Logarithms of 1.02, 1.05, 1.28 and 1.49. */
#define ALPHA 9830
#define DEEPER_MIN 1891
#define NOT_DEEPER 4727
#define RATE_CHANGED 23637
#define SIZE_CHANGED 37819

/* Parts of the time in which somebody waits: always; bound by a smaller D, by a larger one. */
#define SATURATED (ONE / 5 * 4)
#define BOUND_DOWN (ONE / 2)
#define BOUND_UP (ONE / 5)

/* Standard errors, and those by which the deeper one must be better; rounds until it is taken. */
#define SURE 3
#define SURE_DEEPER 6
#define ROUNDS_UP 4

/* Until then so many times the range of the phases at D are no gain, where an accident does harm. */
#define RANGES 2

/*
 * A smaller depth with less than a quarter of the units is taken as surely as a deeper one, and not in
 * doubt, where SURE errors are more than 20%.
 */
#define DOUBT_MAX 17238
#define TIGHT (2 * ONE)

/* The smallest scatter, and what the first round must show; before any round, and its weight. */
#define SCATTER_MIN 189
#define FIRST_ROUND 1891
#define SCATTER_START 1314
#define SCATTER_WEIGHT 4

/* Scatter from which on phases are longer, 7%, and how many times at most. */
#define SCATTER_LONG 6397
#define LONGER_MAX 8

/* What depths are compared by: units, units and requests, the time in the system of a unit. */
enum of { UNITS, WEIGHED, STAY };

/* Between D and a candidate: 2, its root, 1.25; after a right step down by 2 it is 4. */
static const u32 factors[] = { 131072, 92682, 81920 };
static const u32 rounds_max[] = { 24, 48, MQFQ_ROUNDS_MAX };
#define FACTORS 3
#define FACTOR_FAST 262144

/* Phases between two searches: at first, and at most. */
#define HOLD 16
#define HOLD_MAX 128

void mqfq_search_init(struct mqfq_search *search, u32 depth, u32 depth_max)
{
	memset(search, 0, sizeof(*search));
	search->depth_max = depth_max;
	search->base = depth;
	search->trial = depth;
	search->variance = SCATTER_START * SCATTER_START;
	search->is_up = true;
	search->hold = HOLD;
}

/* How many times longer than at first a phase is: as long as phases scatter by more. */
u64 mqfq_search_longer(const struct mqfq_search *search)
{
	return clamp_t(s64, div64_s64(search->variance, SCATTER_LONG * SCATTER_LONG), 1,
		       LONGER_MAX);
}

const char *mqfq_reason_name(enum mqfq_reason reason)
{
	static const char *const names[] = { "start", "quiet", "searching", "found", "changed" };

	return names[reason];
}

static s32 magnitude(s32 value)
{
	return value < 0 ? -value : value;
}

static s64 square(s32 value)
{
	return (s64)value * value;
}

static bool is_full(const struct mqfq_phase *phase)
{
	return phase->waiting >= SATURATED;
}

static bool is_other_size(const struct mqfq_phase *a, const struct mqfq_phase *b)
{
	return magnitude(a->step_log - b->step_log) > SIZE_CHANGED;
}

static void add_phase(struct mqfq_phases *phases, const struct mqfq_phase *phase)
{
	s32 of_phase[] = { phase->units_log, phase->weighed_log,
			   phase->units_log - phase->system_log };
	u32 of, place;

	for (of = UNITS; of <= STAY; of++) {
		s32 *logs = phases->logs[of];

		for (place = phases->count; place && logs[place - 1] < of_phase[of]; place--)
			logs[place] = logs[place - 1];
		logs[place] = of_phase[of];
	}
	phases->count++;
	phases->device_log += phase->device_log;
	phases->system_log += phase->system_log;
	phases->request_log += phase->request_log;
	phases->waiting += phase->waiting;
}

/* The faster half counts: in the slower one a CPU may have been away. */
static u32 counted(const struct mqfq_phases *phases)
{
	return (phases->count + 1) / 2;
}

static s32 mean(const struct mqfq_phases *phases, enum of of)
{
	u32 count = counted(phases), at;
	s64 sum = 0;

	for (at = 0; at < count; at++)
		sum += phases->logs[of][at];
	return div64_s64(sum, count);
}

static s64 squares(const struct mqfq_phases *phases, enum of of)
{
	u32 count = counted(phases), at;
	s32 middle = mean(phases, of);
	s64 sum = 0;

	for (at = 0; at < count; at++)
		sum += square(phases->logs[of][at] - middle);
	return sum;
}

/* The largest less the smallest. */
static u32 range(const struct mqfq_phases *phases, enum of of)
{
	return phases->logs[of][0] - phases->logs[of][phases->count - 1];
}

static s32 earned(const struct mqfq_phases *deep, const struct mqfq_phases *shallow, enum of of)
{
	return mean(deep, of) - mean(shallow, of);
}

/*
 * What the deeper of two depths earns over the other, after its price; @more: before it; @variance of
 * one's phases.
 */
static s32 gain(const struct mqfq_phases *deep, const struct mqfq_phases *shallow, enum of *of,
		s32 *more, s64 *variance)
{
	s32 device[] = { (s32)div64_s64(deep->device_log, deep->count),
			 (s32)div64_s64(shallow->device_log, shallow->count) };
	/* Two requests of the mean size at a time have no price. */
	s32 free = (s32)div64_s64(shallow->request_log, shallow->count) + ONE;
	s32 deeper = device[0] - device[1];
	s32 priced = max_t(s32, device[0], free) - max_t(s32, device[1], free);

	*of = UNITS;
	if (div64_s64(deep->waiting, deep->count) < SATURATED)
		/* Nobody waits at the deeper one: the total time in the system (R4). */
		*of = STAY;
	else if (earned(deep, shallow, UNITS) > earned(deep, shallow, WEIGHED))
		/* More work, whatever a command costs (R3). */
		*of = WEIGHED;
	*more = earned(deep, shallow, *of);
	*variance = div64_s64(SCATTER_WEIGHT * *variance + squares(deep, *of) + squares(shallow, *of),
			      SCATTER_WEIGHT + counted(deep) + counted(shallow) - 2);
	if (deeper < DEEPER_MIN)
		return -NOT_DEEPER;
	return *more - (s32)(((s64)priced * ALPHA) >> 16);
}

/* The gain of so many rounds is sure beyond this, by so many standard errors. */
static u64 limit(u32 rounds, s64 variance, u32 errors)
{
	u64 scatter = max_t(u64, int_sqrt64(max_t(s64, variance, 0)), SCATTER_MIN);

	return div64_u64(errors * scatter * 256, int_sqrt64((u64)((rounds + 1) / 2) << 16)) +
	       (rounds == 1 ? FIRST_ROUND : 0);
}

/* The depth nearest to @depth at which one more request of @step units goes (R1). */
static u32 on_grid(u64 depth, u32 step, u32 depth_max)
{
	depth = clamp_t(u64, depth, 1, depth_max);
	depth = 1 + div64_u64(depth - 1 + step / 2, step) * step;
	return min_t(u64, depth, depth_max);
}

/* The D to try from @depth, at least @least: by @factor, and at least one step; 0: there is none. */
static u32 candidate(u32 depth, u32 factor, bool is_up, u32 step, u32 least, u32 depth_max)
{
	u64 trial;

	if (is_up) {
		trial = max_t(u64, ((u64)depth * factor) >> 16, (u64)depth + step);
		return depth < depth_max ? on_grid(trial, step, depth_max) : 0;
	}
	trial = min_t(u64, div64_u64((u64)depth << 16, factor), depth > step ? depth - step : 0);
	trial = max_t(u32, min_t(u32, on_grid(trial, step, depth_max), depth ? depth - 1 : 0), least);
	return trial < depth ? trial : 0;
}

static void choose(struct mqfq_search *search, u32 depth, u64 now_ns)
{
	if (depth == search->base)
		return;
	search->base = depth;
	search->chosen_ns = now_ns;
	search->refused[0] = 0;
	search->refused[1] = 0;
}

/* D was measured: can a candidate be tried? If not, search->trial is D, which is refused. */
static bool look(struct mqfq_search *search, const struct mqfq_phase *phase, u32 depth, u64 now_ns,
		 u32 *next)
{
	bool full = is_full(phase);
	u32 least = min_t(u32, phase->request_units + 1, search->depth_max), from, trial;

	/* Two requests of the mean size go at a time: every D up to one of them does the same. */
	if (full)
		choose(search, max_t(u32, on_grid(search->base, phase->step, search->depth_max), least),
		       now_ns);
	*next = search->base;
	search->task = MQFQ_LOOK;
	if (!full && (phase->waiting > BOUND_UP || phase->device_units < 2 * (u64)phase->step)) {
		/* Little or changing demand says nothing. */
		search->reason = MQFQ_QUIET;
		return true;
	}
	/* Where nobody waits, only less than what is in use can be tried. */
	search->is_up &= full;
	if (!full)
		search->reason = MQFQ_QUIET;
	else if (search->reason != MQFQ_CHANGED)
		search->reason = MQFQ_SEARCHING;
	from = full ? search->base : min_t(u64, search->base, phase->device_units);
	memset(&search->at_base, 0, sizeof(search->at_base));
	memset(&search->at_trial, 0, sizeof(search->at_trial));
	search->is_fast &= full && !search->is_up;
	trial = candidate(from, search->is_fast ? FACTOR_FAST : factors[search->factor],
			  search->is_up, phase->step, least, search->depth_max);
	if (!trial || trial == search->base || trial == search->refused[search->is_up]) {
		search->trial = search->base;
		return false;
	}
	search->trial = trial;
	if (depth != search->base) {
		/* Brought onto the grid: what was measured is another D. */
		search->task = MQFQ_FIRST;
		return true;
	}
	search->task = MQFQ_TRIAL;
	search->before = *phase;
	*next = trial;
	return true;
}

/* The candidate was refused. True if D is to be held now. */
static bool refuse(struct mqfq_search *search)
{
	if (search->is_fast) {
		/* Too far; by 2 it may yet be right. */
		search->is_fast = false;
		return false;
	}
	if (search->trial != search->base)
		search->refused[search->is_up] = search->trial;
	search->is_up = !search->is_up;
	if (++search->fails < 2)
		return false;
	search->fails = 0;
	if (++search->factor < FACTORS)
		return false;
	search->factor = FACTORS - 1;
	search->reason = MQFQ_FOUND;
	search->refused[0] = 0;
	search->refused[1] = 0;
	search->task = MQFQ_HOLD;
	search->left = search->hold;
	search->others = 0;
	return true;
}

/* Looks, and as long as there is nothing to try, looks the other way or nearer. */
static u32 look_on(struct mqfq_search *search, const struct mqfq_phase *phase, u32 depth,
		   u64 now_ns)
{
	u32 next;

	while (!look(search, phase, depth, now_ns, &next)) {
		if (refuse(search))
			return search->base;
		depth = search->base;
	}
	return next;
}

/* A comparison has ended; @last was measured at D, if it is not NULL. */
static u32 conclude(struct mqfq_search *search, enum mqfq_verdict verdict,
		    const struct mqfq_phase *last, u64 now_ns)
{
	search->task = MQFQ_LOOK;
	if (verdict == MQFQ_BETTER) {
		choose(search, search->trial, now_ns);
		search->fails = 0;
		search->has_found = false;
		search->hold = HOLD;
		search->refused[0] = 0;
		search->refused[1] = 0;
		search->is_fast = !search->is_up && !search->factor;
		return search->base;
	}
	if (verdict == MQFQ_NOT_COMPARABLE) {
		search->is_fast = false;
		return search->base;
	}
	if (refuse(search) || !last)
		return search->base;
	return look_on(search, last, search->base, now_ns);
}

/* D, candidate, D were measured. */
static u32 end_round(struct mqfq_search *search, const struct mqfq_phase *after, u64 now_ns)
{
	struct mqfq_phases *base = &search->at_base, *trial = &search->at_trial;
	enum mqfq_verdict verdict;
	s64 variance = search->variance;
	s32 of_deeper, more;
	bool is_early, is_taken, is_guarded;
	enum of of;
	u32 rounds;

	if (is_other_size(&search->before, after) || is_full(&search->before) != is_full(after))
		return conclude(search, MQFQ_NOT_COMPARABLE, NULL, now_ns);
	if (!base->count)
		add_phase(base, &search->before);
	add_phase(trial, &search->tried);
	add_phase(base, after);
	rounds = trial->count;
	of_deeper = search->is_up ? gain(trial, base, &of, &more, &variance) :
				      gain(base, trial, &of, &more, &variance);
	is_early = rounds < ROUNDS_UP && (search->is_up ? of_deeper > 0 : more < -FIRST_ROUND);
	is_taken = of_deeper < 0 && !search->is_up;
	/* An accident refuses no smaller D where no request waits, and takes none elsewhere. */
	is_early |= rounds < ROUNDS_UP && (is_full(after) ? is_taken : of_deeper > 0) &&
		    (u32)magnitude(of_deeper) <= RANGES * range(base, of);
	is_guarded = is_taken && is_full(after) &&
		     trial->system_log - trial->device_log > (s64)TIGHT * trial->count &&
		     limit(max_t(u32, rounds, ROUNDS_UP), variance, SURE) > DOUBT_MAX;
	if (!is_early && (u64)magnitude(of_deeper) >
	    limit(rounds, variance, of_deeper > 0 || is_guarded ? SURE_DEEPER : SURE)) {
		verdict = (of_deeper > 0) == search->is_up ? MQFQ_BETTER : MQFQ_WORSE;
	} else if (rounds >= rounds_max[search->factor]) {
		/* In doubt the smaller one. */
		verdict = is_taken && !is_guarded ? MQFQ_BETTER : MQFQ_UNSURE;
	} else {
		search->task = MQFQ_TRIAL;
		search->before = *after;
		return search->trial;
	}
	search->variance = variance;
	return conclude(search, verdict, after, now_ns);
}

/* D was measured once more while it is held. */
static u32 watch(struct mqfq_search *search, const struct mqfq_phase *phase, u32 depth, u64 now_ns)
{
	bool full = is_full(phase), is_other;

	if (!search->has_found) {
		search->has_found = true;
		search->found = *phase;
	}
	is_other = is_other_size(phase, &search->found) || full != is_full(&search->found) ||
		   (full && magnitude(phase->units_log - search->found.units_log) > RATE_CHANGED);
	search->others = is_other ? search->others + 1 : 0;
	if (search->others == 2) {
		search->factor = 0;
		search->has_found = false;
		search->hold = HOLD;
		search->is_up = true;
		search->fails = 0;
		search->reason = MQFQ_CHANGED;
		return look_on(search, phase, depth, now_ns);
	}
	if (search->left > 1) {
		search->left--;
		return search->base;
	}
	search->hold = min_t(u32, 2 * search->hold, HOLD_MAX);
	return look_on(search, phase, depth, now_ns);
}

/* Takes in a phase at @depth; returns the D to measure next. */
u32 mqfq_search_learn(struct mqfq_search *search, const struct mqfq_phase *phase, u32 depth,
		      u64 now_ns)
{
	u32 next = search->base;

	search->phases++;
	switch (search->task) {
	case MQFQ_LOOK:
		return look_on(search, phase, depth, now_ns);
	case MQFQ_FIRST:
		search->task = MQFQ_TRIAL;
		search->before = *phase;
		next = search->trial;
		break;
	case MQFQ_TRIAL:
		if (phase->waiting < (search->is_up ? BOUND_UP : BOUND_DOWN))
			/* Deeper than the demand; or shallower, and yet it did not bind. */
			return conclude(search, search->is_up ? MQFQ_WORSE : MQFQ_NOT_COMPARABLE,
					NULL, now_ns);
		search->task = MQFQ_AGAIN;
		search->tried = *phase;
		break;
	case MQFQ_AGAIN:
		return end_round(search, phase, now_ns);
	case MQFQ_HOLD:
		return watch(search, phase, depth, now_ns);
	}
	return next;
}
