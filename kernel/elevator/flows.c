// SPDX-License-Identifier: GPL-2.0
/*
 * Whose is a request: a cgroup's, or a process's? Slots of processes (process.h) are made when they
 * are asked for first, and are there until the elevator goes.
 */
#include <linux/ioprio.h>
#include "tags.h"

static int processes_init(struct mqfq_elevator *e)
{
	struct mqfq_flow *flows = kvcalloc(MQFQ_PROCESSES, sizeof(*flows), GFP_NOIO);
	u32 slot;

	for (slot = 0; flows && slot < MQFQ_PROCESSES; slot++) {
		if (!mqfq_lanes_alloc(&flows[slot], e->s.hctxs, GFP_NOIO))
			continue;
		while (slot--)
			mqfq_lanes_free(&flows[slot], e->s.hctxs);
		kvfree(flows);
		flows = NULL;
	}
	if (!flows)
		return -ENOMEM;
	e->processes.hctxs = e->s.hctxs;
	e->processes.flows = flows;
	return 0;
}

void mqfq_flows_exit(struct mqfq_elevator *e)
{
	u32 slot;

	for (slot = 0; e->processes.flows && slot < MQFQ_PROCESSES; slot++)
		mqfq_lanes_free(&e->processes.flows[slot], e->s.hctxs);
	kvfree(e->processes.flows);
}

/* Whose are requests from now on: processes', or cgroups'? One caller at a time. */
int mqfq_flows_set(struct mqfq_elevator *e, bool by_process)
{
	int error = 0;

	if (!by_process && !e->has_cgroups)
		return -EOPNOTSUPP;
	if (by_process && !e->processes.flows)
		error = processes_init(e);
	if (!error)
		/* Release: pairs with the acquire of whoever looks for a slot. */
		smp_store_release(&e->by_process, by_process);
	return error;
}

/* Of the process that asks. Kernel threads are one flow, with those that find no slot. */
u64 mqfq_key_of_current(struct mqfq_elevator *e)
{
	u32 number = current->tgid;
	u64 key;

	if (current->flags & PF_KTHREAD)
		return MQFQ_REST;
	key = mqfq_process_find(&e->processes, number);
	/* When all slots were busy just now, that is not looked at for each request. */
	if (key || time_before_eq(jiffies, READ_ONCE(e->full_jiffies)))
		return key ?: MQFQ_REST;
	spin_lock(&e->process_lock);
	key = mqfq_process_claim(&e->processes, number, mqfq_gvt(&e->s.mind));
	if (!key)
		WRITE_ONCE(e->full_jiffies, jiffies);
	spin_unlock(&e->process_lock);
	return key ?: MQFQ_REST;
}

/* @bio: NULL, or one that the process submits. Under rcu_read_lock(). */
struct mqfq_flow *mqfq_flow_of_current(struct mqfq_elevator *e, struct bio *bio)
{
	if (mqfq_by_process(e))
		return mqfq_process_flow(&e->processes, mqfq_key_of_current(e)) ?: &e->plain;
	return bio ? mqfq_flow_of(e, bio) : mqfq_flow_of_task(e);
}

/* A flow that is there as long as the elevator is. */
bool mqfq_flow_is_lasting(struct mqfq_elevator *e, struct mqfq_flow *flow)
{
	struct mqfq_flow *flows = e->processes.flows;

	return flow == &e->plain || !e->has_cgroups ||
	       (flows && flow >= flows && flow < flows + MQFQ_PROCESSES);
}

/* The weight of a process is that of the request that it inserted last. */
static void follow_priority(struct mqfq_elevator *e, struct mqfq_flow *flow, struct bio *bio)
{
	u32 priority = bio ? bio->bi_ioprio : 0, weight;

	weight = mqfq_process_weight(IOPRIO_PRIO_CLASS(priority), IOPRIO_PRIO_LEVEL(priority));
	if (likely(READ_ONCE(flow->weight) == weight))
		return;
	spin_lock(&e->process_lock);
	WRITE_ONCE(flow->weight, weight);
	mqfq_flow_set_weight(flow, (u64)weight << 8);
	spin_unlock(&e->process_lock);
}

/* Takes the request in on the account of the process whose key it has. Returns its lane. */
struct mqfq_lane *mqfq_hold_tag_of_process(struct mqfq_elevator *e, struct mqfq_hctx *own,
					   struct request *rq)
{
	u64 key = (u64)rq->elv.priv[1];
	struct mqfq_flow *flow = mqfq_process_flow(&e->processes, key);
	struct mqfq_lane *lane = e->plain.lanes[own->index];

	rq->elv.priv[1] = NULL;
	if (!flow) {
		mqfq_hold_tag(own, lane);
		return lane;
	}
	/* Fully ordered: pairs with take_slot(). */
	mqfq_hold_tag(own, flow->lanes[own->index]);
	if (likely(mqfq_process_flow(&e->processes, key))) {
		follow_priority(e, flow, rq->bio);
		return flow->lanes[own->index];
	}
	/* It slept so long that the slot is another's. */
	mqfq_hold_tag(own, lane);
	preempt_disable();
	mqfq_give_tag_back(own, flow->lanes[own->index]);
	return lane;
}
