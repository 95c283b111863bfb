// SPDX-License-Identifier: GPL-2.0
/*
 * Flows are cgroups: which flow pays for this bio, and at which weight?
 *
 * A blkcg policy keeps a flow per cgroup and device. io.mqfq.weight takes "N" and "default N" for
 * all devices, "MAJ:MIN N" and "MAJ:MIN default" for one; io.mqfq.stat shows what each has had.
 * Without memory for a flow, or for a cgroup that is being removed, the nearest one above pays.
 */
#include <linux/backing-dev.h>
#include "glue.h"

/* Weight of a cgroup on one device, which outlives the device's elevator. */
struct weight_of_device {
	struct list_head list;
	char name[DISK_NAME_LEN];
	u32 weight;
};

struct mqfq_default {
	struct blkcg_policy_data cpd;	/* first */
	u32 weight;
	struct list_head devices;	/* struct weight_of_device; devices_lock */
};

static DEFINE_SPINLOCK(devices_lock);

/* Flows of cgroups that there are. */
static atomic_t flows;

/* Runs free_work(). */
static struct workqueue_struct *free_queue;

/* Elevators that there have been. */
static atomic64_t elevators;

static struct mqfq_default *default_of(struct blkcg *blkcg)
{
	return (struct mqfq_default *)blkcg_to_cpd(blkcg, &mqfq_policy);
}

struct mqfq_flow *mqfq_flow_of_root(struct mqfq_elevator *e)
{
	struct mqfq_cgroup *cgroup = e->q->root_blkg ? mqfq_cgroup_of(e->q->root_blkg) : NULL;

	return cgroup ? &cgroup->flow : &e->plain;
}

/* Of the task that asks for a tag. Under rcu_read_lock(). */
struct mqfq_flow *mqfq_flow_of_task(struct mqfq_elevator *e)
{
	struct cgroup_subsys_state *css;

	if (!e->has_cgroups)
		return &e->plain;
	css = task_css(current, io_cgrp_id);
	return mqfq_flow_of_blkg(e, blkg_lookup(css_to_blkcg(css), e->q));
}

/* Pins a flow that may be on its way out. Under rcu_read_lock(). */
bool mqfq_cgroup_try_pin(struct mqfq_flow *flow)
{
	return blkg_tryget(container_of(flow, struct mqfq_cgroup, flow)->pd.blkg);
}

void mqfq_cgroup_unpin(struct mqfq_flow *flow)
{
	blkg_put(container_of(flow, struct mqfq_cgroup, flow)->pd.blkg);
}

static u32 weight_of_cgroup(struct mqfq_cgroup *cgroup)
{
	return cgroup->own_weight ?: default_of(cgroup->pd.blkg->blkcg)->weight;
}

static void set_weight(struct mqfq_cgroup *cgroup)
{
	struct mqfq_elevator *e = cgroup->e;
	unsigned long flags;
	u32 weight;

	/* pd_online() looks by itself. */
	if (!cgroup->is_in_tree)
		return;
	spin_lock_irqsave(&e->tree_lock, flags);
	/* Here: of two writers, the later one has seen what both wrote. */
	weight = weight_of_cgroup(cgroup);
	WRITE_ONCE(cgroup->flow.weight, weight);
	mqfq_tree_set_weight(&e->tree, &cgroup->node, weight);
	spin_unlock_irqrestore(&e->tree_lock, flags);
}

static struct blkcg_policy_data *cpd_alloc(gfp_t gfp)
{
	struct mqfq_default *own = kzalloc(sizeof(*own), gfp);

	if (!own)
		return NULL;
	own->weight = MQFQ_WEIGHT_DEFAULT;
	INIT_LIST_HEAD(&own->devices);
	return &own->cpd;
}

static void cpd_free(struct blkcg_policy_data *cpd)
{
	struct mqfq_default *own = (struct mqfq_default *)cpd;
	struct weight_of_device *one, *next;

	list_for_each_entry_safe(one, next, &own->devices, list)
		kfree(one);
	kfree(own);
}

