/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Smallest lead over all hardware queues, and the virtual time that follows it, without a lock.
 *
 * Source: the mindicator of Liu, Luchangco and Spear (ICDCS 2013), MQFQ section 3.1. The protocol,
 * its races and invariants M1 to M4 are those of sched/src/shared/mindicator.rs: lowering a lead must have
 * reached the root, or a covered node, when publish returns; a raise may be late but is not lost.
 */
#ifndef MQFQ_MINDICATOR_H
#define MQFQ_MINDICATOR_H

#include "flow.h"

/* How far a lead may be from virtual time, either way. */
#define MQFQ_REACH ((1ULL << 54) - MQFQ_GRAIN)

struct mqfq_mindicator {
	u32 hctxs;
	u32 nodes;		/* leaves first, the root last */
	u32 *parent;
	u32 *children;		/* of all inner nodes, one after the other */
	u32 *first_child;	/* of an inner node, in children; one more than there are nodes */
	struct mqfq_word *words;
	struct mqfq_word gvt;
};

int mqfq_mindicator_init(struct mqfq_mindicator *mind, u32 hctxs, const u16 *socket_of, u64 start);
void mqfq_mindicator_exit(struct mqfq_mindicator *mind);
void mqfq_mindicator_publish(struct mqfq_mindicator *mind, u32 hctx, u64 lead);
void mqfq_mindicator_depart(struct mqfq_mindicator *mind, u32 hctx);
u64 mqfq_mindicator_move_up(struct mqfq_mindicator *mind, s64 now, u64 least);
u64 mqfq_mindicator_query(struct mqfq_mindicator *mind);

/* Virtual time, as the last query left it. */
static inline u64 mqfq_gvt(struct mqfq_mindicator *mind)
{
	/* Acquire: pairs with the release in mqfq_mindicator_query(). */
	return (u64)atomic64_read_acquire(&mind->gvt.value);
}

/* Of a node's word: it shows a lead. */
#define MQFQ_OCCUPIED 0x2000ULL

/*
 * Publish, query, depart and query of a lead that is gone before anybody could look at it, by a
 * queue that shows none. Virtual time is at the smallest lead or later, so it moves only if no
 * queue shows one. A queue that comes meanwhile is not in the tree, so its publish has not
 * returned: it is as if it had come later, as for a query that has read the root. True if virtual
 * time has moved; *@gvt is what it is now.
 */
static inline bool mqfq_mindicator_pass(struct mqfq_mindicator *mind, u64 lead, u64 *gvt)
{
	/* Acquire: pairs with the release that put this value at the root. */
	u64 root = atomic64_read_acquire(&mind->words[mind->nodes - 1].value);

	*gvt = mqfq_gvt(mind);
	if ((root & MQFQ_OCCUPIED) || !vtime_before(*gvt, lead))
		return false;
	*gvt = mqfq_mindicator_move_up(mind, *gvt, lead);
	return true;
}

#endif
