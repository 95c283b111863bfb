// SPDX-License-Identifier: GPL-2.0
/*
 * The smallest lead: see mindicator.h. Loom models: sched/src/shared/mindicator/loom_tests.rs.
 *
 * A node is one word, from the high bits: lead in grains (50), occupied, covered, version (12).
 */
#include "mindicator.h"

#define FANOUT_MAX 8
#define VERSION_MASK 0xfffULL
#define COVERED 0x1000ULL
#define OCCUPIED MQFQ_OCCUPIED
#define LEAD_SHIFT 14

static u64 word_of_lead(u64 lead)
{
	return ((lead >> MQFQ_GRAIN_SHIFT) << LEAD_SHIFT) | OCCUPIED;
}

static u64 value_of(u64 word)
{
	return word & ~(VERSION_MASK | COVERED);
}

/* The same word with what @shown shows and the next version. */
static u64 next_word(u64 word, u64 shown, bool covered)
{
	return value_of(shown) | (covered ? COVERED : 0) | ((word + 1) & VERSION_MASK);
}

/* True if @a shows an earlier lead than @b; empty is later than any lead. */
static bool is_below(u64 a, u64 b)
{
	if ((a & OCCUPIED) && (b & OCCUPIED))
		return (s64)(value_of(a) - value_of(b)) < 0;
	return (a & OCCUPIED) && !(b & OCCUPIED);
}

/* Groups @count nodes of @level under new parents, at most FANOUT_MAX under each. */
static u32 group(struct mqfq_mindicator *mind, u32 *level, u32 count, u32 *used)
{
	u32 parents = DIV_ROUND_UP(count, FANOUT_MAX), parent, at = 0;

	for (parent = 0; parent < parents; parent++) {
		u32 take = (count - at + parents - parent - 1) / (parents - parent), child;

		/* The last parent of all is made for one child too: the root is never a leaf. */
		if (take == 1 && count > 1) {
			level[parent] = level[at++];
			continue;
		}
		mind->first_child[mind->nodes] = *used;
		for (child = 0; child < take; child++) {
			mind->parent[level[at]] = mind->nodes;
			mind->children[(*used)++] = level[at++];
		}
		mind->first_child[mind->nodes + 1] = *used;
		level[parent] = mind->nodes++;
	}
	return parents;
}

/* @socket_of: of each hardware queue; those of one socket stand under one node. */
int mqfq_mindicator_init(struct mqfq_mindicator *mind, u32 hctxs, const u16 *socket_of, u64 start)
{
	u32 *level, used = 0, tops = 0, socket, hctx, most = 2 * hctxs + 2;

	memset(mind, 0, sizeof(*mind));
	mind->hctxs = hctxs;
	mind->nodes = hctxs;
	mind->parent = kvcalloc(most, sizeof(u32), GFP_KERNEL);
	mind->children = kvcalloc(most, sizeof(u32), GFP_KERNEL);
	mind->first_child = kvcalloc(most + 1, sizeof(u32), GFP_KERNEL);
	mind->words = kvcalloc(most, sizeof(struct mqfq_word), GFP_KERNEL);
	level = kvcalloc(2 * hctxs, sizeof(u32), GFP_KERNEL);
	if (!mind->parent || !mind->children || !mind->first_child || !mind->words || !level) {
		kvfree(level);
		mqfq_mindicator_exit(mind);
		return -ENOMEM;
	}
	/* Tops of the sockets come first in `level`, the nodes of one socket behind them. */
	for (socket = 0; socket < hctxs; socket++) {
		u32 *own = level + tops, count = 0;

		for (hctx = 0; hctx < hctxs; hctx++)
			if (socket_of[hctx] == socket)
				own[count++] = hctx;
		while (count > 1)
			count = group(mind, own, count, &used);
		tops += count;
	}
	while (tops > 1)
		tops = group(mind, level, tops, &used);
	if (mind->nodes == hctxs)
		group(mind, level, 1, &used);
	kvfree(level);
	atomic64_set(&mind->gvt.value, start);
	return 0;
}

void mqfq_mindicator_exit(struct mqfq_mindicator *mind)
{
	kvfree(mind->parent);
	kvfree(mind->children);
	kvfree(mind->first_child);
	kvfree(mind->words);
	memset(mind, 0, sizeof(*mind));
}

static atomic64_t *word(struct mqfq_mindicator *mind, u32 node)
{
	return &mind->words[node].value;
}

/* node := min(node, lead), with a new version. True if the walk may stop here. */
static bool lower_node(struct mqfq_mindicator *mind, u32 node, u64 lead)
{
	s64 before = atomic64_read(word(mind, node));

	for (;;) {
		bool lowers = is_below(lead, before);
		u64 after = lowers ? next_word(before, lead, false) :
				     next_word(before, before, before & COVERED);

		/*
		 * Release: pairs with the acquire in raise_node(); who starts from this word sees
		 * our leaf. Acquire: if we stop here, the walk that covered it happened before.
		 */
		if (atomic64_try_cmpxchg(word(mind, node), &before, after))
			return !lowers && (after & COVERED);
	}
}

