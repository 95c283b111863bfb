/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which hardware queues could dispatch at once if they had a token?
 *
 * Source: MQFQ section 3.3. A bit per queue, a line per socket. R1 to R3 of sched/src/shared/ready_set.rs:
 * a mark is claimed at most once, stays until it is claimed, and of "mark, fence, acquire" and
 * "release, fence, search" at least one sees the other.
 */
#ifndef MQFQ_READY_SET_H
#define MQFQ_READY_SET_H

#include "shim.h"

#define MQFQ_READY_WORDS (MQFQ_HCTXS_MAX / 64)

struct mqfq_ready_line {
	atomic64_t words[MQFQ_READY_WORDS];
} ____cacheline_aligned_in_smp;

struct mqfq_ready {
	u32 words;
	u32 sockets;
	const u16 *socket_of;
	struct mqfq_ready_line *lines;	/* one per socket; bit n is queue n */
	atomic64_t *only;		/* the word, if one is all that there is */
};

int mqfq_ready_init(struct mqfq_ready *ready, u32 hctxs, const u16 *socket_of);
void mqfq_ready_exit(struct mqfq_ready *ready);
void mqfq_ready_mark(struct mqfq_ready *ready, u32 hctx);
bool mqfq_ready_unmark(struct mqfq_ready *ready, u32 hctx);
s32 mqfq_ready_take_nearest(struct mqfq_ready *ready, u32 from);

/* True if somebody is marked. A hint, unless a fence of the caller's stands before it. */
static inline bool mqfq_ready_any(struct mqfq_ready *ready)
{
	u32 socket = ready->sockets, at;

	if (ready->only)
		return atomic64_read(ready->only);
	while (socket--)
		for (at = 0; at < ready->words; at++)
			if (atomic64_read(&ready->lines[socket].words[at]))
				return true;
	return false;
}

#endif
