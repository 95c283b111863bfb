// SPDX-License-Identifier: GPL-2.0
/* Who waits for a token: see ready_set.h. Loom models: sched/src/shared/ready_set/loom_tests.rs. */
#include "ready_set.h"

int mqfq_ready_init(struct mqfq_ready *ready, u32 hctxs, const u16 *socket_of)
{
	u32 hctx;

	ready->words = DIV_ROUND_UP(hctxs, 64);
	ready->sockets = 1;
	ready->socket_of = socket_of;
	for (hctx = 0; hctx < hctxs; hctx++)
		ready->sockets = max_t(u32, ready->sockets, socket_of[hctx] + 1);
	ready->lines = kvcalloc(ready->sockets, sizeof(struct mqfq_ready_line), GFP_KERNEL);
	if (!ready->lines)
		return -ENOMEM;
	ready->only = ready->sockets * ready->words == 1 ? ready->lines->words : NULL;
	return 0;
}

void mqfq_ready_exit(struct mqfq_ready *ready)
{
	kvfree(ready->lines);
	ready->lines = NULL;
}

static atomic64_t *ready_word(struct mqfq_ready *ready, u32 hctx)
{
	return &ready->lines[ready->socket_of[hctx]].words[hctx / 64];
}

/* Says that @hctx would dispatch if it had a token. It must then try once more to get one. */
void mqfq_ready_mark(struct mqfq_ready *ready, u32 hctx)
{
	/* Release: pairs with the acquire of the claim: the claimant sees that the queue waits. */
	atomic64_fetch_or_release((s64)(1ULL << (hctx % 64)), ready_word(ready, hctx));
	/* Pairs with the fence that ends mqfq_tokens_release() and mqfq_tokens_set_depth(). */
	smp_mb__after_atomic();
}

/* Takes the mark back. False: somebody has claimed it, and a kick is on its way. */
bool mqfq_ready_unmark(struct mqfq_ready *ready, u32 hctx)
{
	s64 bit = (s64)(1ULL << (hctx % 64));

	return (atomic64_read(ready_word(ready, hctx)) & bit) &&
	       (atomic64_fetch_and_acquire(~bit, ready_word(ready, hctx)) & bit);
}

/* Claims the lowest marked queue of @line's word @at among @mask. */
static s32 claim(struct mqfq_ready_line *line, u32 at, u64 mask)
{
	u64 marked = (u64)atomic64_read(&line->words[at]) & mask;

	while (marked) {
		u64 bit = marked & -marked;
		u64 found = atomic64_fetch_and_acquire((s64)~bit, &line->words[at]);

		if (found & bit)
			return at * 64 + __ffs64(bit);
		marked = found & mask & ~bit;
	}
	return -1;
}

/* Claims the marked queue nearest to @from: itself, its socket, other sockets. -1: none. */
s32 mqfq_ready_take_nearest(struct mqfq_ready *ready, u32 from)
{
	u32 own = ready->socket_of[from], step, at;

	for (step = 0; step < ready->sockets; step++) {
		struct mqfq_ready_line *line = &ready->lines[(own + step) % ready->sockets];
		u64 mask = ~0ULL << (from % 64);
		s32 hctx;

		for (at = 0; at <= ready->words; at++) {
			/* The word of @from comes first, from its bit on, and last, up to it. */
			hctx = claim(line, (from / 64 + at) % ready->words,
				     !at ? mask : at == ready->words ? ~mask : ~0ULL);
			if (hctx >= 0)
				return hctx;
		}
	}
	return -1;
}
