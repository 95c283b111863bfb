/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The elevator of one device, as its files know it.
 */
#ifndef MQFQ_GLUE_H
#define MQFQ_GLUE_H

#include <linux/hash.h>
#include "compat.h"
#include "hierarchy.h"
#include "process.h"
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
	u64 lag;			/* a mean of those that tags limit: find_lag() */
} ____cacheline_aligned_in_smp;

/* Tasks that may be between the limit on tags and a request of their own at one time: log2. */
#define MQFQ_RESERVATIONS_BITS 7

/* A task that has reserved a scheduler tag, until its request is made. */
struct mqfq_reservation {
	struct task_struct *task;	/* NULL: free */
	struct mqfq_lane *lane;
};

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
	/* Whoever has no cgroup on this device, or finds no slot for its process. */
	struct mqfq_flow plain;
	bool by_process;		/* requests are charged to processes from now on */
	struct mqfq_processes processes;
	spinlock_t process_lock;	/* who claims a slot, and the weights of slots */
	unsigned long full_jiffies;	/* the last in which there was no slot */
	atomic_t reserving;		/* reservations whose request is not made yet */
	struct mqfq_reservation reservations[1 << MQFQ_RESERVATIONS_BITS];
};

#ifdef CONFIG_BLK_CGROUP
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
	struct delayed_work free;	/* once no request is left */
};

extern struct blkcg_policy mqfq_policy;

static inline struct mqfq_cgroup *mqfq_cgroup_of(struct blkcg_gq *blkg)
{
	return (struct mqfq_cgroup *)blkg_to_pd(blkg, &mqfq_policy);
}

struct mqfq_flow *mqfq_flow_of_root(struct mqfq_elevator *e);
struct mqfq_flow *mqfq_flow_of_task(struct mqfq_elevator *e);
bool mqfq_cgroup_try_pin(struct mqfq_flow *flow);
void mqfq_cgroup_unpin(struct mqfq_flow *flow);

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

int mqfq_cgroups_register(void);
void mqfq_cgroups_unregister(void);
int mqfq_cgroups_activate(struct mqfq_elevator *e);
void mqfq_cgroups_refresh(struct mqfq_elevator *e);
void mqfq_cgroups_wake(struct mqfq_elevator *e, struct mqfq_flow *flow);
void mqfq_cgroups_deactivate(struct mqfq_elevator *e);
#else
static inline struct mqfq_flow *mqfq_flow_of(struct mqfq_elevator *e, struct bio *bio)
{
	return &e->plain;
}

static inline struct mqfq_flow *mqfq_flow_of_task(struct mqfq_elevator *e)
{
	return &e->plain;
}

static inline bool mqfq_cgroup_try_pin(struct mqfq_flow *flow)
{
	return true;
}

static inline int mqfq_cgroups_register(void)
{
	return 0;
}

static inline int mqfq_cgroups_activate(struct mqfq_elevator *e)
{
	return 0;
}

static inline void mqfq_cgroup_unpin(struct mqfq_flow *flow) { }
static inline void mqfq_cgroups_unregister(void) { }
static inline void mqfq_cgroups_refresh(struct mqfq_elevator *e) { }
static inline void mqfq_cgroups_wake(struct mqfq_elevator *e, struct mqfq_flow *flow) { }
static inline void mqfq_cgroups_deactivate(struct mqfq_elevator *e) { }
#endif

int mqfq_flows_set(struct mqfq_elevator *e, bool by_process);
void mqfq_flows_exit(struct mqfq_elevator *e);
u64 mqfq_key_of_current(struct mqfq_elevator *e);
struct mqfq_flow *mqfq_flow_of_current(struct mqfq_elevator *e, struct bio *bio);
bool mqfq_flow_is_lasting(struct mqfq_elevator *e, struct mqfq_flow *flow);

static inline bool mqfq_by_process(struct mqfq_elevator *e)
{
	/* Acquire: pairs with the release in mqfq_flows_set(). */
	return smp_load_acquire(&e->by_process);
}

void mqfq_kept_save(struct mqfq_elevator *e);
void mqfq_kept_apply(struct mqfq_elevator *e);
void mqfq_kept_exit(void);

extern const struct elv_fs_entry mqfq_attributes[];

#endif