static struct weight_of_device *find_device(struct mqfq_default *own, const char *name)
{
	struct weight_of_device *one;

	list_for_each_entry(one, &own->devices, list)
		if (!strcmp(one->name, name))
			return one;
	return NULL;
}

/* The cgroup's weight on the device, 0 if it has none of its own. */
static u32 kept_weight(struct blkcg_gq *blkg)
{
	struct weight_of_device *one;
	unsigned long flags;
	u32 weight = 0;

	if (!blkg->q->disk)
		return 0;
	spin_lock_irqsave(&devices_lock, flags);
	one = find_device(default_of(blkg->blkcg), blkg->q->disk->disk_name);
	if (one)
		weight = one->weight;
	spin_unlock_irqrestore(&devices_lock, flags);
	return weight;
}

/* Keeps @weight in @spare, or takes the weight back if it is 0. Returns what is to be freed. */
static struct weight_of_device *keep_weight(struct blkcg_gq *blkg, u32 weight,
					    struct weight_of_device *spare)
{
	struct mqfq_default *own = default_of(blkg->blkcg);
	struct weight_of_device *one;
	unsigned long flags;

	if (!blkg->q->disk)
		return spare;
	spin_lock_irqsave(&devices_lock, flags);
	one = find_device(own, blkg->q->disk->disk_name);
	if (!one && weight) {
		one = spare;
		spare = NULL;
		strscpy(one->name, blkg->q->disk->disk_name, sizeof(one->name));
		list_add(&one->list, &own->devices);
	}
	if (one)
		one->weight = weight;
	spin_unlock_irqrestore(&devices_lock, flags);
	return spare;
}

static void free_work(struct work_struct *work);

static struct blkg_policy_data *pd_alloc(MQFQ_PD_ALLOC_ARGS)
{
	struct request_queue *q = MQFQ_PD_ALLOC_QUEUE;
	struct mqfq_cgroup *cgroup = kzalloc_node(sizeof(*cgroup), gfp, q->node);

	/* As many as the elevator has; the number changes only while there is none. */
	if (!cgroup || mqfq_lanes_alloc(&cgroup->flow, q->nr_hw_queues, gfp)) {
		kfree(cgroup);
		pr_warn_ratelimited("mqfq: no memory for a cgroup's flow, its parent pays for now\n");
		return NULL;
	}
	cgroup->hctxs = q->nr_hw_queues;
	INIT_DELAYED_WORK(&cgroup->free, free_work);
	atomic_inc(&flows);
	return &cgroup->pd;
}

static void pd_init(struct blkg_policy_data *pd)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;
	struct mqfq_elevator *e = pd->blkg->q->elevator->elevator_data;

	cgroup->e = e;
	cgroup->of = e->id;
	mqfq_flow_init(&cgroup->flow, weight_of_cgroup(cgroup), mqfq_gvt(&e->s.mind));
}

/* Under queue_lock, parents before their children. What is in the root competes with the top. */
static void pd_online(struct blkg_policy_data *pd)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;
	struct blkcg_gq *above = pd->blkg->parent;
	struct mqfq_cgroup *parent = above && above->parent ? mqfq_cgroup_of(above) : NULL;
	struct mqfq_elevator *e = cgroup->e;
	unsigned long flags;

	if (parent && !parent->is_in_tree)
		parent = NULL;
	cgroup->own_weight = kept_weight(pd->blkg);
	/* Under the cgroup's lock: its default may have changed since pd_init(). */
	cgroup->flow.weight = weight_of_cgroup(cgroup);
	spin_lock_irqsave(&e->tree_lock, flags);
	mqfq_tree_add(&e->tree, &cgroup->node, parent ? &parent->node : NULL, &cgroup->flow,
		      cgroup->flow.weight);
	spin_unlock_irqrestore(&e->tree_lock, flags);
	cgroup->is_in_tree = true;
}

