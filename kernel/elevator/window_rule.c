// SPDX-License-Identifier: GPL-2.0
/* The window that follows D: see window_rule.h. */
#include "window_rule.h"

#define LEAST_BYTES (16 << 10)
#define MOST_BYTES (256 << 10)
#define UNIT_BYTES 4096

/* Of a flow, in the mean; and the part of a difference by which the mean moves in a step. */
#define PARTS 4096
#define MEAN_STEPS 32

/* Begins with this T, moved into the rule's range. */
void mqfq_window_rule_init(struct mqfq_window_rule *rule, u64 window_bytes)
{
	rule->waiting_parts = 0;
	rule->window_bytes = 1ULL << ilog2(clamp_t(u64, window_bytes, LEAST_BYTES, MOST_BYTES));
}

/* D is @depth units, 1 or more, and @waiting flows have requests that wait. Returns T, bytes. */
u64 mqfq_window_rule_step(struct mqfq_window_rule *rule, u32 depth, u32 waiting)
{
	u64 now = (u64)waiting * PARTS, window = rule->window_bytes, quotient, wanted;

	if (!waiting)
		return window;
	if (rule->waiting_parts)
		rule->waiting_parts += (s64)(now - rule->waiting_parts) / MEAN_STEPS;
	else
		rule->waiting_parts = now;
	quotient = div64_u64((u64)depth * UNIT_BYTES * PARTS, rule->waiting_parts);
	wanted = 1ULL << ilog2(clamp_t(u64, quotient, LEAST_BYTES, MOST_BYTES));
	if (quotient < window - window / 4 || quotient >= 2 * window + window / 2)
		rule->window_bytes = wanted;
	return rule->window_bytes;
}
