/* SPDX-License-Identifier: GPL-2.0 */
/*
 * At which weight does a flow compete now, given the groups that it is in and who else in them
 * wants service?
 *
 * Source: sched/src/flow/group.rs, which has the reasons and the bounds: prices that follow who is
 * idle, satisfied or backlogged, so that what a member leaves stays in its group. The effective weights
 * of a group's backlogged members and what its satisfied members used sum to the group's weight (H1).
 *
 * Differences from there: a step is made by the clock and not by virtual time; a node is a group
 * and a flow (a cgroup with children has requests of its own, which compete with its children at
 * the default weight); a newcomer counts for its siblings from the next step on. A flow that is in
 * no group has none of this.
 *
 * A step looks at members that are not idle and the groups that these are in, however many others
 * there are (H2): those want nothing, add to no sum, and get their weight when they wake.
 *
 * The caller holds a lock; a flow's rate is one word that anybody reads.
 */
#ifndef MQFQ_HIERARCHY_H
#define MQFQ_HIERARCHY_H

#include "flow.h"

/* Fraction bits of a rate, the effective weight of a group or a flow. */
#define MQFQ_RATE_BITS 32

enum mqfq_demand { MQFQ_WANTS_NOTHING, MQFQ_SATISFIED, MQFQ_BACKLOGGED };

/* A group: who wants what in it. */
struct mqfq_group {
	enum mqfq_demand demand;
	u64 backlogged_weight;
	u64 satisfied_weight;
	u64 satisfied_use;	/* as a rate */
	u64 rate;
};

struct mqfq_node {
	struct list_head in_tree;
	struct list_head in_active;	/* if is_active */
	struct mqfq_node *parent;	/* NULL: at the top */
	struct mqfq_flow *flow;
	u32 weight;			/* among its siblings */
	u32 children;
	u32 active_children;
	bool is_active;
	enum mqfq_demand demand;	/* of its flow */
	u64 seen;			/* of what its flow has skipped */
	struct mqfq_group group;
};

struct mqfq_tree {
	struct list_head nodes;
	struct list_head active;	/* what steps look at; parents before their children */
	u32 actives;
	u32 nested;			/* nodes that have a parent */
	u64 last;			/* virtual time of the last step */
	u32 stood;			/* steps since virtual time moved */
	/* What those who compete have together, counted in pieces. */
	struct list_head *cursor;	/* the next to be counted; NULL: none is under way */
	u64 counting, counted;		/* until there; by the last count */
	u64 counted_at;			/* when that one ended */
	bool is_counted;
};

void mqfq_tree_init(struct mqfq_tree *tree);
void mqfq_tree_add(struct mqfq_tree *tree, struct mqfq_node *node, struct mqfq_node *parent,
		   struct mqfq_flow *flow, u32 weight);
void mqfq_tree_remove(struct mqfq_tree *tree, struct mqfq_node *node);
void mqfq_tree_set_weight(struct mqfq_tree *tree, struct mqfq_node *node, u32 weight);
void mqfq_tree_wake(struct mqfq_tree *tree, struct mqfq_node *node, u64 gvt);
bool mqfq_tree_step(struct mqfq_tree *tree, u64 gvt);
bool mqfq_tree_count(struct mqfq_tree *tree, u64 gvt, u64 now, u64 fresh);
u32 mqfq_tree_entitlement(struct mqfq_tree *tree, struct mqfq_node *node, u64 gvt);

#endif
