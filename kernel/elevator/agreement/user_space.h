/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What are a kernel's primitives in user space? The same names over the compiler's atomics, for the
 * core's files as they are. Orderings are no weaker than the kernel's names say.
 */
#ifndef MQFQ_USER_SPACE_H
#define MQFQ_USER_SPACE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef int64_t s64;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint16_t u16;
typedef int gfp_t;
typedef struct { s64 counter; } atomic64_t;

#define ____cacheline_aligned_in_smp __attribute__((aligned(64)))
#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define smp_mb__after_atomic() smp_mb()
#define atomic64_set(a, v) __atomic_store_n(&(a)->counter, (s64)(v), __ATOMIC_RELAXED)
#define atomic64_set_release(a, v) __atomic_store_n(&(a)->counter, (s64)(v), __ATOMIC_RELEASE)
#define atomic64_read(a) __atomic_load_n(&(a)->counter, __ATOMIC_RELAXED)
#define atomic64_read_acquire(a) __atomic_load_n(&(a)->counter, __ATOMIC_ACQUIRE)
#define atomic64_add(v, a) ((void)__atomic_fetch_add(&(a)->counter, (s64)(v), __ATOMIC_RELAXED))
#define atomic64_fetch_add_relaxed(v, a) __atomic_fetch_add(&(a)->counter, (s64)(v), __ATOMIC_RELAXED)
#define atomic64_fetch_add_release(v, a) __atomic_fetch_add(&(a)->counter, (s64)(v), __ATOMIC_RELEASE)
#define atomic64_fetch_or_release(v, a) __atomic_fetch_or(&(a)->counter, (s64)(v), __ATOMIC_RELEASE)
#define atomic64_fetch_and_acquire(v, a) __atomic_fetch_and(&(a)->counter, (s64)(v), __ATOMIC_ACQUIRE)
#define atomic64_fetch_inc(a) __atomic_fetch_add(&(a)->counter, 1, __ATOMIC_SEQ_CST)
#define atomic64_dec_return(a) __atomic_sub_fetch(&(a)->counter, 1, __ATOMIC_SEQ_CST)
#define atomic64_xchg(a, v) __atomic_exchange_n(&(a)->counter, (s64)(v), __ATOMIC_SEQ_CST)
#define atomic64_xchg_acquire(a, v) __atomic_exchange_n(&(a)->counter, (s64)(v), __ATOMIC_ACQUIRE)
#define MQFQ_TRY(a, old, new, order) __atomic_compare_exchange_n(&(a)->counter, (old), \
	(s64)(new), false, (order), __ATOMIC_RELAXED)
#define atomic64_try_cmpxchg_relaxed(a, old, new) MQFQ_TRY(a, old, new, __ATOMIC_RELAXED)
#define atomic64_try_cmpxchg_acquire(a, old, new) MQFQ_TRY(a, old, new, __ATOMIC_ACQUIRE)
#define atomic64_try_cmpxchg_release(a, old, new) MQFQ_TRY(a, old, new, __ATOMIC_RELEASE)
#define atomic64_try_cmpxchg(a, old, new) MQFQ_TRY(a, old, new, __ATOMIC_ACQ_REL)

#define GFP_KERNEL 0
#define BIT_ULL(n) (1ULL << (n))
#define kvfree(p) free(p)
#define kfree(p) free(p)
#define kcalloc(n, size, gfp) kvcalloc(n, size, gfp)
#define min_t(type, a, b) ((type)(a) < (type)(b) ? (type)(a) : (type)(b))
#define max_t(type, a, b) ((type)(a) > (type)(b) ? (type)(a) : (type)(b))
#define clamp_t(type, v, lo, hi) min_t(type, max_t(type, v, lo), hi)
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))
#define ilog2(v) (63 - __builtin_clzll(v))
#define __ffs64(v) ((u32)__builtin_ctzll(v))
#define div64_u64(a, b) ((a) / (b))
#define div64_s64(a, b) ((a) / (b))
#define mul_u64_u64_shr(a, b, n) ((u64)(((unsigned __int128)(a) * (b)) >> (n)))
#define mul_u64_u64_div_u64(a, b, c) ((u64)((unsigned __int128)(a) * (b) / (c)))
#define list_entry(p, type, member) ((type *)((char *)(p) - offsetof(type, member)))

static inline void *kvcalloc(size_t n, size_t size, int flags)
{
	void *memory = aligned_alloc(64, (n * size + 63) & ~(size_t)63);

	(void)flags;
	return memory ? memset(memory, 0, n * size) : NULL;
}

/* The root, rounded down. */
static inline u32 int_sqrt64(u64 value)
{
	u64 root = 0, bit;

	for (bit = 1ULL << 31; bit; bit >>= 1)
		if ((root + bit) * (root + bit) <= value)
			root += bit;
	return root;
}

struct list_head { struct list_head *next, *prev; };

static inline void INIT_LIST_HEAD(struct list_head *head)
{
	head->next = head;
	head->prev = head;
}

static inline bool list_empty(const struct list_head *head)
{
	return head->next == head;
}

static inline void list_add_tail(struct list_head *item, struct list_head *head)
{
	item->prev = head->prev;
	item->next = head;
	head->prev->next = item;
	head->prev = item;
}

static inline void list_del_init(struct list_head *item)
{
	item->prev->next = item->next;
	item->next->prev = item->prev;
	INIT_LIST_HEAD(item);
}

#define list_step(at, member, to) list_entry((at)->member.to, typeof(*(at)), member)
#define list_for_each_entry(at, head, member) \
	for (at = list_entry((head)->next, typeof(*at), member); &at->member != (head); \
	     at = list_step(at, member, next))
#define list_for_each_entry_reverse(at, head, member) \
	for (at = list_entry((head)->prev, typeof(*at), member); &at->member != (head); \
	     at = list_step(at, member, prev))
#define list_for_each_entry_safe_reverse(at, other, head, member) \
	for (at = list_entry((head)->prev, typeof(*at), member), \
	     other = list_step(at, member, prev); &at->member != (head); \
	     at = other, other = list_step(at, member, prev))

/* A request, as tests make it. */
struct mqfq_item {
	struct list_head node;
	u64 cost;
	u64 handle;
};

static inline u64 mqfq_item_cost(struct list_head *item)
{
	return list_entry(item, struct mqfq_item, node)->cost;
}

#endif