/* Its requests may still come, and compete at the weight that it had. */
static void pd_offline(struct blkg_policy_data *pd)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;
	struct mqfq_elevator *e = cgroup->e;
	unsigned long flags;

	if (!cgroup->is_in_tree)
		return;
	cgroup->is_in_tree = false;
	spin_lock_irqsave(&e->tree_lock, flags);
	mqfq_tree_remove(&e->tree, &cgroup->node);
	spin_unlock_irqrestore(&e->tree_lock, flags);
}

/* No bio of the cgroup is left, but requests whose bios have ended may not be through yet. */
static bool holds_tags(struct mqfq_cgroup *cgroup)
{
	u32 hctx;

	/* Acquire: pairs with give_tag_back(), after which the flow is not looked at. */
	for (hctx = 0; hctx < cgroup->hctxs; hctx++)
		if (atomic64_read_acquire(&cgroup->flow.lanes[hctx]->requests_out))
			return true;
	return false;
}

static void free_now(struct mqfq_cgroup *cgroup)
{
	mqfq_lanes_free_later(&cgroup->flow, cgroup->hctxs);
	kfree(cgroup);
	if (atomic_dec_and_test(&flows))
		wake_up_var(&flows);
}

/* Frees what pd_free() could not. Its blkg is gone; requests only know lanes and their flow. */
static void free_work(struct work_struct *work)
{
	struct mqfq_cgroup *cgroup = container_of(to_delayed_work(work), struct mqfq_cgroup, free);

	if (holds_tags(cgroup))
		queue_delayed_work(free_queue, &cgroup->free, 1);
	else
		free_now(cgroup);
}

static void pd_free(struct blkg_policy_data *pd)
{
	struct mqfq_cgroup *cgroup = (struct mqfq_cgroup *)pd;

	/* One that was removed before the elevator came is taken in with it, and only freed. */
	pd_offline(pd);
	/*
	 * The caller may hold blkcg_mutex, which others wait for, so the last requests are waited
	 * for by a worker. Under queue_lock, when a policy is deactivated, there are none.
	 */
	if (holds_tags(cgroup))
		queue_delayed_work(free_queue, &cgroup->free, 1);
	else
		free_now(cgroup);
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
	blkcg_print_blkgs(sf, blkcg, show_weight, &mqfq_policy, 0, false);
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
		if (mqfq_cgroup_of(blkg))
			set_weight(mqfq_cgroup_of(blkg));
	spin_unlock_irq(&blkcg->lock);
	return 0;
}

static ssize_t weight_write(struct kernfs_open_file *of, char *buf, size_t count, loff_t off)
{
	struct blkcg *blkcg = css_to_blkcg(of_css(of));
	struct blkg_conf_ctx ctx;
	struct mqfq_cgroup *cgroup;
	struct weight_of_device *spare;
	u32 weight = 0;
	ssize_t error;
	char *text = strim(buf);

	if (!strncmp(text, "default", 7) && isspace(text[7]))
		text = skip_spaces(text + 7);
	if (!strchr(text, ':')) {
		error = write_default(blkcg, text);
		return error ?: count;
	}
	spare = kzalloc(sizeof(*spare), GFP_KERNEL);
	if (!spare)
		return -ENOMEM;
	error = mqfq_conf_open(blkcg, &mqfq_policy, text, &ctx);
	if (error)
		goto out;
	text = strim(ctx.body);
	if (strcmp(text, "default"))
		error = weight_of(text, &weight);
	cgroup = mqfq_cgroup_of(ctx.blkg);
	if (!error && cgroup) {
		spare = keep_weight(ctx.blkg, weight, spare);
		cgroup->own_weight = weight;
		set_weight(cgroup);
	}
	mqfq_conf_close(&ctx);
out:
	kfree(spare);
	return error ?: count;
}

/* Often enough that a share follows within some hundredths of a second. */
#define BALANCE_JIFFIES (HZ / 100 ?: 1)

