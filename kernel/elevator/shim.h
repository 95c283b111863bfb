/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What does the core take from its surroundings? In the kernel, the kernel's primitives; in user
 * space the same names over the compiler's atomics, so that tests drive the very same source.
 *
 * The core is everything that does not include glue.h.
 */
#ifndef MQFQ_SHIM_H
#define MQFQ_SHIM_H

#ifdef __KERNEL__

#include <linux/atomic.h>
#include <linux/bitops.h>
#include <linux/blk-mq.h>
#include <linux/cache.h>
#include <linux/list.h>
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/slab.h>
#include <linux/mm.h>
#include <linux/wait.h>

/* Service that a request uses, bytes-equivalent: what moves no bytes costs as much as 4 KiB. */
static inline u64 mqfq_item_cost(struct list_head *item)
{
	struct request *rq = list_entry(item, struct request, queuelist);

	switch (req_op(rq)) {
	case REQ_OP_READ:
	case REQ_OP_WRITE:
	case REQ_OP_ZONE_APPEND:
		return max(blk_rq_bytes(rq), 1U);
	default:
		return 4096;
	}
}

#else
#include "agreement/user_space.h"
#endif

/* A word that others write, on a line of its own. */
struct mqfq_word {
	atomic64_t value;
} ____cacheline_aligned_in_smp;

/* Most hardware queues of a device. */
#define MQFQ_HCTXS_MAX 1024

#endif
