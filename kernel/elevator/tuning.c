// SPDX-License-Identifier: GPL-2.0
/* D and T, found while a device runs: see tuning.h. */
#include "glue.h"

/* A CPU makes a step after so many completions; after so many for each queue that a step reads. */
#define PERIOD 128
#define PERIOD_PER_QUEUE 4

/* And so long after the last step, whoever made it: a phase of so many completions is enough. */
#define STEP_NS (4 * NSEC_PER_MSEC)

/* How often words that change are read again, before a step is left to a later completion. */
#define TRIES 8

int mqfq_tuning_init(struct mqfq_elevator *e, u32 depth, u64 window)
{
	struct mqfq_tuning *tuning = &e->tuning;

	spin_lock_init(&tuning->lock);
	tuning->counts = alloc_percpu(struct mqfq_counts);
	if (!tuning->counts)
		return -ENOMEM;
	tuning->period_mask = max_t(u32, PERIOD,
				    roundup_pow_of_two(PERIOD_PER_QUEUE * e->s.hctxs)) - 1;
	mqfq_controller_init(&tuning->controller, depth, MQFQ_DEPTH_MAX);
	mqfq_window_rule_init(&tuning->rule, window / MQFQ_UNITS_PER_BYTE);
	tuning->finds_depth = true;
	tuning->finds_window = true;
	return 0;
}

void mqfq_tuning_exit(struct mqfq_elevator *e)
{
	free_percpu(e->tuning.counts);
}

/* Under the queue's lock: its first request waits for a token from now on, or no longer. */
void mqfq_tuning_waits(struct mqfq_meter *meter, bool waits)
{
	u64 now = READ_ONCE(meter->clock_ns);

	if (meter->is_waiting && now > meter->since_ns)
		WRITE_ONCE(meter->waited_ns, meter->waited_ns + now - meter->since_ns);
	WRITE_ONCE(meter->since_ns, now);
	WRITE_ONCE(meter->is_waiting, waits);
}

/* What a CPU has counted, as it was at one moment. False: it went on counting. */
static bool read_cpu(const struct mqfq_counts *counts, struct mqfq_counts *copy)
{
	u32 tries, done;

	for (tries = 0; tries < TRIES; tries++) {
		done = READ_ONCE(counts->done);
		smp_rmb(); /* pairs with count() */
		/* What is torn is not used. */
		*copy = data_race(*counts);
		smp_rmb(); /* pairs with count() */
		/* Whoever had begun by now was done before the copy. */
		if (READ_ONCE(counts->begun) == done)
			return true;
	}
	return false;
}

/* The same of what a queue has dispatched. */
static bool read_meter(const struct mqfq_meter *meter, struct mqfq_meter *copy)
{
	u32 tries;

	for (tries = 0; tries < TRIES; tries++) {
		copy->units = READ_ONCE(meter->units);
		smp_rmb(); /* pairs with charge() */
		copy->unit_ns = READ_ONCE(meter->unit_ns);
		copy->start_unit_ns = READ_ONCE(meter->start_unit_ns);
		smp_rmb(); /* pairs with charge() */
		if (READ_ONCE(meter->begun) == copy->units)
			return true;
	}
	return false;
}

static bool read_cpus(struct mqfq_tuning *tuning, struct mqfq_sample *sum)
{
	u64 silent_from_ns = 0, silent_to_ns = sum->now_ns;
	u32 class;
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct mqfq_counts *of_cpu = per_cpu_ptr(tuning->counts, cpu);
		struct mqfq_counts counts;
		u64 from_ns, to_ns;

		if (!READ_ONCE(of_cpu->completed_ns))
			continue;
		if (!read_cpu(of_cpu, &counts))
			return false;
		for (class = 0; class < MQFQ_CLASSES; class++) {
			sum->work[class].units += counts.work[class].units;
			sum->work[class].requests += counts.work[class].requests;
		}
		sum->device_unit_ns += counts.unit_ns;
		from_ns = counts.silent_from_ns;
		to_ns = counts.silent_to_ns;
		/* The CPU's longest silence, or the one that lasts until now. */
		if (counts.epoch != tuning->epoch ||
		    (s64)(to_ns - from_ns) < (s64)(sum->now_ns - counts.completed_ns)) {
			from_ns = counts.completed_ns;
			to_ns = sum->now_ns;
		}
		/* All were silent in what their silences have in common. */
		silent_from_ns = max(silent_from_ns, from_ns);
		silent_to_ns = min(silent_to_ns, to_ns);
	}
	sum->silence_ns = silent_to_ns > silent_from_ns ? silent_to_ns - silent_from_ns : 0;
	return true;
}

