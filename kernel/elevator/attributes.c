// SPDX-License-Identifier: GPL-2.0
/* What can be read and set in queue/iosched/? Numbers out of range are refused, not moved. */
#include "glue.h"

static struct mqfq_elevator *own(struct elevator_queue *eq)
{
	return eq->elevator_data;
}

/* A number in @least to @most, or an error. */
static int number_of(const char *page, u32 least, u32 most, u32 *number)
{
	int error = kstrtou32(page, 0, number);

	if (error)
		return error;
	return *number >= least && *number <= most ? 0 : -ERANGE;
}

static ssize_t depth_show(struct elevator_queue *eq, char *page)
{
	return sysfs_emit(page, "%u\n", READ_ONCE(own(eq)->s.tokens.depth));
}

static ssize_t depth_store(struct elevator_queue *eq, const char *page, size_t count)
{
	u32 depth;
	int error = number_of(page, 1, MQFQ_DEPTH_MAX, &depth);

	if (!error)
		mqfq_tuning_find_depth(own(eq), false, depth);
	return error ?: count;
}

static ssize_t depth_auto_show(struct elevator_queue *eq, char *page)
{
	return sysfs_emit(page, "%u\n", READ_ONCE(own(eq)->tuning.finds_depth));
}

static ssize_t depth_auto_store(struct elevator_queue *eq, const char *page, size_t count)
{
	bool finds;
	int error = kstrtobool(page, &finds);

	if (!error)
		mqfq_tuning_find_depth(own(eq), finds, 0);
	return error ?: count;
}

static ssize_t window_kib_show(struct elevator_queue *eq, char *page)
{
	return sysfs_emit(page, "%llu\n", READ_ONCE(own(eq)->s.wheel.window) >> 20);
}

static ssize_t window_kib_store(struct elevator_queue *eq, const char *page, size_t count)
{
	u32 kib;
	int error = number_of(page, MQFQ_WINDOW_LEAST >> 20, MQFQ_WINDOW_MAX >> 20, &kib);

	if (!error)
		mqfq_tuning_find_window(own(eq), false, (u64)kib << 20);
	return error ?: count;
}

static ssize_t window_auto_show(struct elevator_queue *eq, char *page)
{
	return sysfs_emit(page, "%u\n", READ_ONCE(own(eq)->tuning.finds_window));
}

static ssize_t window_auto_store(struct elevator_queue *eq, const char *page, size_t count)
{
	bool finds;
	int error = kstrtobool(page, &finds);

	if (!error)
		mqfq_tuning_find_window(own(eq), finds, READ_ONCE(own(eq)->s.wheel.window));
	return error ?: count;
}

static ssize_t flows_show(struct elevator_queue *eq, char *page)
{
	return sysfs_emit(page, "%s\n", READ_ONCE(own(eq)->by_process) ? "process" : "cgroup");
}

static ssize_t flows_store(struct elevator_queue *eq, const char *page, size_t count)
{
	bool by_process = sysfs_streq(page, "process");
	int error = -EINVAL;

	if (by_process || sysfs_streq(page, "cgroup"))
		error = mqfq_flows_set(own(eq), by_process);
	return error ?: count;
}

/* What a person wants to see when a cgroup gets less than it should. */
static ssize_t state_show(struct elevator_queue *eq, char *page)
{
	struct mqfq_tuning *tuning = &own(eq)->tuning;
	struct mqfq_search *search = &tuning->controller.search;
	struct mqfq *s = &own(eq)->s;
	u32 hctx, staged = 0, throttled = 0, hungry = 0;

	for (hctx = 0; hctx < s->hctxs; hctx++) {
		struct mqfq_queue *queue = &s->queues[hctx];

		staged += READ_ONCE(queue->stage.staged);
		if (READ_ONCE(queue->waiting)) {
			throttled += READ_ONCE(queue->has_place);
			hungry += !READ_ONCE(queue->has_place);
		}
	}
	return sysfs_emit(page,
			  "depth %u %s chosen %u phases %llu free %lld vtime %llu staged %u throttled %u no-token %u\n",
			  READ_ONCE(s->tokens.depth),
			  tuning->finds_depth ? mqfq_reason_name(search->reason) : "fixed",
			  tuning->finds_depth ? search->base : READ_ONCE(s->tokens.depth),
			  search->phases, mqfq_tokens_free(&s->tokens), mqfq_gvt(&s->mind), staged,
			  throttled, hungry);
}

static ssize_t state_store(struct elevator_queue *eq, const char *page, size_t count)
{
	return -EPERM;
}

#define MQFQ_ATTRIBUTE(name, mode) __ATTR(name, mode, name##_show, name##_store)

const struct elv_fs_entry mqfq_attributes[] = {
	MQFQ_ATTRIBUTE(depth, 0644),
	MQFQ_ATTRIBUTE(depth_auto, 0644),
	MQFQ_ATTRIBUTE(window_kib, 0644),
	MQFQ_ATTRIBUTE(window_auto, 0644),
	MQFQ_ATTRIBUTE(flows, 0644),
	MQFQ_ATTRIBUTE(state, 0444),
	__ATTR_NULL
};
