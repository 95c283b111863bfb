// SPDX-License-Identifier: GPL-2.0
/*
 * Flows: see flow.h. Orderings: relaxed throughout. Each word is only ever changed by an atomic
 * read-modify-write and no other memory is published through it; submissions that are ordered by
 * happens-before are ordered in `finish` by coherence (loom models: sched/src/flow/account/loom_tests.rs).
 */
#include "flow.h"

/* The rate of a weight in 256ths: UNITS_PER_BYTE * 100 / weight, in 2^-32ths, to nearest. */
u64 mqfq_weight_rate(u64 weight_fixed)
{
	u64 numerator = (MQFQ_UNITS_PER_BYTE * MQFQ_WEIGHT_DEFAULT) << (32 + 8);

	return div64_u64(numerator + weight_fixed / 2, weight_fixed);
}

/* @weight_fixed: in 256ths of a weight, more than 0. From the next request on. */
void mqfq_flow_set_weight(struct mqfq_flow *flow, u64 weight_fixed)
{
	WRITE_ONCE(flow->rate, mqfq_weight_rate(weight_fixed));
	WRITE_ONCE(flow->part, min_t(u64, weight_fixed << 8, ~0U));
}

/* The same of an effective weight in 2^-32ths, which is 1/128 at least. */
void mqfq_flow_set_rate(struct mqfq_flow *flow, u64 effective)
{
	u64 at_weight_1 = (MQFQ_UNITS_PER_BYTE * MQFQ_WEIGHT_DEFAULT) << 32, rate;

	effective = max_t(u64, effective, 1ULL << 25);
	rate = mul_u64_u64_div_u64(at_weight_1, 1ULL << 32, effective);
	/* Charges on other CPUs read it: not written if it is so. */
	if (READ_ONCE(flow->rate) == rate)
		return;
	WRITE_ONCE(flow->rate, rate);
	WRITE_ONCE(flow->part, effective >> 16);
}

/* The weight at which it competes, in 2^-32ths. */
u64 mqfq_flow_effective(struct mqfq_flow *flow)
{
	u64 at_weight_1 = (MQFQ_UNITS_PER_BYTE * MQFQ_WEIGHT_DEFAULT) << 32;

	return mul_u64_u64_div_u64(at_weight_1, 1ULL << 32, READ_ONCE(flow->rate));
}

void mqfq_flow_init(struct mqfq_flow *flow, u32 weight, u64 start)
{
	atomic64_set(&flow->finish, start & ~(MQFQ_GRAIN - 1));
	atomic64_set(&flow->carry, 0);
	atomic64_set(&flow->credit, 0);
	atomic64_set(&flow->skipped, 0);
	flow->is_idle = false;
	flow->weight = weight;
	mqfq_flow_set_weight(flow, (u64)weight << 8);
}

/* Keeps a fraction back; returns how many grains are full now, 0 or 1. */
u64 mqfq_flow_add_carry(struct mqfq_flow *flow, u64 fraction)
{
	u64 before = (u64)atomic64_fetch_add_relaxed(fraction, &flow->carry) & MQFQ_FRACTION_MASK;

	return (before + fraction) >> MQFQ_FRACTION_BITS;
}

/*
 * finish := later(finish, point). If that moves it, the flow was idle and has no credit (I7). Also
 * keeps an idle flow comparable (F4): to be called before virtual time has gone half the circle.
 */
void mqfq_flow_refresh(struct mqfq_flow *flow, u64 point)
{
	s64 seen = atomic64_read(&flow->finish);

	while (vtime_before((u64)seen, point)) {
		if (atomic64_try_cmpxchg_relaxed(&flow->finish, &seen, point)) {
			atomic64_add(point - (u64)seen, &flow->skipped);
			if (atomic64_read(&flow->credit))
				atomic64_set(&flow->credit, 0);
			return;
		}
	}
}

static struct mqfq_interval cut(struct mqfq_lease *lease, u64 span)
{
	struct mqfq_interval interval = { lease->next, span };

	lease->next += span;
	return interval;
}

/* The next interval of a flow that has nothing in the queue, and a lease for those that follow. */
struct mqfq_interval mqfq_charge_first(struct mqfq_flow *flow, u64 cost, u64 gvt,
				       struct mqfq_lease *lease)
{
	u64 fraction, span = mqfq_flow_grains(flow, cost, &fraction), taken;