/* Also tells how many flows wait, as the rule for T counts them. */
static bool read_queues(struct mqfq_elevator *e, struct mqfq_sample *sum, u64 last_ns,
			u32 *waiting)
{
	u64 elapsed_ns = sum->now_ns > last_ns ? sum->now_ns - last_ns : 1;
	u64 units = 0, nobody = 1 << 16, completions_ns = sum->device_unit_ns;
	u32 hctx, flows = 0, queues = 0;
	bool is_whole = true;

	sum->system_unit_ns = completions_ns;
	for (hctx = 0; hctx < e->s.hctxs; hctx++) {
		struct mqfq_meter *meter = &e->hctxs[hctx].meter, copy = {};
		u64 waited_ns = READ_ONCE(meter->waited_ns), since_ns = READ_ONCE(meter->since_ns);
		u64 part;

		is_whole &= read_meter(meter, &copy);
		units += copy.units;
		sum->device_unit_ns -= copy.unit_ns;
		sum->system_unit_ns -= copy.start_unit_ns;
		if (READ_ONCE(e->s.queues[hctx].waiting)) {
			u32 lanes = READ_ONCE(e->s.queues[hctx].stage.lanes);

			flows += lanes;
			queues += !!lanes;
		}
		if (READ_ONCE(meter->is_waiting) && sum->now_ns > since_ns)
			waited_ns += sum->now_ns - since_ns;
		/* At least one waits, as if queues waited independently: 1 - (1 - w1)(1 - w2)... */
		if ((s64)(waited_ns - meter->seen_ns) > 0) {
			part = min_t(u64, waited_ns - meter->seen_ns, elapsed_ns);
			part = mul_u64_u64_div_u64(part, 1 << 16, elapsed_ns);
			nobody = (nobody * ((1 << 16) - part)) >> 16;
			meter->seen_ns = waited_ns;
		}
	}
	sum->waiting_ns += elapsed_ns - mul_u64_u64_shr(elapsed_ns, nobody, 16);
	sum->out_units = units - mqfq_work_of(sum).units;
	/* Of a request that is under way only the dispatch may be seen. */
	if ((s64)sum->out_units < 0)
		sum->out_units = 0;
	sum->device_unit_ns += sum->out_units * sum->now_ns;
	sum->system_unit_ns += sum->out_units * sum->now_ns;
	/* One queue is never ahead of itself, whoever is in it. */
	*waiting = queues > 1 ? flows : queues;
	return is_whole;
}

static void put_in_force(struct mqfq_elevator *e, u32 flows)
{
	struct mqfq_tuning *tuning = &e->tuning;
	u32 depth = READ_ONCE(e->s.tokens.depth);

	if (tuning->finds_depth) {
		depth = mqfq_controller_step(&tuning->controller, &tuning->sample);
		WRITE_ONCE(tuning->epoch, tuning->controller.epoch);
		if (depth != e->s.tokens.depth)
			mqfq_set_depth(&e->s, depth);
		/* T follows D as it was chosen: a candidate is in force for moments. */
		depth = tuning->controller.search.base;
	}
	if (tuning->finds_window) {
		u64 window = mqfq_window_rule_step(&tuning->rule, depth, flows);

		window *= MQFQ_UNITS_PER_BYTE;
		if (window != e->s.wheel.window)
			mqfq_set_window(&e->s, window);
	}
}

/* In any context. Nobody waits: whoever finds the lock taken leaves it to its holder. */
void mqfq_tuning_step(struct mqfq_elevator *e, u64 now)
{
	struct mqfq_tuning *tuning = &e->tuning;
	struct mqfq_sample sum = { .now_ns = now };
	unsigned long flags;
	u32 flows;

	if (!spin_trylock_irqsave(&tuning->lock, flags))
		return;
	if ((s64)(now - tuning->sample.now_ns) < STEP_NS)
		goto out;
	sum.waiting_ns = tuning->sample.waiting_ns;
	if (!read_cpus(tuning, &sum))
		goto out;
	if (!read_queues(e, &sum, tuning->sample.now_ns, &flows)) {
		/* What was waited until now has been seen. */
		tuning->sample.waiting_ns = sum.waiting_ns;
		tuning->sample.now_ns = sum.now_ns;
		goto out;
	}
	tuning->sample = sum;
	put_in_force(e, flows);
out:
	spin_unlock_irqrestore(&tuning->lock, flags);
}

/* D is found from now on, or is @depth; 0: as it was chosen, not what is being tried just now. */
void mqfq_tuning_find_depth(struct mqfq_elevator *e, bool finds, u32 depth)
{
	struct mqfq_tuning *tuning = &e->tuning;
	unsigned long flags;

	spin_lock_irqsave(&tuning->lock, flags);
	if (!depth)
		depth = tuning->finds_depth ? tuning->controller.search.base : e->s.tokens.depth;
	if (finds && !tuning->finds_depth)
		mqfq_controller_init(&tuning->controller, e->s.tokens.depth, MQFQ_DEPTH_MAX);
	WRITE_ONCE(tuning->finds_depth, finds);
	if (!finds)
		mqfq_set_depth(&e->s, depth);
	spin_unlock_irqrestore(&tuning->lock, flags);
}

/* T is found from now on, or is @window. */
void mqfq_tuning_find_window(struct mqfq_elevator *e, bool finds, u64 window)
{
	struct mqfq_tuning *tuning = &e->tuning;
	unsigned long flags;

	spin_lock_irqsave(&tuning->lock, flags);
	if (finds && !tuning->finds_window)
		mqfq_window_rule_init(&tuning->rule, e->s.wheel.window / MQFQ_UNITS_PER_BYTE);
	WRITE_ONCE(tuning->finds_window, finds);
	if (!finds)
		mqfq_set_window(&e->s, window);
	spin_unlock_irqrestore(&tuning->lock, flags);
}
