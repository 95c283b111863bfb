// SPDX-License-Identifier: GPL-2.0
/* Dispatch tokens: see token_tree.h. Loom models: sched/src/shared/token_tree/loom_tests.rs. */
#include "token_tree.h"

int mqfq_tokens_init(struct mqfq_tokens *tokens, u32 hctxs, const u16 *socket_of, u32 depth)
{
	u32 hctx;

	memset(tokens, 0, sizeof(*tokens));
	tokens->hctxs = hctxs;
	tokens->depth = depth;
	tokens->socket_of = socket_of;
	tokens->sockets = 1;
	for (hctx = 0; hctx < hctxs; hctx++)
		tokens->sockets = max_t(u32, tokens->sockets, socket_of[hctx] + 1);
	tokens->leaf = kvcalloc(hctxs, sizeof(struct mqfq_word), GFP_KERNEL);
	tokens->socket = kvcalloc(tokens->sockets, sizeof(struct mqfq_word), GFP_KERNEL);
	if (!tokens->leaf || !tokens->socket) {
		mqfq_tokens_exit(tokens);
		return -ENOMEM;
	}
	atomic64_set(&tokens->root.value, depth);
	return 0;
}

void mqfq_tokens_exit(struct mqfq_tokens *tokens)
{
	kvfree(tokens->leaf);
	kvfree(tokens->socket);
	memset(tokens, 0, sizeof(*tokens));
}

/* Takes what @count has, at most @wanted. */
static s64 take_up_to(atomic64_t *count, s64 wanted)
{
	s64 have = atomic64_read(count);

	while (have > 0 && wanted > 0) {
		s64 taken = min_t(s64, have, wanted);

		/* Acquire: pairs with the release of whoever put the tokens there. */
		if (atomic64_try_cmpxchg_acquire(count, &have, have - taken))
			return taken;
	}
	return 0;
}

/*
 * With @hand tokens gathered, takes the rest of @wanted from the root, in debt if need be, and up
 * to @spare more without. Returns what is in hand then; 0 if root and hand hold no free token: then
 * the hand's tokens are at the root.
 */
static s64 take_rest_from_root(struct mqfq_tokens *tokens, s64 wanted, s64 hand, s64 spare)
{
	s64 have = atomic64_read(&tokens->root.value);

	for (;;) {
		bool enough = have + hand > 0;
		s64 left = have + hand, more = 0;

		if (!enough && !hand)
			return 0;
		if (enough) {
			left -= wanted;
			more = clamp_t(s64, left, 0, spare);
			left -= more;
		}
		/* Acquire and release: as in take_up_to(); our hand may go into the debt. */
		if (atomic64_try_cmpxchg(&tokens->root.value, &have, left))
			return enough ? wanted + more : 0;
	}
}

/*
 * Takes @units tokens for a request of @hctx, and up to @spare more for its leaf. False: there are
 * none on its path; or with @steal, nowhere. A steal must follow a mark in the ready set.
 */
bool mqfq_tokens_acquire(struct mqfq_tokens *tokens, u32 hctx, u32 units, u32 spare, bool steal)
{
	atomic64_t *leaf = &tokens->leaf[hctx].value;
	s64 hand = take_up_to(leaf, units), wanted = units;
	u32 other;

	if (hand == wanted)
		return true;
	if (tokens->sockets > 1)
		hand += take_up_to(&tokens->socket[tokens->socket_of[hctx]].value, wanted - hand);
	if (hand < wanted && steal) {
		for (other = 0; other < tokens->hctxs && hand < wanted; other++)
			hand += take_up_to(&tokens->leaf[other].value, wanted - hand);
		for (other = 0; other < tokens->sockets && hand < wanted; other++)
			hand += take_up_to(&tokens->socket[other].value, wanted - hand);
	}
	if (hand < wanted) {
		hand = take_rest_from_root(tokens, wanted, hand, spare);
		if (!hand)
			return false;
	}
	if (hand > wanted) {
		atomic64_fetch_add_release(hand - wanted, leaf);
		/* Pairs with the fence in mqfq_ready_mark(): our next look at the set sees it. */
		smp_mb__after_atomic();
	}
	return true;
}

/* Pays a debt of the root with up to @units. Returns how many that took. */
u32 mqfq_tokens_pay(struct mqfq_tokens *tokens, u32 units)
{
	s64 have = atomic64_read(&tokens->root.value);

	while (have < 0) {
		s64 paid = min_t(s64, units, -have);

		/* Release: pairs with the acquire of whoever takes them. */
		if (atomic64_try_cmpxchg_release(&tokens->root.value, &have, have + paid))
			return paid;
	}
	return 0;
}

/* Moves one token from the leaf of @from to where @to can take it. It may have gone already. */
void mqfq_tokens_pass(struct mqfq_tokens *tokens, u32 from, u32 to)
{
	bool near = tokens->sockets > 1 && tokens->socket_of[from] == tokens->socket_of[to];

	if (from != to && take_up_to(&tokens->leaf[from].value, 1)) {
		atomic64_fetch_add_release(1, near ?
			&tokens->socket[tokens->socket_of[to]].value : &tokens->root.value);
		/* Pairs with the fence in mqfq_ready_mark(): a look by @to at the set sees it. */
		smp_mb__after_atomic();
	}
}

/* Another D, for what is dispatched from now on. Ends with a fence; then look at the ready set. */
void mqfq_tokens_set_depth(struct mqfq_tokens *tokens, u32 depth)
{
	atomic64_fetch_add_release((s64)depth - tokens->depth, &tokens->root.value);
	WRITE_ONCE(tokens->depth, depth);
	/* Pairs with the fence in mqfq_ready_mark(). */
	smp_mb();
}

/* Free tokens in all. Exact only while nobody calls anything else. */
s64 mqfq_tokens_free(struct mqfq_tokens *tokens)
{
	s64 sum = atomic64_read(&tokens->root.value);
	u32 at;

	for (at = 0; at < tokens->hctxs; at++)
		sum += atomic64_read(&tokens->leaf[at].value);
	for (at = 0; at < tokens->sockets; at++)
		sum += atomic64_read(&tokens->socket[at].value);
	return sum;
}