	if (fraction)
		span += mqfq_flow_add_carry(flow, fraction);
	span <<= MQFQ_GRAIN_SHIFT;
	taken = max_t(u64, span, MQFQ_GRAIN);
	mqfq_flow_refresh(flow, gvt);
	lease->next = (u64)atomic64_fetch_add_relaxed(taken, &flow->finish);
	lease->end = lease->next + taken;
	lease->refund = 0;
	lease->carry = 0;
	return cut(lease, span);
}

static u64 take_credit(struct mqfq_flow *flow, u64 wanted)
{
	s64 have = atomic64_read(&flow->credit);

	while (have > 0 && wanted > 0) {
		u64 taken = min_t(u64, have, wanted);

		if (atomic64_try_cmpxchg_relaxed(&flow->credit, &have, have - (s64)taken))
			return taken;
	}
	return 0;
}

/* Brings what is in hand to @length, from the flow's credit and then from its axis. */
static void renew(struct mqfq_flow *flow, struct mqfq_lease *lease, u64 length, u64 gvt)
{
	u64 left = lease->end - lease->next, wanted = length - left - lease->refund, credit, start;

	mqfq_flow_refresh(flow, gvt);
	/* At least a grain of the axis (L3). */
	credit = take_credit(flow, wanted - MQFQ_GRAIN);
	lease->refund += credit;
	start = (u64)atomic64_fetch_add_relaxed(wanted - credit, &flow->finish);
	if (start != lease->end) {
		/* Others have taken since: what was left is a hole, refunded at once. */
		lease->refund += left;
		lease->next = start;
	}
	lease->end = start + wanted - credit;
}

/* The same of a flow that has a request in the queue, out of the queue's lease of @length. */
struct mqfq_interval mqfq_charge_leased(struct mqfq_flow *flow, u64 cost, u64 gvt,
					struct mqfq_lease *lease, u64 length)
{
	u64 fraction, span = mqfq_flow_grains(flow, cost, &fraction), refunded;

	lease->carry += fraction;
	span += lease->carry >> MQFQ_FRACTION_BITS;
	lease->carry &= MQFQ_FRACTION_MASK;
	span <<= MQFQ_GRAIN_SHIFT;
	if (vtime_before(lease->next, gvt)) {
		/* A part that virtual time has passed is a hole (F1). */
		lease->refund += min_t(u64, lease->end - lease->next, gvt - lease->next);
		lease->next = gvt;
		lease->end = vtime_later(lease->end, gvt);
	}
	if (lease->end - lease->next + lease->refund < span)
		renew(flow, lease, max_t(u64, span, length), gvt);
	refunded = min_t(u64, lease->refund, span);
	lease->refund -= refunded;
	return cut(lease, span - refunded);
}

/* The flow has left the queue that holds @lease: the unused part goes back. */
void mqfq_give_back(struct mqfq_flow *flow, struct mqfq_lease *lease)
{
	u64 left, credit;
	s64 end;

	if (lease->carry) {
		u64 span = mqfq_flow_add_carry(flow, lease->carry) << MQFQ_GRAIN_SHIFT;

		if (lease->refund >= span)
			lease->refund -= span;
		else if (lease->end - lease->next >= span)
			lease->next += span;
		else
			atomic64_add(span, &flow->finish);
	}
	left = lease->end - lease->next;
	credit = lease->refund + left;
	end = (s64)lease->end;
	/* If the exchange succeeds, nobody holds anything of the flow that lies behind `next`. */
	if (left && atomic64_try_cmpxchg_relaxed(&flow->finish, &end, lease->next))
		credit -= left;
	if (credit)
		atomic64_add(credit, &flow->credit);
	memset(lease, 0, sizeof(*lease));
}

/* A request grew by merging after it was charged: the flow's next interval begins later. */
void mqfq_charge_more(struct mqfq_flow *flow, u64 cost)
{
	u64 fraction, span = mqfq_flow_grains(flow, cost, &fraction);

	span += mqfq_flow_add_carry(flow, fraction);
	atomic64_add(span << MQFQ_GRAIN_SHIFT, &flow->finish);
}

/*
 * Virtual time that has ever passed the flow's finish tag. *@is_ahead: that tag is later than
 * virtual time now.
 */
u64 mqfq_flow_skipped(struct mqfq_flow *flow, u64 gvt, bool *is_ahead)
{
	mqfq_flow_refresh(flow, gvt);
	*is_ahead = vtime_before(gvt, (u64)atomic64_read(&flow->finish));
	return atomic64_read(&flow->skipped);
}