/* Who competes has been counted lately. Each call has the lock for a piece of that only. */
static bool count(struct mqfq_elevator *e)
{
	unsigned long flags;
	bool is_counted;

	spin_lock_irqsave(&e->tree_lock, flags);
	is_counted = mqfq_tree_count(&e->tree, mqfq_gvt(&e->s.mind), jiffies, BALANCE_JIFFIES);
	spin_unlock_irqrestore(&e->tree_lock, flags);
	return is_counted;
}

static void show_stat(struct seq_file *sf, struct mqfq_cgroup *cgroup)
{
	struct request_queue *q = cgroup->pd.blkg->q;
	u64 bytes[2] = {}, done[2] = {}, system_ns = 0, out = 0;
	u32 hctx, part;

	if (!q->disk)
		return;
	for (hctx = 0; hctx < cgroup->hctxs; hctx++) {
		struct mqfq_lane *lane = cgroup->flow.lanes[hctx];

		bytes[0] += READ_ONCE(lane->bytes[0]);
		bytes[1] += READ_ONCE(lane->bytes[1]);
		done[0] += READ_ONCE(lane->done[0]);
		done[1] += READ_ONCE(lane->done[1]);
		system_ns += atomic64_read(&lane->system_ns);
		out += atomic64_read(&lane->requests_out);
	}
	part = mqfq_tree_entitlement(&cgroup->e->tree, &cgroup->node, mqfq_gvt(&cgroup->e->s.mind));
	seq_printf(sf, "%s rbytes=%llu wbytes=%llu rios=%llu wios=%llu usec=%llu inflight=%llu weight=%u entitlement=%u.%02u\n",
		   bdi_dev_name(q->disk->bdi), bytes[0], bytes[1], done[0], done[1],
		   div_u64(system_ns, 1000), out, READ_ONCE(cgroup->flow.weight), part / 100,
		   part % 100);
}

/*
 * True if the line of a device has been shown, or there is none. A queue's locks are taken for a
 * piece of the work, however many cgroups there are, and given back before the next.
 */
static bool try_show_stat(struct seq_file *sf, struct blkcg_gq *blkg)
{
	struct mqfq_cgroup *cgroup = NULL;
	struct request_queue *q = blkg->q;
	bool is_shown = true;

	spin_lock_irq(&q->queue_lock);
	if (test_bit(mqfq_policy.plid, q->blkcg_pols))
		cgroup = mqfq_cgroup_of(blkg);
	if (cgroup && cgroup->of == ((struct mqfq_elevator *)q->elevator->elevator_data)->id) {
		is_shown = count(cgroup->e);
		if (is_shown)
			show_stat(sf, cgroup);
	}
	spin_unlock_irq(&q->queue_lock);
	return is_shown;
}

static int stat_show(struct seq_file *sf, void *v)
{
	struct blkcg *blkcg = css_to_blkcg(seq_css(sf));
	struct blkcg_gq *blkg;

	rcu_read_lock();
	hlist_for_each_entry_rcu(blkg, &blkcg->blkg_list, blkcg_node)
		while (!try_show_stat(sf, blkg))
			cpu_relax();
	rcu_read_unlock();
	return 0;
}

static struct cftype files[] = {
	{ .name = "mqfq.weight", .seq_show = weight_show, .write = weight_write },
	{ .name = "mqfq.stat", .flags = CFTYPE_NOT_ON_ROOT, .seq_show = stat_show },
	{ }
};

struct blkcg_policy mqfq_policy = {
	.dfl_cftypes = files,
	.cpd_alloc_fn = cpd_alloc,
	.cpd_free_fn = cpd_free,
	.pd_alloc_fn = pd_alloc,
	.pd_init_fn = pd_init,
	.pd_online_fn = pd_online,
	.pd_offline_fn = pd_offline,
	.pd_free_fn = pd_free,
};

static bool is_registered;

