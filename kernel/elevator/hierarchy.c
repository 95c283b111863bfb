// SPDX-License-Identifier: GPL-2.0
/* Groups of flows: see hierarchy.h. */
#include "hierarchy.h"

/* The part of a step that a backlogged flow may let pass. */
#define BACKLOGGED_PART 64

/* Steps without any virtual time after which nobody is taken to want anything. */
#define STOOD_MAX 8

void mqfq_tree_init(struct mqfq_tree *tree)
{
	memset(tree, 0, sizeof(*tree));
	INIT_LIST_HEAD(&tree->nodes);
	INIT_LIST_HEAD(&tree->active);
}

/* The group that the node's flow is in; NULL: it competes by itself. */
static struct mqfq_group *group_of(struct mqfq_node *node)
{
	if (node->children)
		return &node->group;
	return node->parent ? &node->parent->group : NULL;
}

/* And its weight there. */
static u32 weight_of(const struct mqfq_node *node)
{
	return node->children ? MQFQ_WEIGHT_DEFAULT : node->weight;
}

static void admit(struct mqfq_group *group, enum mqfq_demand demand, u32 weight, u64 used)
{
	if (demand == MQFQ_BACKLOGGED) {
		group->backlogged_weight += weight;
	} else if (demand == MQFQ_SATISFIED) {
		group->satisfied_weight += weight;
		group->satisfied_use += used;
	}
}

/* What a member of this weight and demand gets of its group's rate. */
static u64 rate_in(const struct mqfq_group *group, enum mqfq_demand demand, u32 weight)
{
	u64 rate = group->rate, active = group->backlogged_weight + group->satisfied_weight, may_use;
	u64 backlogged = max_t(u64, group->backlogged_weight, weight);

	if (demand == MQFQ_WANTS_NOTHING)
		/* If it comes, it counts beside those that are there. */
		return mul_u64_u64_div_u64(rate, weight, active + weight);
	/* It is among the active, unless it was something else at the last step. */
	active = max_t(u64, active, weight);
	if (demand == MQFQ_SATISFIED)
		return mul_u64_u64_div_u64(rate, weight, active);
	/* Not more than what the satisfied may use; the rest is not their doing. */
	may_use = mul_u64_u64_div_u64(rate, group->satisfied_weight, active);
	rate -= min_t(u64, group->satisfied_use, may_use);
	return mul_u64_u64_div_u64(rate, weight, backlogged);
}

static void set_effective(struct mqfq_node *node)
{
	struct mqfq_group *group = group_of(node);

	if (!group) {
		mqfq_flow_set_weight(node->flow, (u64)node->weight << 8);
		WRITE_ONCE(node->flow->is_idle, false);
		return;
	}
	mqfq_flow_set_rate(node->flow, rate_in(group, node->demand, weight_of(node)));
	WRITE_ONCE(node->flow->is_idle, node->demand == MQFQ_WANTS_NOTHING);
}

static void set_rate(struct mqfq_node *node)
{
	node->group.rate = node->parent ?
		rate_in(&node->parent->group, node->group.demand, node->weight) :
		(u64)node->weight << MQFQ_RATE_BITS;
}

/*
 * Steps look at @node from now on, and at all that it is in. From the top, since parents stand
 * first and give their rates, at which nobody has looked meanwhile, to what is below.
 */
static void activate(struct mqfq_tree *tree, struct mqfq_node *node)
{
	struct mqfq_node *at;

	while (!node->is_active) {
		for (at = node; at->parent && !at->parent->is_active;)
			at = at->parent;
		at->is_active = true;
		list_add_tail(&at->in_active, &tree->active);
		tree->actives++;
		if (at->parent)
			at->parent->active_children++;
		if (at->children)
			set_rate(at);
	}
}

static void deactivate(struct mqfq_tree *tree, struct mqfq_node *node)
{
	if (!node->is_active)
		return;
	node->is_active = false;
	list_del_init(&node->in_active);
	tree->actives--;
	if (node->parent)
		node->parent->active_children--;
}

/* Its flow is in another group from now on, and what it wants there is seen when it wakes. */
static void move_flow(struct mqfq_node *node)
{
	node->demand = MQFQ_WANTS_NOTHING;
	set_effective(node);
}

