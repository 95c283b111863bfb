// SPDX-License-Identifier: GPL-2.0
/* D and T, found while a device runs: see tuning.h. */
#include "glue.h"

/* A CPU makes a step after so many completions; after so many for each queue that a step reads. */
#define PERIOD 64
#define PERIOD_PER_QUEUE 4

int mqfq_tuning_init(struct mqfq_elevator *e, u32 depth, u64 window)
{
	struct mqfq_tuning *tuning = &e->tuning;

	spin_lock_init(&tuning->lock);
	tuning->counts = alloc_percpu(struct mqfq_counts);
	if (!tuning->counts)
		return -ENOMEM;
	tuning->period = max_t(u32, PERIOD, PERIOD_PER_QUEUE * e->s.hctxs);
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

/* Words are read while they are written: a sum may be off by what is under way. */
static void read_cpus(struct mqfq_tuning *tuning, struct mqfq_sample *sum)
{
	u64 silent_from_ns = 0, silent_to_ns = sum->now_ns;
	u32 class;
	int cpu;

	for_each_possible_cpu(cpu) {
		struct mqfq_counts *counts = per_cpu_ptr(tuning->counts, cpu);
		u64 completed_ns = READ_ONCE(counts->completed_ns);
		u64 from_ns = READ_ONCE(counts->silent_from_ns);
		u64 to_ns = READ_ONCE(counts->silent_to_ns);

		if (!completed_ns)
			continue;
		for (class = 0; class < MQFQ_CLASSES; class++) {
			sum->work[class].units += READ_ONCE(counts->work[class].units);
			sum->work[class].requests += READ_ONCE(counts->work[class].requests);
		}
		sum->device_unit_ns += READ_ONCE(counts->unit_ns);
		/* The CPU's longest silence, or the one that lasts until now. */
		if (READ_ONCE(counts->epoch) != tuning->epoch ||
		    (s64)(to_ns - from_ns) < (s64)(sum->now_ns - completed_ns)) {
			from_ns = completed_ns;
			to_ns = sum->now_ns;
		}
		/* All were silent in what their silences have in common. */
		silent_from_ns = max(silent_from_ns, from_ns);
		silent_to_ns = min(silent_to_ns, to_ns);
	}
	sum->silence_ns = silent_to_ns > silent_from_ns ? silent_to_ns - silent_from_ns : 0;
}

/* Also returns how many flows wait, as the rule for T counts them. */
static u32 read_queues(struct mqfq_elevator *e, struct mqfq_sample *sum, u64 last_ns)
{
	u64 elapsed_ns = sum->now_ns > last_ns ? sum->now_ns - last_ns : 1;
	u64 units = 0, nobody = 1 << 16, completions_ns = sum->device_unit_ns;
	u32 hctx, flows = 0, queues = 0;

	sum->system_unit_ns = completions_ns;
	for (hctx = 0; hctx < e->s.hctxs; hctx++) {
		struct mqfq_meter *meter = &e->hctxs[hctx].meter;
		u64 waited_ns = READ_ONCE(meter->waited_ns), since_ns = READ_ONCE(meter->since_ns);
		u64 part;

		units += READ_ONCE(meter->units);
		sum->device_unit_ns -= READ_ONCE(meter->unit_ns);
		sum->system_unit_ns -= READ_ONCE(meter->start_unit_ns);
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
	sum->out_units = units - mqfq_units_of(sum);
	/* What is under way may be on one side alone. */
	if ((s64)sum->out_units < 0)
		sum->out_units = 0;
	sum->device_unit_ns += sum->out_units * sum->now_ns;
	sum->system_unit_ns += sum->out_units * sum->now_ns;
	/* One queue is never ahead of itself, whoever is in it. */
	return queues > 1 ? flows : queues;
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
	sum.waiting_ns = tuning->sample.waiting_ns;
	read_cpus(tuning, &sum);
	flows = read_queues(e, &sum, tuning->sample.now_ns);
	tuning->sample = sum;
	put_in_force(e, flows);
	spin_unlock_irqrestore(&tuning->lock, flags);
}

/* D is found from now on, or is @depth. */
void mqfq_tuning_find_depth(struct mqfq_elevator *e, bool finds, u32 depth)
{
	struct mqfq_tuning *tuning = &e->tuning;
	unsigned long flags;

	spin_lock_irqsave(&tuning->lock, flags);
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
