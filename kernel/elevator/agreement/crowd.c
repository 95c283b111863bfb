// SPDX-License-Identifier: GPL-2.0
/* How do tests in another language hold the slots of processes? Slots, whose flows have lanes. */
#include "process.h"

struct crowd {
	struct mqfq_processes processes;
	struct mqfq_flow flows[MQFQ_PROCESSES];
};

struct crowd *crowd_new(u32 hctxs)
{
	struct crowd *c = kvcalloc(1, sizeof(*c), GFP_KERNEL);
	u32 slot;

	c->processes.flows = c->flows;
	c->processes.hctxs = hctxs;
	for (slot = 0; slot < MQFQ_PROCESSES; slot++)
		mqfq_lanes_alloc(&c->flows[slot], hctxs, GFP_KERNEL);
	return c;
}

void crowd_free(struct crowd *c)
{
	u32 slot;

	for (slot = 0; slot < MQFQ_PROCESSES; slot++)
		mqfq_lanes_free(&c->flows[slot], c->processes.hctxs);
	kvfree(c);
}

u64 crowd_claim(struct crowd *c, u32 number, u64 gvt)
{
	return mqfq_process_claim(&c->processes, number, gvt);
}

u64 crowd_find(struct crowd *c, u32 number)
{
	return mqfq_process_find(&c->processes, number);
}

/* -1: none has that key. */
s32 crowd_slot(struct crowd *c, u64 key)
{
	struct mqfq_flow *flow = mqfq_process_flow(&c->processes, key);

	return flow ? (s32)(flow - c->flows) : -1;
}

/* @by requests more on the account of @slot. */
void crowd_count(struct crowd *c, u32 slot, u32 hctx, s64 by)
{
	atomic64_add(by, &c->flows[slot].lanes[hctx]->requests_out);
}

/* Its finish tag, after it was charged @span from @gvt on. */
u64 crowd_charge(struct crowd *c, u32 slot, u64 span, u64 gvt)
{
	mqfq_flow_refresh(&c->flows[slot], gvt);
	return (u64)atomic64_fetch_add_relaxed(span, &c->flows[slot].finish) + span;
}

u64 crowd_finish(struct crowd *c, u32 slot)
{
	return atomic64_read(&c->flows[slot].finish);
}

u32 crowd_weight(u32 class, u32 level)
{
	return mqfq_process_weight(class, level);
}
