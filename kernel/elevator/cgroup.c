// SPDX-License-Identifier: GPL-2.0
/*
 * Flows are cgroups: which flow pays for this bio, and at which weight?
 *
 * A blkcg policy keeps a flow per cgroup and device. io.mqfq.weight takes "N" and "default N" for
 * all devices, "MAJ:MIN N" and "MAJ:MIN default" for one; io.mqfq.stat shows what each has had.
 * Without memory for a flow, or for a cgroup that is being removed, the root cgroup pays.
 */
#include <linux/backing-dev.h>
#include "glue.h"

struct mqfq_cgroup {
	struct blkg_policy_data pd;	/* first */
	struct mqfq_flow flow;
	u32 own_weight;			/* of this device; 0: the cgroup's */
};

struct mqfq_default {
	struct blkcg_policy_data cpd;	/* first */
	u32 weight;
};

static struct blkcg_policy policy;
/* Flows of cgroups that there are. */
static atomic_t flows;

static struct mqfq_cgroup *cgroup_of(struct blkcg_gq *blkg)
{
	return (struct mqfq_cgroup *)blkg_to_pd(blkg, &policy);
}

static struct mqfq_default *default_of(struct blkcg *blkcg)
{
	return (struct mqfq_default *)blkcg_to_cpd(blkcg, &policy);
}

static struct mqfq_flow *flow_or_root(struct mqfq_elevator *e, struct blkcg_gq *blkg)
{
	struct mqfq_cgroup *cgroup = blkg && blkg->q == e->q ? cgroup_of(blkg) : NULL;

	if (!cgroup && e->q->root_blkg)
		cgroup = cgroup_of(e->q->root_blkg);
	return cgroup ? &cgroup->flow : &e->plain;
}

struct mqfq_flow *mqfq_flow_of(struct mqfq_elevator *e, struct bio *bio)
{
	if (!e->has_cgroups)
		return &e->plain;
	return flow_or_root(e, bio ? bio->bi_blkg : NULL);
}

/* Of the task that asks for a tag. Under rcu_read_lock(). */
struct mqfq_flow *mqfq_flow_of_current(struct mqfq_elevator *e)
{
	struct cgroup_subsys_state *css;

	if (!e->has_cgroups)
		return &e->plain;
	css = task_css(current, io_cgrp_id);
	return flow_or_root(e, blkg_lookup(css_to_blkcg(css), e->q));
}

void mqfq_flow_pin(struct mqfq_elevator *e, struct mqfq_flow *flow)
{
	if (flow != &e->plain)
		blkg_get(container_of(flow, struct mqfq_cgroup, flow)->pd.blkg);
}

/* The same of a flow that may be on its way out. Under rcu_read_lock(). */
bool mqfq_flow_try_pin(struct mqfq_elevator *e, struct mqfq_flow *flow)
{
	return flow == &e->plain ||
	       blkg_tryget(container_of(flow, struct mqfq_cgroup, flow)->pd.blkg);
}

void mqfq_flow_unpin(struct mqfq_elevator *e, struct mqfq_flow *flow)
{
	if (flow != &e->plain)
		blkg_put(container_of(flow, struct mqfq_cgroup, flow)->pd.blkg);
}

static void set_weight(struct mqfq_cgroup *cgroup)
{
	u32 weight = cgroup->own_weight ?: default_of(cgroup->pd.blkg->blkcg)->weight;

	WRITE_ONCE(cgroup->flow.weight, weight);
	mqfq_flow_set_weight(&cgroup->flow, (u64)weight << 8);
}

static struct blkcg_policy_data *cpd_alloc(gfp_t gfp)
{
	struct mqfq_default *own = kzalloc(sizeof(*own), gfp);

	if (!own)
		return NULL;
	own->weight = MQFQ_WEIGHT_DEFAULT;
	return &own->cpd;
}

static void cpd_free(struct blkcg_policy_data *cpd)
{
	kfree(cpd);
}

static struct blkg_policy_data *pd_alloc(MQFQ_PD_ALLOC_ARGS)
{
	struct request_queue *queue = mqfq_pd_alloc_queue;
	struct mqfq_cgroup *cgroup = kzalloc_node(sizeof(*cgroup), gfp, queue->node);

	if (!cgroup)
		return NULL;
	/* As many as the elevator has; the number changes only while there is none. */
	if (mqfq_lanes_alloc(&cgroup->flow, queue->nr_hw_queues, gfp)) {
		kfree(cgroup);
		return NULL;
	}
	atomic_inc(&flows);
	return &cgroup->pd;
}

static void pd_init(struct blkg_policy_data *pd)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;
	struct mqfq_elevator *e = pd->blkg->q->elevator->elevator_data;

	mqfq_flow_init(&cgroup->flow, MQFQ_WEIGHT_DEFAULT, mqfq_gvt(&e->s.mind));
	set_weight(cgroup);
}

static void pd_free(struct blkg_policy_data *pd)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;

	/* Under queue_lock when a policy is deactivated, where vfree() may not sleep. */
	kvfree_rcu(cgroup->flow.lanes, rcu);
	kfree(cgroup);
	if (atomic_dec_and_test(&flows))
		wake_up_var(&flows);
}

static u64 show_weight(struct seq_file *sf, struct blkg_policy_data *pd, int off)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;

	return cgroup->own_weight ? __blkg_prfill_u64(sf, pd, cgroup->own_weight) : 0;
}

static int weight_show(struct seq_file *sf, void *v)
{
	struct blkcg *blkcg = css_to_blkcg(seq_css(sf));

	seq_printf(sf, "default %u\n", default_of(blkcg)->weight);
	blkcg_print_blkgs(sf, blkcg, show_weight, &policy, 0, false);
	return 0;
}

