/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The elevator of one device, as its files know it.
 */
#ifndef MQFQ_GLUE_H
#define MQFQ_GLUE_H

#include "compat.h"
#include "scheduler.h"
#include "tuning.h"

/* What the glue keeps of a hardware queue. */
struct mqfq_hctx {
	spinlock_t lock;		/* of the queue in the core, and of what follows */
	/* Granted when inserted; requeued and passed through, which are charged nothing. */
	struct list_head urgent;
	struct blk_mq_hw_ctx *hctx;
	struct mqfq_meter meter;
	atomic64_t share_out;		/* weights of the flows that hold scheduler tags here */
} ____cacheline_aligned_in_smp;

struct mqfq_elevator {
	struct mqfq s;			/* first */
	struct request_queue *q;
	struct mqfq_hctx *hctxs;
	bool has_cgroups;
	struct mqfq_tuning tuning;
	struct delayed_work refresh;
	/* Whoever has no cgroup on this device. */
	struct mqfq_flow plain;
};

struct mqfq_flow *mqfq_flow_of(struct mqfq_elevator *e, struct bio *bio);
struct mqfq_flow *mqfq_flow_of_current(struct mqfq_elevator *e);
void mqfq_flow_pin(struct mqfq_elevator *e, struct mqfq_flow *flow);
bool mqfq_flow_try_pin(struct mqfq_elevator *e, struct mqfq_flow *flow);
void mqfq_flow_unpin(struct mqfq_elevator *e, struct mqfq_flow *flow);
int mqfq_lanes_alloc(struct mqfq_flow *flow, u32 hctxs, gfp_t gfp);

int mqfq_cgroups_register(void);
void mqfq_cgroups_unregister(void);
int mqfq_cgroups_activate(struct mqfq_elevator *e);
void mqfq_cgroups_refresh(struct mqfq_elevator *e);
void mqfq_cgroups_deactivate(struct mqfq_elevator *e);

extern const struct elv_fs_entry mqfq_attributes[];

#endif
