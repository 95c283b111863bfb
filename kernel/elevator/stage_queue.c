// SPDX-License-Identifier: GPL-2.0
/* The order of lanes: see stage_queue.h. */
#include "stage_queue.h"

/* @flow gets a lane for each of @hctxs queues. Or -ENOMEM, and it has none. */
int mqfq_lanes_alloc(struct mqfq_flow *flow, u32 hctxs, gfp_t gfp)
{
	struct mqfq_lane *piece = NULL;
	u32 hctx, at;

	flow->lanes = kcalloc(hctxs, sizeof(*flow->lanes), gfp);
	if (!flow->lanes)
		return -ENOMEM;
	for (hctx = 0; hctx < hctxs; hctx++) {
		at = hctx % MQFQ_LANES_PER_PIECE;
		if (!at) {
			piece = kcalloc(min_t(u32, hctxs - hctx, MQFQ_LANES_PER_PIECE),
					sizeof(*piece), gfp);
			if (!piece) {
				mqfq_lanes_free(flow, hctxs);
				return -ENOMEM;
			}
		}
		INIT_LIST_HEAD(&piece[at].requests);
#ifdef __KERNEL__
		init_waitqueue_head(&piece[at].wait);
#endif
		piece[at].flow = flow;
		piece[at].hctx = hctx;
		flow->lanes[hctx] = &piece[at];
	}
	return 0;
}

/* Also of a flow whose lanes came in part, or never. */
void mqfq_lanes_free(struct mqfq_flow *flow, u32 hctxs)
{
	u32 hctx;

	for (hctx = 0; flow->lanes && hctx < hctxs; hctx += MQFQ_LANES_PER_PIECE)
		kfree(flow->lanes[hctx]);
	kfree(flow->lanes);
	flow->lanes = NULL;
}

#ifdef __KERNEL__
/* The lanes go after a grace period: whoever gave the last tag back looks for waiters. */
void mqfq_lanes_free_later(struct mqfq_flow *flow, u32 hctxs)
{
	u32 hctx;

	for (hctx = 0; hctx < hctxs; hctx += MQFQ_LANES_PER_PIECE)
		kfree_rcu(flow->lanes[hctx], rcu);
	kfree(flow->lanes);
	flow->lanes = NULL;
}
#endif

static bool lane_before(const struct mqfq_lane *a, const struct mqfq_lane *b)
{
	if (a->start != b->start)
		return vtime_before(a->start, b->start);
	if (a->span != b->span)
		return a->span < b->span;
	return (s32)(a->arrival - b->arrival) < 0;
}

static struct mqfq_lane *meld(struct mqfq_lane *a, struct mqfq_lane *b)
{
	struct mqfq_lane *below;

	if (!a || !b)
		return a ? a : b;
	if (lane_before(b, a)) {
		below = a;
		a = b;
	} else {
		below = b;
	}
	below->sibling = a->child;
	a->child = below;
	return a;
}

/* Takes the first out; those below it are melded in pairs, and the pairs from the last on. */
static struct mqfq_lane *without_first(struct mqfq_lane *first)
{
	struct mqfq_lane *next = first->child, *pairs = NULL, *root = NULL;

	first->child = NULL;
	while (next) {
		struct mqfq_lane *a = next, *b = a->sibling;

		next = b ? b->sibling : NULL;
		a->sibling = NULL;
		if (b)
			b->sibling = NULL;
		a = meld(a, b);
		a->sibling = pairs;
		pairs = a;
	}
	while (pairs) {
		struct mqfq_lane *pair = pairs;

		pairs = pair->sibling;
		pair->sibling = NULL;
		root = meld(root, pair);
	}
	return root;
}

/* Takes in a lane whose head has just got its interval. True if it became the first. */
bool mqfq_stage_add(struct mqfq_stage *stage, struct mqfq_lane *lane)
{
	lane->child = NULL;
	lane->sibling = NULL;
	lane->arrival = stage->arrivals++;
	stage->first = meld(stage->first, lane);
	stage->lanes++;
	return stage->first == lane;
}

/* The first lane has another head, which begins later. */
void mqfq_stage_rekey_first(struct mqfq_stage *stage)
{
	struct mqfq_lane *lane = stage->first;

	lane->arrival = stage->arrivals++;
	if (lane->child)
		stage->first = meld(without_first(lane), lane);
}

void mqfq_stage_drop_first(struct mqfq_stage *stage)
{
	stage->first = without_first(stage->first);
	stage->lanes--;
}
