// SPDX-License-Identifier: GPL-2.0
/*
 * How do tests in another language hold the core? One scheduler, its flows and requests, and the
 * kicks that are owed, behind a few plain functions.
 */
#include "scheduler.h"

/*
 * Memory, of which tests refuse a piece: the core's own calls come here (build.rs). Per thread, as
 * tests run beside each other.
 */
#undef aligned_alloc
#undef malloc
#undef free
void *aligned_alloc(size_t alignment, size_t size);
void *malloc(size_t size);
void free(void *piece);

static _Thread_local s64 until_refusal, pieces;
static _Thread_local size_t largest;

static bool is_refused(void)
{
	return until_refusal && !--until_refusal;
}

void *world_aligned_alloc(size_t alignment, size_t size)
{
	void *piece = is_refused() ? NULL : aligned_alloc(alignment, size);

	largest = max_t(size_t, largest, size);
	pieces += !!piece;
	return piece;
}

void *world_malloc(size_t size)
{
	void *piece = is_refused() ? NULL : malloc(size);

	pieces += !!piece;
	return piece;
}

void world_release(void *piece)
{
	pieces -= !!piece;
	free(piece);
}

/* The @nth piece that this thread asks for from now on is refused; 0: none. */
void world_refuse(u64 nth)
{
	until_refusal = nth;
	largest = 0;
}

/* Whether the refusal is yet to come. */
u32 world_is_refusing(void)
{
	return until_refusal != 0;
}

/* Pieces that this thread has taken and not given back. */
s64 world_pieces(void)
{
	return pieces;
}

/* The largest piece that this thread has asked for since world_refuse(), bytes. */
u64 world_largest(void)
{
	return largest;
}

#define aligned_alloc world_aligned_alloc
#define malloc world_malloc
#define free world_release

struct world {
	struct mqfq s;
	u32 flows;
	struct mqfq_flow *flow;
	unsigned char *kicked;
};

static void on_kick(struct mqfq *s, u32 hctx)
{
	((struct world *)s)->kicked[hctx] = 1;
}

void world_free(struct world *w)
{
	while (w->flow && w->flows--)
		mqfq_lanes_free(&w->flow[w->flows], w->s.hctxs);
	kvfree(w->flow);
	kvfree(w->kicked);
	mqfq_exit(&w->s);
	kvfree(w);
}

/* NULL and the core's @error, or 0 and no memory for the harness itself. */
struct world *world_new(u32 hctxs, const u16 *socket_of, u32 depth, u64 window, u32 flows,
			const u32 *weights, s32 *error)
{
	struct world *w = kvcalloc(1, sizeof(*w), GFP_KERNEL);
	u32 flow;

	*error = 0;
	if (!w)
		return NULL;
	*error = mqfq_init(&w->s, hctxs, socket_of, depth, window);
	if (*error)
		goto fail;
	w->s.kick = on_kick;
	w->kicked = kvcalloc(hctxs, 1, GFP_KERNEL);
	w->flow = kvcalloc(flows, sizeof(*w->flow), GFP_KERNEL);
	w->flows = flows;
	if (!w->kicked || !w->flow)
		goto fail;
	for (flow = 0; flow < flows; flow++) {
		mqfq_flow_init(&w->flow[flow], weights[flow], 0);
		*error = mqfq_lanes_alloc(&w->flow[flow], hctxs, GFP_KERNEL);
		if (*error)
			goto fail;
	}
	return w;
fail:
	world_free(w);
	return NULL;
}

void world_submit(struct world *w, u32 hctx, u32 flow, u64 cost, u64 handle)
{
	struct mqfq_item *item = malloc(sizeof(*item));

	item->cost = cost;
	item->handle = handle;
	mqfq_submit(&w->s, &w->s.queues[hctx], w->flow[flow].lanes[hctx], &item->node);
}

/* Not 0: it went at once, with *@units. */
u32 world_enter(struct world *w, u32 hctx, u32 flow, u64 cost, u64 handle, u32 *units)
{
	struct mqfq_item *item = malloc(sizeof(*item));

	item->cost = cost;
	item->handle = handle;
	*units = mqfq_enter(&w->s, &w->s.queues[hctx], w->flow[flow].lanes[hctx], &item->node);
	if (!*units)
		return 0;
	free(item);
	return 1;
}

/* The state; of a dispatch also the request and what it took. */
u32 world_pick(struct world *w, u32 hctx, u64 *handle, u32 *units)
{
	struct mqfq_lane *lane;
	struct list_head *node;
	u32 state = mqfq_pick(&w->s, &w->s.queues[hctx], &node, &lane, units);

	if (state == MQFQ_DISPATCH) {
		struct mqfq_item *item = list_entry(node, struct mqfq_item, node);

		*handle = item->handle;
		free(item);
	}
	return state;
}

u32 world_settle(struct world *w, u32 hctx)
{
	return mqfq_settle(&w->s, &w->s.queues[hctx]);
}

void world_complete(struct world *w, u32 hctx, u32 units)
{
	mqfq_complete(&w->s, hctx, units);
}

/* What a kernel asks before it dispatches, and forgets the kick. */
u32 world_has_work(struct world *w, u32 hctx)
{
	struct mqfq_queue *queue = &w->s.queues[hctx];

	w->kicked[hctx] = 0;
	return queue->stage.staged && !queue->waiting;
}

u32 world_kicked(struct world *w, u32 hctx)
{
	return w->kicked[hctx];
}

void world_set_weight(struct world *w, u32 flow, u32 weight)
{
	mqfq_flow_set_weight(&w->flow[flow], (u64)weight << 8);
}

void world_set_depth(struct world *w, u32 depth)
{
	mqfq_set_depth(&w->s, depth);
}

void world_set_window(struct world *w, u64 window)
{
	mqfq_set_window(&w->s, window);
}

void world_refresh(struct world *w)
{
	u32 flow;

	for (flow = 0; flow < w->flows; flow++)
		mqfq_flow_refresh(&w->flow[flow], mqfq_gvt(&w->s.mind));
}

u64 world_gvt(struct world *w)
{
	return mqfq_gvt(&w->s.mind);
}

s64 world_free_units(struct world *w)
{
	return mqfq_tokens_free(&w->s.tokens);
}

/* The lanes of a flow come and go. Returns the core's error, or 0. */
s32 world_lanes(u32 hctxs)
{
	struct mqfq_flow flow = {};
	s32 error = mqfq_lanes_alloc(&flow, hctxs, GFP_KERNEL);

	mqfq_lanes_free(&flow, hctxs);
	return error;
}