static int weight_of(const char *text, u32 *weight)
{
	int error = kstrtou32(text, 0, weight);

	if (error)
		return error;
	return *weight >= MQFQ_WEIGHT_MIN && *weight <= MQFQ_WEIGHT_MAX ? 0 : -ERANGE;
}

static ssize_t write_default(struct blkcg *blkcg, const char *text)
{
	struct blkcg_gq *blkg;
	u32 weight;
	int error = weight_of(text, &weight);

	if (error)
		return error;
	spin_lock_irq(&blkcg->lock);
	default_of(blkcg)->weight = weight;
	hlist_for_each_entry(blkg, &blkcg->blkg_list, blkcg_node)
		if (cgroup_of(blkg))
			set_weight(cgroup_of(blkg));
	spin_unlock_irq(&blkcg->lock);
	return 0;
}

static ssize_t weight_write(struct kernfs_open_file *of, char *buf, size_t count, loff_t off)
{
	struct blkcg *blkcg = css_to_blkcg(of_css(of));
	struct blkg_conf_ctx ctx;
	struct mqfq_cgroup *cgroup;
	u32 weight = 0;
	ssize_t error;
	char *text = strim(buf);

	if (!strncmp(text, "default", 7) && isspace(text[7]))
		text = skip_spaces(text + 7);
	if (!strchr(text, ':')) {
		error = write_default(blkcg, text);
		return error ?: count;
	}
	error = mqfq_conf_open(blkcg, &policy, text, &ctx);
	if (error)
		return error;
	text = strim(ctx.body);
	if (strcmp(text, "default"))
		error = weight_of(text, &weight);
	cgroup = cgroup_of(ctx.blkg);
	if (!error && cgroup) {
		cgroup->own_weight = weight;
		set_weight(cgroup);
	}
	mqfq_conf_close(&ctx);
	return error ?: count;
}

static u64 show_stat(struct seq_file *sf, struct blkg_policy_data *pd, int off)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;
	struct mqfq_elevator *e = pd->blkg->q->elevator->elevator_data;
	const char *name = pd->blkg->q->disk ? bdi_dev_name(pd->blkg->q->disk->bdi) : NULL;
	u64 bytes[2] = {}, done[2] = {}, system_ns = 0, out = 0;
	u32 hctx;

	if (!name)
		return 0;
	for (hctx = 0; hctx < e->s.hctxs; hctx++) {
		struct mqfq_lane *lane = &cgroup->flow.lanes[hctx];

		bytes[0] += READ_ONCE(lane->bytes[0]);
		bytes[1] += READ_ONCE(lane->bytes[1]);
		done[0] += READ_ONCE(lane->done[0]);
		done[1] += READ_ONCE(lane->done[1]);
		system_ns += atomic64_read(&lane->system_ns);
		out += atomic64_read(&lane->requests_out);
	}
	seq_printf(sf, "%s rbytes=%llu wbytes=%llu rios=%llu wios=%llu usec=%llu inflight=%llu weight=%u\n",
		   name, bytes[0], bytes[1], done[0], done[1], div_u64(system_ns, 1000), out,
		   READ_ONCE(cgroup->flow.weight));
	return 0;
}

static int stat_show(struct seq_file *sf, void *v)
{
	blkcg_print_blkgs(sf, css_to_blkcg(seq_css(sf)), show_stat, &policy, 0, false);
	return 0;
}

static struct cftype files[] = {
	{ .name = "mqfq.weight", .seq_show = weight_show, .write = weight_write },
	{ .name = "mqfq.stat", .flags = CFTYPE_NOT_ON_ROOT, .seq_show = stat_show },
	{ }
};

static struct blkcg_policy policy = {
	.dfl_cftypes = files,
	.cpd_alloc_fn = cpd_alloc,
	.cpd_free_fn = cpd_free,
	.pd_alloc_fn = pd_alloc,
	.pd_init_fn = pd_init,
	.pd_free_fn = pd_free,
};

static bool is_registered;

/* Without a free place for a policy, everybody is one flow. */
int mqfq_cgroups_register(void)
{
	int error = blkcg_policy_register(&policy);

	if (error)
		pr_err("mqfq: no cgroup policy, error %d: all requests are one flow\n", error);
	is_registered = !error;
	return 0;
}

void mqfq_cgroups_unregister(void)
{
	if (!is_registered)
		return;
	/* 6.1 frees that of a removed cgroup later, by the policy's own function. */
	wait_var_event(&flows, !atomic_read(&flows));
	blkcg_policy_unregister(&policy);
}

int mqfq_cgroups_activate(struct mqfq_elevator *e)
{
	int error = is_registered ? mqfq_activate(e->q, &policy) : 0;

	e->has_cgroups = is_registered && !error;
	return error;
}

void mqfq_cgroups_refresh(struct mqfq_elevator *e)
{
	u64 gvt = mqfq_gvt(&e->s.mind);
	struct blkcg_gq *blkg;

	mqfq_flow_refresh(&e->plain, gvt);
	if (!e->has_cgroups)
		return;
	spin_lock_irq(&e->q->queue_lock);
	list_for_each_entry(blkg, &e->q->blkg_list, q_node)
		if (cgroup_of(blkg))
			mqfq_flow_refresh(&cgroup_of(blkg)->flow, gvt);
	spin_unlock_irq(&e->q->queue_lock);
}

void mqfq_cgroups_deactivate(struct mqfq_elevator *e)
{
	if (e->has_cgroups)
		mqfq_deactivate(e->q, &policy);
	e->has_cgroups = false;
}
