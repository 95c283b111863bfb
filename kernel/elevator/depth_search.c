// SPDX-License-Identifier: GPL-2.0
/*
 * Which D is better, and when is that sure? See depth.h and sched/src/depth/search.rs, whose text
 * has the reasons: pairs of phases at D and at a candidate, until the mean of their differences is
 * surer than their scatter.
 *
 *   look -> trial -> again -> sure? -no-> trial ...
 *    ^                          | better: D = trial
 *    +--------------------------+ worse: the other direction, then a smaller step, then hold
 */
#include "depth.h"

#define ONE 65536

/* A deeper queue must earn 0.08 of its relative depth. Logarithms of 1.02, 1.05, 1.28 and 1.49. */
#define ALPHA 5243
#define DEEPER_MIN 1891
#define NOT_DEEPER 4727
#define RATE_CHANGED 23637
#define SIZE_CHANGED 37819

/* Parts of the time in which somebody waits: always; bound by a smaller D, by a larger one. */
#define SATURATED (ONE / 5 * 4)
#define BOUND_DOWN (ONE / 2)
#define BOUND_UP (ONE / 5)

/* Standard errors; the smallest scatter, and what the first pair must show; before any pair. */
#define Z 2
#define SCATTER_MIN 189
#define FIRST_PAIR 1891
#define SCATTER_START 2836

/* Between D and a candidate: 2, its root, 1.25; after a right step down by 2 it is 4. */
static const u32 factors[] = { 131072, 92682, 81920 };
static const u32 pairs_max[] = { 12, 24, 64 };
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
	search->scatter.variance = SCATTER_START * SCATTER_START;
	search->scatter.seen = 4;
	search->is_up = true;
	search->hold = HOLD;
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

/* What the deeper of two phases earns over the other, after the price of its depth. */
static s32 gain(const struct mqfq_phase *deep, const struct mqfq_phase *shallow)
{
	s32 deeper = deep->device_log - shallow->device_log, earned;

	if (deeper < DEEPER_MIN)
		return -NOT_DEEPER;
	if (is_full(deep))
		/* More work, whatever a command costs (R3). */
		earned = min_t(s32, deep->units_log - shallow->units_log,
			       deep->weighed_log - shallow->weighed_log);
	else
		/* Nobody waits at the deeper one: the total time in the system (R4). */
		earned = (shallow->system_log - shallow->units_log) -
			 (deep->system_log - deep->units_log);
	return earned - (s32)(((s64)deeper * ALPHA) >> 16);
}

/* The depth nearest to @depth at which one more request of @step units goes (R1). */
static u32 on_grid(u64 depth, u32 step, u32 depth_max)
{
	depth = clamp_t(u64, depth, 1, depth_max);
	depth = 1 + div64_u64(depth - 1 + step / 2, step) * step;
	return min_t(u64, depth, depth_max);
}

/* The D to try from @depth: by @factor, and at least one step; 0: there is none. */
static u32 candidate(u32 depth, u32 factor, bool is_up, u32 step, u32 depth_max)
{
	u64 trial;

	if (is_up) {
		trial = max_t(u64, ((u64)depth * factor) >> 16, (u64)depth + step);
		return depth < depth_max ? on_grid(trial, step, depth_max) : 0;
	}
	trial = min_t(u64, div64_u64((u64)depth << 16, factor), depth > step ? depth - step : 0);
	return min_t(u32, on_grid(trial, step, depth_max), depth ? depth - 1 : 0);
}

static void add_pair(struct mqfq_search *search, s32 gained)
{
	if (!search->pairs.count) {
		search->pairs.least = gained;
		search->pairs.most = gained;
	}
	search->pairs.least = min_t(s32, search->pairs.least, gained);
	search->pairs.most = max_t(s32, search->pairs.most, gained);
	search->pairs.count++;
	search->pairs.sum += gained;
	search->pairs.last = gained;
}

/* Of more than four the best and the worst are left out: they may be an accident. */
static s32 mean_of_pairs(const struct mqfq_search *search)
{
	s32 count = search->pairs.count;

	if (count <= 4)
		return count ? search->pairs.sum / count : 0;
	return (search->pairs.sum - search->pairs.least - search->pairs.most) / (count - 2);
}

/* Takes in a pair: its halves differ by @within, and it lies @off the mean. */
static void scatter_take(struct mqfq_search *search, s32 within, s32 off)
{
	s64 seen = max_t(s64, square(within) / 4, square(off));

	search->scatter.seen += search->scatter.seen < ~0U;
	search->scatter.variance += div64_s64(seen - search->scatter.variance,
					      min_t(u32, search->scatter.seen, 20));
}

/* The mean of so many pairs is sure beyond this. */
static u64 scatter_limit(const struct mqfq_search *search)
{
	u32 pairs = search->pairs.count;
	u64 variance = max_t(s64, search->scatter.variance, 0);
	u64 scatter = max_t(u64, int_sqrt64(variance), SCATTER_MIN);

	return div64_u64(Z * scatter * 256, int_sqrt64((u64)pairs << 16)) +
	       (pairs == 1 ? FIRST_PAIR : 0);
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
	u32 from, trial;

	if (full)
		choose(search, on_grid(search->base, phase->step, search->depth_max), now_ns);
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
	memset(&search->pairs, 0, sizeof(search->pairs));
	search->is_fast &= full && !search->is_up;
	trial = candidate(from, search->is_fast ? FACTOR_FAST : factors[search->factor],
			  search->is_up, phase->step, search->depth_max);
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
static u32 pair(struct mqfq_search *search, const struct mqfq_phase *after, u64 now_ns)
{
	const struct mqfq_phase *before = &search->before, *trial = &search->tried;
	enum mqfq_verdict verdict;
	s32 first, second, mean;

	if (is_other_size(before, after) || is_full(before) != is_full(after))
		return conclude(search, MQFQ_NOT_COMPARABLE, NULL, now_ns);
	first = search->is_up ? gain(trial, before) : -gain(before, trial);
	second = search->is_up ? gain(trial, after) : -gain(after, trial);
	add_pair(search, (first + second) / 2);
	mean = mean_of_pairs(search);
	scatter_take(search, first - second, search->pairs.last - mean);
	if ((u64)magnitude(mean) > scatter_limit(search)) {
		verdict = mean > 0 ? MQFQ_BETTER : MQFQ_WORSE;
	} else if (search->pairs.count >= pairs_max[search->factor]) {
		/* In doubt the smaller one. */
		verdict = mean > 0 && !search->is_up ? MQFQ_BETTER : MQFQ_UNSURE;
	} else {
		search->task = MQFQ_TRIAL;
		search->before = *after;
		return search->trial;
	}
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
		return pair(search, phase, now_ns);
	case MQFQ_HOLD:
		return watch(search, phase, depth, now_ns);
	}
	return next;
}
