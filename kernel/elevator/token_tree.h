/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Dispatch tokens, kept near those who use them: D units are all the permission there is to have
 * requests on the device.
 *
 * Source: MQFQ section 3.2; debts as in sched/src/shared/token_tree.rs (T1 to T3). A request of n units
 * takes up to n from its own path: its leaf, its socket, the root; for the rest the root goes
 * negative if that leaves one free token to start from, and the next release pays that first.
 *
 * One difference from `sched`: a completion runs on any CPU, so a leaf is not its queue's alone.
 * All counts change by atomic read-modify-writes, a token may lie at the leaf of a queue that
 * sleeps, and a queue that finds none on its path, after it marked itself ready, takes from others'
 * leaves (steal). Whoever adds a token anywhere fences and then looks at the ready set.
 */
#ifndef MQFQ_TOKEN_TREE_H
#define MQFQ_TOKEN_TREE_H

#include "shim.h"

struct mqfq_tokens {
	u32 hctxs;
	u32 sockets;		/* 1: no level of sockets */
	u32 depth;		/* D */
	const u16 *socket_of;
	struct mqfq_word *leaf;
	struct mqfq_word *socket;
	struct mqfq_word root;	/* the only count that may be negative */
};

int mqfq_tokens_init(struct mqfq_tokens *tokens, u32 hctxs, const u16 *socket_of, u32 depth);
void mqfq_tokens_exit(struct mqfq_tokens *tokens);
bool mqfq_tokens_acquire(struct mqfq_tokens *tokens, u32 hctx, u32 units, u32 spare, bool steal);
u32 mqfq_tokens_pay(struct mqfq_tokens *tokens, u32 units);
void mqfq_tokens_pass(struct mqfq_tokens *tokens, u32 from, u32 to);
void mqfq_tokens_set_depth(struct mqfq_tokens *tokens, u32 depth);
s64 mqfq_tokens_free(struct mqfq_tokens *tokens);

/* As mqfq_tokens_acquire() of what lies at the leaf, in short: the common case. */
static inline bool mqfq_tokens_take(struct mqfq_tokens *tokens, u32 hctx, u32 units)
{
	atomic64_t *leaf = &tokens->leaf[hctx].value;
	s64 have = atomic64_read(leaf);

	/* Acquire: pairs with the release of whoever put the tokens there. */
	return have >= units && atomic64_try_cmpxchg_acquire(leaf, &have, have - units);
}

/*
 * Gives @units back: a debt of the root first, the rest to the leaf of @hctx. Returns that rest.
 * Ends with a fence; the caller must look at the ready set.
 */
static inline u32 mqfq_tokens_release(struct mqfq_tokens *tokens, u32 hctx, u32 units)
{
	if (atomic64_read(&tokens->root.value) < 0)
		units -= mqfq_tokens_pay(tokens, units);
	if (units)
		atomic64_fetch_add_release(units, &tokens->leaf[hctx].value);
	/* Pairs with the fence in mqfq_ready_mark(): the taker finds the token, or we its mark. */
	smp_mb__after_atomic();
	return units;
}

/* Whether there is a token on the path of @hctx. A hint. */
static inline bool mqfq_tokens_near(struct mqfq_tokens *tokens, u32 hctx)
{
	return atomic64_read(&tokens->leaf[hctx].value) > 0 ||
	       atomic64_read(&tokens->root.value) > 0 ||
	       (tokens->sockets > 1 &&
		atomic64_read(&tokens->socket[tokens->socket_of[hctx]].value) > 0);
}

#endif