/* Marks @node as covered if it shows @lead, which our leaf still holds. */
static void set_covered(struct mqfq_mindicator *mind, u32 node, u64 lead)
{
	s64 before = atomic64_read(word(mind, node));

	while (value_of(before) == value_of(lead) && !(before & COVERED)) {
		/* Release: pairs with the acquire in lower_node(); carries our walk above. */
		if (atomic64_try_cmpxchg_release(word(mind, node), &before,
						 next_word(before, before, true)))
			return;
	}
}

/* Brings @lead, which @leaf shows now, to the root or to a covered node. */
static void lower(struct mqfq_mindicator *mind, u32 leaf, u64 lead)
{
	u32 root = mind->nodes - 1, node = leaf, end;

	do {
		node = mind->parent[node];
	} while (!lower_node(mind, node, lead) && node != root);
	end = node;
	for (node = mind->parent[leaf]; node != end; node = mind->parent[node])
		set_covered(mind, node, lead);
}

static u64 smallest_child(struct mqfq_mindicator *mind, u32 node)
{
	u32 at = mind->first_child[node], end = mind->first_child[node + 1];
	u64 least = atomic64_read(word(mind, mind->children[at]));

	while (++at < end) {
		u64 other = atomic64_read(word(mind, mind->children[at]));

		if (is_below(other, least))
			least = other;
	}
	return least;
}

/*
 * Makes @node show the smallest of its children, one of which has just gone up from *@had. True,
 * and what the node showed in *@had, if it had to be changed.
 */
static bool raise_node(struct mqfq_mindicator *mind, u32 node, u64 *had, bool fenced)
{
	bool changed = false;
	u64 node_had = 0;

	for (;;) {
		/* Acquire: pairs with the release of every exchange on this word. */
		s64 shown = atomic64_read_acquire(word(mind, node));
		bool by_another = !changed && is_below(shown, *had);
		u64 least = by_another ? (u64)shown : smallest_child(mind, node), after;

		if (value_of(least) == value_of(shown)) {
			if (fenced)
				break;
			/* Pairs with the same fence of any other raiser: one sees the other. */
			smp_mb();
			fenced = true;
			continue;
		}
		after = next_word(shown, least, (shown & COVERED) && !is_below(least, shown));
		/* Release: pairs with the acquire above and in mqfq_mindicator_query(). */
		if (atomic64_try_cmpxchg_release(word(mind, node), &shown, after)) {
			if (!changed || is_below(shown, node_had))
				node_had = shown;
			changed = true;
			/* Pairs with the fence of a raiser that stopped at this node. */
			smp_mb();
			fenced = true;
		}
	}
	*had = node_had;
	return changed;
}

static void raise(struct mqfq_mindicator *mind, u32 leaf, u64 before, u64 after)
{
	u32 root = mind->nodes - 1, node = leaf;
	bool fenced = false;
	u64 had = before;

	atomic64_set(word(mind, leaf), after);
	while (node != root) {
		node = mind->parent[node];
		if (!raise_node(mind, node, &had, fenced))
			return;
		fenced = true;
	}
}

static void show(struct mqfq_mindicator *mind, u32 leaf, u64 after)
{
	u64 before = atomic64_read(word(mind, leaf));

	if (mind->hctxs == 1) {
		/* Release: pairs with the acquire in mqfq_mindicator_query(). */
		atomic64_set_release(word(mind, mind->nodes - 1), after);
	} else if (is_below(after, before)) {
		atomic64_set(word(mind, leaf), after);
		lower(mind, leaf, after);
	} else if (is_below(before, after)) {
		raise(mind, leaf, before, after);
	}
}

/* The lead of @hctx is @lead now, within MQFQ_REACH of virtual time. Call query afterwards. */
void mqfq_mindicator_publish(struct mqfq_mindicator *mind, u32 hctx, u64 lead)
{
	show(mind, hctx, word_of_lead(lead));
}

/* @hctx has nothing staged any more. Call query afterwards. */
void mqfq_mindicator_depart(struct mqfq_mindicator *mind, u32 hctx)
{
	show(mind, hctx, 0);
}

/* Moves virtual time, which is @now, up to @least, if that is later, and returns it. */
u64 mqfq_mindicator_move_up(struct mqfq_mindicator *mind, s64 now, u64 least)
{
	while (vtime_before((u64)now, least)) {
		/* Release: pairs with the acquire in mqfq_gvt(). */
		if (atomic64_try_cmpxchg(&mind->gvt.value, &now, least))
			return least;
	}
	return now;
}

/* Moves virtual time up to the smallest lead, if that is later, and returns it. */
u64 mqfq_mindicator_query(struct mqfq_mindicator *mind)
{
	/* Acquire: pairs with the release that put this value at the root. */
	u64 root = atomic64_read_acquire(word(mind, mind->nodes - 1)), least;
	s64 now = (s64)mqfq_gvt(mind);
	u64 near = (u64)now >> MQFQ_GRAIN_SHIFT;

	if (!(root & OCCUPIED))
		return now;
	/* The lead as a point of the full circle: the difference, sign-extended from 50 bits. */
	least = (u64)((s64)(((root >> LEAD_SHIFT) - near) << LEAD_SHIFT) >> LEAD_SHIFT);
	least = (near + least) << MQFQ_GRAIN_SHIFT;
	return mqfq_mindicator_move_up(mind, now, least);
}
