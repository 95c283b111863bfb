// SPDX-License-Identifier: GPL-2.0
/*
 * Samples, and the rate, depth in use and time in the system between two of them: see depth.h and
 * sched/src/tune/depth/{log,sample}.rs.
 */
#include "depth.h"

#define ONE 65536

/* Rounded down to a 65536th. Of 0 it is that of 1. Squaring gives one bit after the other. */
s32 mqfq_log2(u64 value)
{
	u32 whole = ilog2(value | !value), bit, fraction = 0;
	/* The value over 2^whole, in [1, 2), with 63 bits behind the point. */
	u64 mantissa = (value | !value) << (63 - whole);

	for (bit = ONE / 2; bit; bit >>= 1) {
		u64 half = mul_u64_u64_shr(mantissa, mantissa, 64);

		/* Half of the square, in [1/2, 2): from 1 on the next bit is set. */
		if (half >> 63) {
			fraction |= bit;
			mantissa = half;
		} else {
			mantissa = mul_u64_u64_shr(mantissa, mantissa, 63);
		}
	}
	return (s32)(whole << 16 | fraction);
}

/* Of all classes. */
struct mqfq_work mqfq_work_of(const struct mqfq_sample *sample)
{
	struct mqfq_work sum = {};
	u32 class;

	for (class = 0; class < MQFQ_CLASSES; class++) {
		sum.units += sample->work[class].units;
		sum.requests += sample->work[class].requests;
	}
	return sum;
}

/* A reading takes what is out on the device to stay there; the next one may have less: that is nothing. */
static u64 grown(u64 from, u64 to)
{
	return (s64)(to - from) >= 0 ? to - from : 0;
}

void mqfq_span_between(struct mqfq_span *span, const struct mqfq_sample *from,
		       const struct mqfq_sample *to)
{
	struct mqfq_work before = mqfq_work_of(from), after = mqfq_work_of(to);

	span->elapsed_ns = to->now_ns > from->now_ns ? to->now_ns - from->now_ns : 1;
	span->units = after.units - before.units;
	span->requests = after.requests - before.requests;
	span->device_unit_ns = grown(from->device_unit_ns, to->device_unit_ns);
	span->system_unit_ns = to->system_unit_ns - from->system_unit_ns;
	span->waiting_ns = to->waiting_ns - from->waiting_ns;
}

/* Mean units of a request, rounded, at most the largest request's. */
static u32 mean_of(u64 units, u64 requests)
{
	requests = max_t(u64, requests, 1);
	return min_t(u64, div64_u64(units + requests / 2, requests), 1 << (MQFQ_CLASSES - 1));
}

void mqfq_phase_of(struct mqfq_phase *phase, const struct mqfq_span *span, u32 step)
{
	s32 time_log = mqfq_log2(span->elapsed_ns);

	phase->units_log = mqfq_log2(span->units) - time_log;
	phase->weighed_log = mqfq_log2(span->units + span->requests) - time_log;
	phase->device_log = mqfq_log2(span->device_unit_ns) - time_log;
	phase->request_log = mqfq_log2(span->units) - mqfq_log2(span->requests);
	phase->request_units = mean_of(span->units, span->requests);
	phase->system_log = mqfq_log2(span->system_unit_ns) - time_log;
	phase->device_units = div64_u64(span->device_unit_ns, span->elapsed_ns);
	phase->waiting = mul_u64_u64_div_u64(min_t(u64, span->waiting_ns, span->elapsed_ns), ONE,
					     span->elapsed_ns);
	phase->step = step;
	phase->step_log = mqfq_log2(step);
}

void mqfq_sizes_init(struct mqfq_sizes *sizes)
{
	u32 class;

	memset(sizes, 0, sizeof(*sizes));
	for (class = 0; class < MQFQ_CLASSES; class++)
		sizes->mean[class] = 1;
	sizes->step = 1;
}

/* Takes in what completed between two samples; a quarter of the average is new. */
void mqfq_sizes_take(struct mqfq_sizes *sizes, const struct mqfq_sample *from,
		     const struct mqfq_sample *to)
{
	u64 units = max_t(u64, mqfq_work_of(to).units - mqfq_work_of(from).units, 1);
	s64 total = 0, above = 0;
	u32 class;

	for (class = 0; class < MQFQ_CLASSES; class++) {
		u64 done = to->work[class].units - from->work[class].units;
		u64 requests = to->work[class].requests - from->work[class].requests;
		s64 part = mul_u64_u64_div_u64(min_t(u64, done, units), ONE, units);

		if (requests)
			sizes->mean[class] = clamp_t(u64, div64_u64(done + requests - 1, requests),
						     1, ONE);
		sizes->share[class] += (part - sizes->share[class]) / 4;
		total += sizes->share[class];
	}
	while (class--) {
		above += sizes->share[class];
		if (above * 4 >= total && sizes->share[class] > 0) {
			sizes->step = sizes->mean[class];
			return;
		}
	}
}