/* Whose sums are counted anew. */
static void clear(struct mqfq_tree *tree)
{
	struct mqfq_node *node;

	list_for_each_entry(node, &tree->active, in_active) {
		node->group.backlogged_weight = 0;
		node->group.satisfied_weight = 0;
		node->group.satisfied_use = 0;
	}
}

/* After the flows were admitted: the groups, from the leaves, and then the rates, from the top. */
static void settle_groups(struct mqfq_tree *tree)
{
	struct mqfq_node *node;

	list_for_each_entry_reverse(node, &tree->active, in_active) {
		struct mqfq_group *group = &node->group;

		if (!node->children)
			continue;
		group->demand = group->backlogged_weight ? MQFQ_BACKLOGGED :
				  group->satisfied_weight ? MQFQ_SATISFIED : MQFQ_WANTS_NOTHING;
		if (node->parent)
			admit(&node->parent->group, group->demand, node->weight,
			      group->satisfied_use);
	}
	list_for_each_entry(node, &tree->active, in_active)
		if (node->children)
			set_rate(node);
	list_for_each_entry(node, &tree->active, in_active)
		set_effective(node);
}

/* Steps look no more at those that want nothing, from the leaves on. */
static void prune(struct mqfq_tree *tree)
{
	struct mqfq_node *node, *before;

	list_for_each_entry_safe_reverse(node, before, &tree->active, in_active)
		if (!node->active_children && (!group_of(node) || !node->demand))
			deactivate(tree, node);
}

/* Nobody's use is known between steps: it counts as nothing until the next one. */
static void sum(struct mqfq_tree *tree)
{
	struct mqfq_node *node;

	if (!tree->nested)
		return;
	clear(tree);
	list_for_each_entry(node, &tree->active, in_active)
		if (group_of(node))
			admit(group_of(node), node->demand, weight_of(node), 0);
	settle_groups(tree);
}

/* @parent stands in the tree already, or is NULL. Siblings count the node from the next step on. */
void mqfq_tree_add(struct mqfq_tree *tree, struct mqfq_node *node, struct mqfq_node *parent,
		   struct mqfq_flow *flow, u32 weight)
{
	memset(node, 0, sizeof(*node));
	node->parent = parent;
	node->flow = flow;
	node->weight = weight;
	list_add_tail(&node->in_tree, &tree->nodes);
	if (parent) {
		tree->nested++;
		if (!parent->children++) {
			memset(&parent->group, 0, sizeof(parent->group));
			set_rate(parent);
			move_flow(parent);
		}
	}
	set_effective(node);
}

/* Its flow keeps the weight that it has. Children, if it has any, compete by themselves then. */
void mqfq_tree_remove(struct mqfq_tree *tree, struct mqfq_node *node)
{
	struct mqfq_node *child;

	if (tree->cursor == &node->in_tree)
		tree->cursor = node->in_tree.next;
	list_del_init(&node->in_tree);
	deactivate(tree, node);
	list_for_each_entry(child, &tree->nodes, in_tree) {
		if (!node->children)
			break;
		if (child->parent != node)
			continue;
		child->parent = NULL;
		node->children--;
		tree->nested--;
		move_flow(child);
	}
	if (node->parent) {
		tree->nested--;
		if (!--node->parent->children)
			move_flow(node->parent);
	}
	WRITE_ONCE(node->flow->is_idle, false);
}

void mqfq_tree_set_weight(struct mqfq_tree *tree, struct mqfq_node *node, u32 weight)
{
	node->weight = weight;
	set_effective(node);
	sum(tree);
}

static void find_demand(struct mqfq_node *node, u64 gvt, u64 passed)
{
	u64 rate = mqfq_flow_effective(node->flow), used;
	bool is_ahead;
	u64 skipped = mqfq_flow_skipped(node->flow, gvt, &is_ahead) - node->seen;

	node->seen += skipped;
	skipped = min_t(u64, skipped, passed);
	if (skipped == passed && !is_ahead)
		node->demand = MQFQ_WANTS_NOTHING;
	else if (skipped > passed / BACKLOGGED_PART)
		node->demand = MQFQ_SATISFIED;
	else
		node->demand = MQFQ_BACKLOGGED;
	used = mul_u64_u64_div_u64(rate, passed - skipped, passed);
	admit(group_of(node), node->demand, weight_of(node), used);
}