static void balance(struct work_struct *work)
{
	struct delayed_work *own = to_delayed_work(work);
	struct mqfq_elevator *e = container_of(own, struct mqfq_elevator, balance);
	unsigned long flags;
	bool goes_on;

	spin_lock_irqsave(&e->tree_lock, flags);
	goes_on = mqfq_tree_step(&e->tree, mqfq_gvt(&e->s.mind));
	spin_unlock_irqrestore(&e->tree_lock, flags);
	if (goes_on)
		schedule_delayed_work(&e->balance, BALANCE_JIFFIES);
}

/* A cgroup in another one submits after it was idle. Under the lock of a queue. */
void mqfq_cgroups_wake(struct mqfq_elevator *e, struct mqfq_flow *flow)
{
	struct mqfq_cgroup *cgroup = container_of(flow, struct mqfq_cgroup, flow);
	unsigned long flags;

	spin_lock_irqsave(&e->tree_lock, flags);
	mqfq_tree_wake(&e->tree, &cgroup->node, mqfq_gvt(&e->s.mind));
	spin_unlock_irqrestore(&e->tree_lock, flags);
	schedule_delayed_work(&e->balance, 1);
}

/* Without a free place for a policy, flows are processes. */
int mqfq_cgroups_register(void)
{
	int error = -ENOMEM;

	free_queue = alloc_workqueue("mqfq_free", WQ_UNBOUND, 0);
	if (free_queue)
		error = blkcg_policy_register(&mqfq_policy);
	if (error)
		pr_err("mqfq: no cgroup policy, error %d: flows are processes\n", error);
	is_registered = !error;
	return 0;
}

void mqfq_cgroups_unregister(void)
{
	if (!is_registered)
		goto out;
	/* 6.1 frees that of a removed cgroup later, by the policy's own function. */
	wait_var_event(&flows, !atomic_read(&flows));
	/* Its caller, which may be preempted there, is out of pd_free(). */
	synchronize_rcu_tasks();
	blkcg_policy_unregister(&mqfq_policy);
out:
	/* A worker that freed the last flow is out of free_work(). */
	if (free_queue)
		destroy_workqueue(free_queue);
}

int mqfq_cgroups_activate(struct mqfq_elevator *e)
{
	int error;

	e->id = atomic64_inc_return(&elevators);
	spin_lock_init(&e->tree_lock);
	mqfq_tree_init(&e->tree);
	INIT_DELAYED_WORK(&e->balance, balance);
	error = is_registered ? blkcg_activate_policy(mqfq_policy_of(e->q), &mqfq_policy) : 0;

	e->has_cgroups = is_registered && !error;
	return error;
}

/* Cgroups that are refreshed under one taking of the queue's lock. */
#define REFRESH_MAX 64

void mqfq_cgroups_refresh(struct mqfq_elevator *e)
{
	u64 gvt = mqfq_gvt(&e->s.mind);
	struct blkcg_gq *blkg;
	u32 done = 0;

	if (!e->has_cgroups)
		return;
	mqfq_blkgs_lock(e->q);
	spin_lock_irq(&e->q->queue_lock);
	list_for_each_entry(blkg, &e->q->blkg_list, q_node) {
		if (mqfq_cgroup_of(blkg))
			mqfq_flow_refresh(&mqfq_cgroup_of(blkg)->flow, gvt);
		if (!(++done % REFRESH_MAX))
			mqfq_blkgs_breathe(e->q);
	}
	spin_unlock_irq(&e->q->queue_lock);
	mqfq_blkgs_unlock(e->q);
	/* The time of the last step must not fall half the circle behind either. */
	schedule_delayed_work(&e->balance, 0);
}

void mqfq_cgroups_deactivate(struct mqfq_elevator *e)
{
	if (e->has_cgroups)
		blkcg_deactivate_policy(mqfq_policy_of(e->q), &mqfq_policy);
	e->has_cgroups = false;
	/* No request is submitted any more: the queue is frozen. */
	cancel_delayed_work_sync(&e->balance);
}
