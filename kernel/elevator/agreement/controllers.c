// SPDX-License-Identifier: GPL-2.0
/* How do tests in another language hold the controllers of D and T? */
#include "depth.h"
#include "window_rule.h"

/* What both implementations can be asked. */
struct findings {
	u32 depth, chosen, reason, step, epoch;
	u64 chosen_ns, phases;
};

struct mqfq_controller *controller_new(u32 depth, u32 depth_max)
{
	struct mqfq_controller *controller = kvcalloc(1, sizeof(*controller), GFP_KERNEL);

	mqfq_controller_init(controller, depth, depth_max);
	return controller;
}

void controller_free(struct mqfq_controller *controller)
{
	kvfree(controller);
}

void controller_step(struct mqfq_controller *controller, const struct mqfq_sample *sample,
		     struct findings *findings)
{
	const struct mqfq_search *search = &controller->search;

	findings->depth = mqfq_controller_step(controller, sample);
	findings->chosen = search->base;
	findings->reason = search->reason;
	findings->step = controller->sizes.step;
	findings->epoch = controller->epoch;
	findings->chosen_ns = search->chosen_ns;
	findings->phases = search->phases;
}

const char *controller_reason(u32 reason)
{
	return mqfq_reason_name(reason);
}

struct mqfq_window_rule *rule_new(u64 window_bytes)
{
	struct mqfq_window_rule *rule = kvcalloc(1, sizeof(*rule), GFP_KERNEL);

	mqfq_window_rule_init(rule, window_bytes);
	return rule;
}

void rule_free(struct mqfq_window_rule *rule)
{
	kvfree(rule);
}

u64 rule_step(struct mqfq_window_rule *rule, u32 depth, u32 waiting)
{
	return mqfq_window_rule_step(rule, depth, waiting);
}