/*
 * A flow that is_idle submits: it has the weight of a newcomer beside those that are there until
 * the next step. All virtual time since the last one has passed it.
 */
void mqfq_tree_wake(struct mqfq_tree *tree, struct mqfq_node *node, u64 gvt)
{
	bool is_ahead;

	/* It has been removed meanwhile. */
	if (list_empty(&node->in_tree)) {
		WRITE_ONCE(node->flow->is_idle, false);
		return;
	}
	if (list_empty(&tree->active))
		tree->last = gvt;
	activate(tree, node);
	node->seen = mqfq_flow_skipped(node->flow, gvt, &is_ahead);
	if ((s64)(gvt - tree->last) > 0)
		node->seen -= gvt - tree->last;
	set_effective(node);
	WRITE_ONCE(node->flow->is_idle, false);
}

/*
 * Looks at who wants what, and sets all weights. False: nobody wants anything, and there is no use
 * in a step before a flow that is_idle submits.
 */
bool mqfq_tree_step(struct mqfq_tree *tree, u64 gvt)
{
	u64 passed = gvt - tree->last;
	struct mqfq_node *node;

	if (!tree->nested) {
		tree->last = gvt;
		return false;
	}
	if ((s64)passed <= 0) {
		tree->stood++;
		list_for_each_entry(node, &tree->active, in_active) {
			if (tree->stood >= STOOD_MAX)
				node->demand = MQFQ_WANTS_NOTHING;
			else if (!node->demand && !READ_ONCE(node->flow->is_idle))
				node->demand = MQFQ_SATISFIED;
		}
		sum(tree);
		if (tree->stood < STOOD_MAX)
			return true;
		tree->stood = 0;
		return false;
	}
	tree->stood = 0;
	tree->last = gvt;
	clear(tree);
	list_for_each_entry(node, &tree->active, in_active)
		if (group_of(node))
			find_demand(node, gvt, passed);
	settle_groups(tree);
	/* Not where virtual time stands: who waits is ahead of it and wants something. */
	prune(tree);
	return !list_empty(&tree->active);
}

/* A flow by itself does while it has had more than virtual time says. */
static bool competes(struct mqfq_node *node, u64 gvt)
{
	if (group_of(node))
		return node->demand != MQFQ_WANTS_NOTHING;
	return vtime_before(gvt, (u64)atomic64_read(&node->flow->finish));
}

/* Nodes that are counted under one taking of the lock. */
#define COUNT_MAX 64

/*
 * Counts what those who compete have together, COUNT_MAX nodes at most. False: there are more, and
 * another call is needed. A count that ended less than @fresh before @now, in any unit, will do.
 */
bool mqfq_tree_count(struct mqfq_tree *tree, u64 gvt, u64 now, u64 fresh)
{
	u32 left = COUNT_MAX;

	if (tree->is_counted && now - tree->counted_at < fresh)
		return true;
	if (!tree->cursor) {
		tree->cursor = tree->nodes.next;
		tree->counting = 0;
	}
	while (tree->cursor != &tree->nodes) {
		struct mqfq_node *node = list_entry(tree->cursor, struct mqfq_node, in_tree);

		if (!left--)
			return false;
		if (competes(node, gvt))
			tree->counting += READ_ONCE(node->flow->part);
		tree->cursor = tree->cursor->next;
	}
	tree->cursor = NULL;
	tree->counted = tree->counting;
	tree->counted_at = now;
	tree->is_counted = true;
	return true;
}

/* Part of the device that the flow may have beside those that were counted, in 10000ths. */
u32 mqfq_tree_entitlement(struct mqfq_tree *tree, struct mqfq_node *node, u64 gvt)
{
	u64 own = READ_ONCE(node->flow->part), all = tree->counted;

	if (!competes(node, gvt))
		all += own;
	return div64_u64(10000 * own, max_t(u64, all, own));
}
