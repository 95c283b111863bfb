// SPDX-License-Identifier: GPL-2.0
/* How do tests in another language hold groups of flows? A scheduler of one queue, and a tree. */
#include "hierarchy.h"
#include "scheduler.h"

struct forest {
	struct mqfq s;
	struct mqfq_tree tree;
	u32 nodes;
	struct mqfq_flow *flow;
	struct mqfq_node *node;
};

static void on_kick(struct mqfq *s, u32 hctx)
{
	(void)s;
	(void)hctx;
}

struct forest *forest_new(u32 depth, u64 window, u32 nodes_max)
{
	static const u16 socket_of[1];
	struct forest *f = kvcalloc(1, sizeof(*f), GFP_KERNEL);

	f->flow = kvcalloc(nodes_max, sizeof(*f->flow), GFP_KERNEL);
	f->node = kvcalloc(nodes_max, sizeof(*f->node), GFP_KERNEL);
	if (mqfq_init(&f->s, 1, socket_of, depth, window))
		return NULL;
	f->s.kick = on_kick;
	mqfq_tree_init(&f->tree);
	return f;
}

void forest_free(struct forest *f)
{
	while (f->nodes--)
		mqfq_lanes_free(&f->flow[f->nodes], 1);
	kvfree(f->flow);
	kvfree(f->node);
	mqfq_exit(&f->s);
	kvfree(f);
}

/* @parent: the number of a node, or -1. Returns the new one's. */
u32 forest_add(struct forest *f, s32 parent, u32 weight)
{
	u32 at = f->nodes++;
	struct mqfq_flow *flow = &f->flow[at];

	mqfq_flow_init(flow, weight, mqfq_gvt(&f->s.mind));
	mqfq_lanes_alloc(flow, 1, GFP_KERNEL);
	mqfq_tree_add(&f->tree, &f->node[at], parent < 0 ? NULL : &f->node[parent], flow, weight);
	return at;
}

/* The node's last request, which is staged, costs so much @more, as after a merge. */
void forest_grow(struct forest *f, u32 node, u64 more)
{
	list_entry(f->flow[node].lanes[0]->requests.prev, struct mqfq_item, node)->cost += more;
}

void forest_remove(struct forest *f, u32 node)
{
	mqfq_tree_remove(&f->tree, &f->node[node]);
}

void forest_set_weight(struct forest *f, u32 node, u32 weight)
{
	mqfq_tree_set_weight(&f->tree, &f->node[node], weight);
}

/* As the glue: a flow that is_idle wakes, and has a step made soon. */
void forest_submit(struct forest *f, u32 node, u64 cost, u64 handle)
{
	struct mqfq_item *item = malloc(sizeof(*item));

	item->cost = cost;
	item->handle = handle;
	if (READ_ONCE(f->flow[node].is_idle))
		mqfq_tree_wake(&f->tree, &f->node[node], mqfq_gvt(&f->s.mind));
	mqfq_submit(&f->s, &f->s.queues[0], f->flow[node].lanes[0], &item->node);
}

/* Not 0: a request goes. */
u32 forest_pick(struct forest *f, u64 *handle, u32 *units)
{
	struct mqfq_lane *lane;
	struct list_head *node;
	struct mqfq_item *item;

	if (mqfq_pick(&f->s, &f->s.queues[0], &node, &lane, units) != MQFQ_DISPATCH)
		return 0;
	item = list_entry(node, struct mqfq_item, node);
	*handle = item->handle;
	free(item);
	return 1;
}

void forest_complete(struct forest *f, u32 units)
{
	mqfq_complete(&f->s, 0, units);
}

u32 forest_step(struct forest *f)
{
	return mqfq_tree_step(&f->tree, mqfq_gvt(&f->s.mind));
}

/* How many a step looks at. */
u32 forest_active(struct forest *f)
{
	return f->tree.actives;
}

/* In 65536ths of a weight. */
u32 forest_effective(struct forest *f, u32 node)
{
	return f->flow[node].part;
}

/* Counts who competes: in how many pieces. */
u32 forest_count(struct forest *f)
{
	u32 pieces = 1;

	while (!mqfq_tree_count(&f->tree, mqfq_gvt(&f->s.mind), 0, 0))
		pieces++;
	return pieces;
}

/* A piece of that. Not 0: it was the last. */
u32 forest_count_on(struct forest *f)
{
	return mqfq_tree_count(&f->tree, mqfq_gvt(&f->s.mind), 0, 0);
}

/* As it was counted last. */
u32 forest_entitlement(struct forest *f, u32 node)
{
	return mqfq_tree_entitlement(&f->tree, &f->node[node], mqfq_gvt(&f->s.mind));
}
