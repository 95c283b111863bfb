/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Flows, the unit of fairness: which interval of virtual time does the next request of this flow
 * get, whichever queue it is in?
 *
 * Source: MQFQ section 2 (tags), section 3.1 (one shared integer per flow). The relaxed form: a
 * queue takes a piece of the flow's virtual time, a lease, and cuts requests from that alone; what
 * it does not use goes back, or becomes credit that the flow's next lease takes first. Proofs:
 * sched/src/flow/account.rs, F1 to F4 and L1 to L4; this is the same arithmetic, to the unit.
 *
 * Virtual time is a point on a circle of 2^64 units: 1,024 are a byte at weight 100. Every tag is a
 * multiple of 64 units, and the fraction is carried to the flow's next request.
 */
#ifndef MQFQ_FLOW_H
#define MQFQ_FLOW_H

#include "shim.h"

#define MQFQ_WEIGHT_MIN 1
#define MQFQ_WEIGHT_DEFAULT 100
#define MQFQ_WEIGHT_MAX 10000

#define MQFQ_UNITS_PER_BYTE 1024ULL
#define MQFQ_GRAIN_SHIFT 6
#define MQFQ_GRAIN BIT_ULL(MQFQ_GRAIN_SHIFT)

/* Largest cost of one request: 1 TiB. */
#define MQFQ_COST_MAX BIT_ULL(40)

/* True if @a lies less than half the circle before @b. */
static inline bool vtime_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static inline u64 vtime_later(u64 a, u64 b)
{
	return vtime_before(a, b) ? b : a;
}

static inline u64 vtime_earlier(u64 a, u64 b)
{
	return vtime_before(b, a) ? b : a;
}

/* A piece of one flow's virtual time that one queue holds. */
struct mqfq_lease {
	u64 next;	/* start tag of the next request */
	u64 end;
	u64 refund;	/* units that the next requests need not take */
	u64 carry;	/* below one grain, in 2^-32ths of a unit */
};

struct mqfq_interval {
	u64 start;
	u64 span;
};

struct mqfq_flow {
	/* Written with each charge that is not from a lease. */
	atomic64_t finish;	/* end of the last interval taken */
	atomic64_t carry;	/* only the low bits, below a grain, mean something */
	atomic64_t credit;	/* leased, not used, before finish */
	atomic64_t skipped;	/* virtual time that has passed finish */
	/* Only read on the path: units of virtual time per cost, in 2^-32ths. */
	u64 rate ____cacheline_aligned_in_smp;
	u32 weight;
	u32 part;		/* weight at which it competes now, in 65536ths */
	bool is_idle;		/* in a group, and did not want anything lately */
	struct mqfq_lane **lanes;	/* one per hardware queue: mqfq_lanes_alloc() */
};

void mqfq_flow_init(struct mqfq_flow *flow, u32 weight, u64 start);
void mqfq_flow_set_weight(struct mqfq_flow *flow, u64 weight_fixed);
u64 mqfq_weight_rate(u64 weight_fixed);
void mqfq_flow_set_rate(struct mqfq_flow *flow, u64 effective);
u64 mqfq_flow_effective(struct mqfq_flow *flow);
u64 mqfq_flow_skipped(struct mqfq_flow *flow, u64 gvt, bool *is_ahead);
struct mqfq_interval mqfq_charge_first(struct mqfq_flow *flow, u64 cost, u64 gvt,
				       struct mqfq_lease *lease);
struct mqfq_interval mqfq_charge_leased(struct mqfq_flow *flow, u64 cost, u64 gvt,
					struct mqfq_lease *lease, u64 length);
void mqfq_give_back(struct mqfq_flow *flow, struct mqfq_lease *lease);
void mqfq_charge_more(struct mqfq_flow *flow, u64 cost);
void mqfq_flow_refresh(struct mqfq_flow *flow, u64 point);
u64 mqfq_flow_add_carry(struct mqfq_flow *flow, u64 fraction);

/* What a rate leaves below a grain. */
#define MQFQ_FRACTION_BITS (32 + MQFQ_GRAIN_SHIFT)
#define MQFQ_FRACTION_MASK ((1ULL << MQFQ_FRACTION_BITS) - 1)

/* cost / weight in whole grains; what is left in @fraction. */
static inline u64 mqfq_flow_grains(struct mqfq_flow *flow, u64 cost, u64 *fraction)
{
	u64 rate = READ_ONCE(flow->rate);

	*fraction = (cost * rate) & MQFQ_FRACTION_MASK;
	return mul_u64_u64_shr(cost, rate, MQFQ_FRACTION_BITS);
}

/*
 * The interval, from *@start on, of a request that will most likely be gone before another one of
 * its flow comes to the queue: no lease is opened. Returns its length. 0: it needs a lease, being
 * shorter than a grain; nothing has happened.
 */
static inline u64 mqfq_charge_alone(struct mqfq_flow *flow, u64 cost, u64 gvt, u64 *start)
{
	u64 fraction, span = mqfq_flow_grains(flow, cost, &fraction);

	if (!span)
		return 0;
	if (fraction)
		span += mqfq_flow_add_carry(flow, fraction);
	span <<= MQFQ_GRAIN_SHIFT;
	if (vtime_before((u64)atomic64_read(&flow->finish), gvt))
		mqfq_flow_refresh(flow, gvt);
	*start = (u64)atomic64_fetch_add_relaxed(span, &flow->finish);
	return span;
}

#endif
