/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The elevator of one device, as its files know it.
 */
#ifndef MQFQ_GLUE_H
#define MQFQ_GLUE_H

#include "compat.h"
#include "hierarchy.h"
#include "scheduler.h"
#include "tuning.h"

/* What the glue keeps of a hardware queue. */
struct mqfq_hctx {
	spinlock_t lock;		/* of the queue in the core, and of what follows */
	/* Granted when inserted; requeued and passed through, which are charged nothing. */
	struct request *granted, **granted_end;	/* by rq_next */
	struct blk_mq_hw_ctx *hctx;
	struct mqfq_queue *queue;	/* in the core */
	u32 index;
	struct mqfq_meter meter;
	struct mqfq_hctx *account;	/* whose next two count: its own, or the first of all */
	atomic_t tags_out;		/* of the scheduler, by all flows */
	atomic64_t share_out;		/* weights of the flows that hold scheduler tags here */
} ____cacheline_aligned_in_smp;

struct mqfq_elevator {
	struct mqfq s;			/* first */
	struct request_queue *q;
	struct mqfq_hctx *hctxs;
	bool has_cgroups;
	u64 id;				/* no other one has had it */
	struct mqfq_tuning tuning;
	struct delayed_work refresh;
	/* Cgroups in cgroups: their weights follow who wants service. Taken with interrupts off. */
	spinlock_t tree_lock;
	struct mqfq_tree tree;
	struct delayed_work balance;
	/* Whoever has no cgroup on this device. */
	struct mqfq_flow plain;
};

/* A cgroup on one device, kept by a blkcg policy. */
struct mqfq_cgroup {
	struct blkg_policy_data pd;	/* first */
	struct mqfq_flow flow;
	struct mqfq_node node;		/* while the cgroup is there */
	struct mqfq_elevator *e;
	u64 of;				/* that elevator's id: it may be gone before */
	bool is_in_tree;
	u32 hctxs;
	u32 own_weight;			/* of this device; 0: the cgroup's */
};

extern struct blkcg_policy mqfq_policy;

static inline struct mqfq_cgroup *mqfq_cgroup_of(struct blkcg_gq *blkg)
{
	return (struct mqfq_cgroup *)blkg_to_pd(blkg, &mqfq_policy);
}

struct mqfq_flow *mqfq_flow_of_root(struct mqfq_elevator *e);
struct mqfq_flow *mqfq_flow_of_current(struct mqfq_elevator *e);
bool mqfq_flow_try_pin(struct mqfq_elevator *e, struct mqfq_flow *flow);

static inline struct mqfq_flow *mqfq_flow_of_blkg(struct mqfq_elevator *e, struct blkcg_gq *blkg)
{
	struct mqfq_cgroup *cgroup = blkg ? mqfq_cgroup_of(blkg) : NULL;

	/* Of another device, or of one that this device had: 6.1 lets it outlive its elevator. */
	return likely(cgroup && cgroup->of == e->id) ? &cgroup->flow : mqfq_flow_of_root(e);
}

static inline struct mqfq_flow *mqfq_flow_of(struct mqfq_elevator *e, struct bio *bio)
{
	if (!e->has_cgroups)
		return &e->plain;
	return mqfq_flow_of_blkg(e, bio ? bio->bi_blkg : NULL);
}

static inline void mqfq_flow_unpin(struct mqfq_elevator *e, struct mqfq_flow *flow)
{
	if (flow != &e->plain)
		blkg_put(container_of(flow, struct mqfq_cgroup, flow)->pd.blkg);
}

int mqfq_lanes_alloc(struct mqfq_flow *flow, u32 hctxs, gfp_t gfp);

int mqfq_cgroups_register(void);
void mqfq_cgroups_unregister(void);
int mqfq_cgroups_activate(struct mqfq_elevator *e);
void mqfq_cgroups_refresh(struct mqfq_elevator *e);
void mqfq_cgroups_wake(struct mqfq_elevator *e, struct mqfq_flow *flow);
void mqfq_cgroups_deactivate(struct mqfq_elevator *e);

extern const struct elv_fs_entry mqfq_attributes[];

#endif
