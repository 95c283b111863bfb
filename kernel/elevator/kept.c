// SPDX-License-Identifier: GPL-2.0
/*
 * Settings of a device that outlive its elevator: D, T and whose requests are.
 *
 * A reset of an NVMe drive whose number of queues changes, and each switch to another scheduler,
 * ends the elevator. The next one of a device of the same name begins with the settings that the
 * last one ended with; a search for D begins at the D that was found. Weights of a device are kept
 * with their cgroups (cgroup.c).
 */
#include "glue.h"

/* Names of devices that are remembered; beyond that, the one that was saved first goes. */
#define KEPT_MAX 256

struct kept {
	struct list_head list;
	char name[DISK_NAME_LEN];
	bool finds_depth, finds_window, by_process;
	u32 depth;
	u64 window;
};

static LIST_HEAD(all);
static DEFINE_MUTEX(lock);
static u32 count;

static struct kept *find(const char *name)
{
	struct kept *kept;

	list_for_each_entry(kept, &all, list)
		if (!strcmp(kept->name, name))
			return kept;
	return NULL;
}

static struct kept *add(const char *name)
{
	struct kept *kept;

	if (count == KEPT_MAX) {
		kept = list_first_entry(&all, struct kept, list);
		list_del(&kept->list);
	} else {
		/* The queue is frozen: memory must not come from writing to it. */
		kept = kzalloc(sizeof(*kept), GFP_NOIO);
		if (!kept)
			return NULL;
		count++;
	}
	strscpy(kept->name, name, sizeof(kept->name));
	list_add_tail(&kept->list, &all);
	return kept;
}

/* The elevator ends. Without memory its settings are lost. */
void mqfq_kept_save(struct mqfq_elevator *e)
{
	struct kept *kept;

	if (!e->q->disk)
		return;
	mutex_lock(&lock);
	kept = find(e->q->disk->disk_name) ?: add(e->q->disk->disk_name);
	if (kept) {
		kept->finds_depth = e->tuning.finds_depth;
		kept->finds_window = e->tuning.finds_window;
		kept->by_process = e->by_process;
		kept->depth = kept->finds_depth ? e->tuning.controller.search.base :
						  e->s.tokens.depth;
		kept->window = e->s.wheel.window;
	}
	mutex_unlock(&lock);
}

/* Before the first request. */
void mqfq_kept_apply(struct mqfq_elevator *e)
{
	struct kept *kept;

	if (!e->q->disk)
		return;
	mutex_lock(&lock);
	kept = find(e->q->disk->disk_name);
	if (kept) {
		mqfq_tuning_find_depth(e, false, kept->depth);
		if (kept->finds_depth)
			mqfq_tuning_find_depth(e, true, kept->depth);
		mqfq_tuning_find_window(e, kept->finds_window, kept->window);
		if (kept->by_process && mqfq_flows_set(e, true))
			pr_warn("mqfq: %s: no memory for slots of processes, flows are cgroups\n",
				kept->name);
	}
	mutex_unlock(&lock);
}

void mqfq_kept_exit(void)
{
	struct kept *kept, *next;

	list_for_each_entry_safe(kept, next, &all, list)
		kfree(kept);
}
