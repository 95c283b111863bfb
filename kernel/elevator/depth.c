// SPDX-License-Identifier: GPL-2.0
/* When is a measurement at this D over? See depth.h and sched/src/tune/depth/controller.rs. */
#include "depth.h"

/* A phase has this many requests at least, and so many times the units of a large one. */
#define REQUESTS_MIN 128
#define LARGE_MIN 32

/* It is thrown away if it was silent for one part in this many, at most so often in a row. */
#define SILENT_PART 4
#define VOIDS_MAX 3

/* A controller that starts at D = @depth, 1 to @depth_max. */
void mqfq_controller_init(struct mqfq_controller *controller, u32 depth, u32 depth_max)
{
	memset(controller, 0, sizeof(*controller));
	controller->depth = depth;
	mqfq_sizes_init(&controller->sizes);
	mqfq_search_init(&controller->search, depth, depth_max);
}

/* Until 1.25 times of what is out has completed. */
static void settle(struct mqfq_controller *controller, const struct mqfq_sample *sample)
{
	u64 out = max_t(u64, sample->out_units, 1);

	controller->stage = MQFQ_SETTLING;
	controller->until_units = mqfq_work_of(sample).units + out + out / 4 + !!(out % 4);
}

static void measure(struct mqfq_controller *controller, const struct mqfq_sample *sample)
{
	controller->epoch++;
	controller->stage = MQFQ_MEASURING;
	controller->from = *sample;
}

/* True if units * elapsed is at least twice the integral of what was out: two rounds of it. */
static bool has_gone_round(const struct mqfq_span *span)
{
	u64 high = mul_u64_u64_shr(span->units, span->elapsed_ns, 64);
	u64 out_high = span->device_unit_ns >> 63;

	if (high != out_high)
		return high > out_high;
	return span->units * span->elapsed_ns >= span->device_unit_ns << 1;
}

static void end(struct mqfq_controller *controller, const struct mqfq_span *span,
		const struct mqfq_sample *sample)
{
	struct mqfq_phase phase;
	u32 depth;

	if (sample->silence_ns > span->elapsed_ns / SILENT_PART && controller->voids < VOIDS_MAX) {
		controller->voids++;
		measure(controller, sample);
		return;
	}
	controller->voids = 0;
	mqfq_phase_of(&phase, span, controller->sizes.step);
	depth = mqfq_search_learn(&controller->search, &phase, controller->depth, sample->now_ns);
	if (depth == controller->depth) {
		measure(controller, sample);
		return;
	}
	controller->depth = depth;
	settle(controller, sample);
}

/*
 * Takes in what is known of the device now; returns the D to be in force from now on. To be called
 * after completions; calls without news do nothing.
 */
u32 mqfq_controller_step(struct mqfq_controller *controller, const struct mqfq_sample *sample)
{
	u64 longer = mqfq_search_longer(&controller->search);
	struct mqfq_span span;

	switch (controller->stage) {
	case MQFQ_NEW:
		settle(controller, sample);
		break;
	case MQFQ_SETTLING:
		if ((s64)(mqfq_work_of(sample).units - controller->until_units) >= 0)
			measure(controller, sample);
		break;
	case MQFQ_MEASURING:
		mqfq_span_between(&span, &controller->from, sample);
		if (span.requests < longer * REQUESTS_MIN ||
		    span.units < longer * LARGE_MIN * controller->sizes.step ||
		    !has_gone_round(&span))
			break;
		mqfq_sizes_take(&controller->sizes, &controller->from, sample);
		end(controller, &span, sample);
		break;
	}
	return controller->depth;
}
