/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How do 6.1, 6.12 and 7.2 differ, as far as an elevator sees it? No other file asks for a version.
 */
#ifndef MQFQ_COMPAT_H
#define MQFQ_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/module.h>
#include <linux/version.h>
#include <linux/sbitmap.h>

#include "elevator.h"
#include "blk-mq.h"
#include "blk-mq-sched.h"
#include "blk-cgroup.h"
#include "blk.h"
#include "blk-wbt.h"

#define MQFQ_BEFORE(major, minor) (KERNEL_VERSION(major, minor, 0) > LINUX_VERSION_CODE)

#ifndef CONFIG_64BIT
#error "mqfq is for 64-bit machines: its sums are words that are read without a lock"
#endif

#if MQFQ_BEFORE(6, 5)
#define MQFQ_INSERT_FLAGS bool
#define MQFQ_AT_HEAD true
#else
#define MQFQ_INSERT_FLAGS blk_insert_t
#define MQFQ_AT_HEAD BLK_MQ_INSERT_AT_HEAD
#endif

/* 6.1 completes flushes unprepared: their `elv` is a union with what flushing keeps. */
static inline bool mqfq_is_prepared(struct request *rq)
{
#if MQFQ_BEFORE(6, 5)
	return rq->rq_flags & RQF_ELVPRIV;
#else
	return true;
#endif
}

#ifdef CONFIG_BLK_CGROUP
/* A removed cgroup stays in the queue's list until its flow has been freed, under this alone. */
static inline void mqfq_blkgs_lock(struct request_queue *q)
{
#if !MQFQ_BEFORE(6, 5)
	mutex_lock(&q->blkcg_mutex);
#endif
}

static inline void mqfq_blkgs_unlock(struct request_queue *q)
{
#if !MQFQ_BEFORE(6, 5)
	mutex_unlock(&q->blkcg_mutex);
#endif
}

/* So that whoever walks the list may give queue_lock away for a moment; 6.1 has nothing like it. */
static inline void mqfq_blkgs_breathe(struct request_queue *q)
{
#if !MQFQ_BEFORE(6, 5)
	spin_unlock_irq(&q->queue_lock);
	cond_resched();
	spin_lock_irq(&q->queue_lock);
#endif
}

/* A cgroup's settings of one device: "MAJ:MIN VALUE" opened, and closed again. */
#if MQFQ_BEFORE(6, 5)
#define MQFQ_PD_ALLOC_ARGS gfp_t gfp, struct request_queue *queue, struct blkcg *blkcg
#define MQFQ_PD_ALLOC_QUEUE queue
#define mqfq_policy_of(q) (q)
#define mqfq_conf_open blkg_conf_prep
#define mqfq_conf_close blkg_conf_finish
#else
#define MQFQ_PD_ALLOC_ARGS struct gendisk *disk, struct blkcg *blkcg, gfp_t gfp
#define MQFQ_PD_ALLOC_QUEUE disk->queue
#define mqfq_policy_of(q) ((q)->disk)

static inline int mqfq_conf_open(struct blkcg *blkcg, struct blkcg_policy *pol, char *input,
				 struct blkg_conf_ctx *ctx)
{
	int error;

	blkg_conf_init(ctx, input);
#if MQFQ_BEFORE(7, 1)
	error = blkg_conf_prep(blkcg, pol, ctx);
	if (error)
		blkg_conf_exit(ctx);
#else
	error = blkg_conf_open_bdev(ctx);
	if (error)
		return error;
	error = blkg_conf_prep(blkcg, pol, ctx);
	if (error)
		blkg_conf_close_bdev(ctx);
#endif
	return error;
}

static inline void mqfq_conf_close(struct blkg_conf_ctx *ctx)
{
#if MQFQ_BEFORE(7, 1)
	blkg_conf_exit(ctx);
#else
	blkg_conf_unprep(ctx);
	blkg_conf_close_bdev(ctx);
#endif
}
#endif
#endif

/* The elevator's own half: NULL if there is no memory. What to do if it is not to be. */
#if MQFQ_BEFORE(6, 17)
#define MQFQ_INIT_SCHED_ARGS struct request_queue *q, struct elevator_type *type
#define MQFQ_ELEVATOR elevator_alloc(q, type)
#define MQFQ_DEPTH_UPDATED_ARGS struct blk_mq_hw_ctx *hctx
#define MQFQ_DEPTH_UPDATED mqfq_min_shallow(hctx)

static inline void mqfq_elevator_undo(struct elevator_queue *eq)
{
	kobject_put(&eq->kobj);
}

static inline void mqfq_min_shallow(struct blk_mq_hw_ctx *hctx)
{
	sbitmap_queue_min_shallow_depth(&hctx->sched_tags->bitmap_tags, 1);
}
#else
#define MQFQ_INIT_SCHED_ARGS struct request_queue *q, struct elevator_queue *own
#define MQFQ_ELEVATOR own
#define MQFQ_DEPTH_UPDATED_ARGS struct request_queue *q
#define MQFQ_DEPTH_UPDATED blk_mq_set_min_shallow_depth(q, 1)

static inline void mqfq_elevator_undo(struct elevator_queue *eq) { }

static inline void mqfq_min_shallow(struct blk_mq_hw_ctx *hctx)
{
	blk_mq_set_min_shallow_depth(hctx->queue, 1);
}
#endif

/*
 * Writeback throttling (WBT) holds buffered writes back for the sake of reads, whatever the weights
 * of their cgroups. It is off by default while the elevator is there, as under bfq; a latency that
 * an operator wrote to wbt_lat_usec stays.
 */
static inline void mqfq_wbt_disable(struct request_queue *q, struct elevator_queue *eq)
{
#if MQFQ_BEFORE(6, 2)
	wbt_disable_default(q);
#else
#if defined(ELEVATOR_FLAG_DISABLE_WBT)
	set_bit(ELEVATOR_FLAG_DISABLE_WBT, &eq->flags);
#else
	blk_queue_flag_set(QUEUE_FLAG_DISABLE_WBT_DEF, q);
#endif
	wbt_disable_default(q->disk);
#endif
}

static inline void mqfq_wbt_enable(struct request_queue *q, struct elevator_queue *eq)
{
#if MQFQ_BEFORE(6, 2)
	wbt_enable_default(q);
#else
#if defined(ELEVATOR_FLAG_DISABLE_WBT)
	clear_bit(ELEVATOR_FLAG_DISABLE_WBT, &eq->flags);
#else
	blk_queue_flag_clear(QUEUE_FLAG_DISABLE_WBT_DEF, q);
#endif
#if defined(ELEVATOR_FLAG_ENABLE_WBT_ON_EXIT)
	/* The block layer enables it when the queue runs again. */
	set_bit(ELEVATOR_FLAG_ENABLE_WBT_ON_EXIT, &eq->flags);
#else
	wbt_enable_default(q->disk);
#endif
#endif
}

/* Where no iostats are kept, 7.2 leaves it the time of submission of an earlier use, or 0. */
static inline void mqfq_begin(struct request *rq)
{
	if (!MQFQ_BEFORE(6, 13) && !(rq->rq_flags & RQF_IO_STAT))
		rq->start_time_ns = ktime_get_ns();
}

static inline struct blk_mq_hw_ctx *mqfq_map_queue(struct request_queue *q, struct bio *bio)
{
#if MQFQ_BEFORE(6, 18)
	return blk_mq_map_queue(q, bio->bi_opf, blk_mq_get_ctx(q));
#else
	return blk_mq_map_queue(bio->bi_opf, blk_mq_get_ctx(q));
#endif
}

/*
 * What limits a request to the lower @part of @whole of the scheduler's tags. Before 6.18 a limit
 * counts the bits of each word of the tags' bitmap.
 */
static inline u32 mqfq_shallow_depth(struct blk_mq_alloc_data *data, u32 part, u32 whole)
{
#if MQFQ_BEFORE(6, 18)
	u32 bits = 1U << data->hctx->sched_tags->bitmap_tags.sb.shift;
#else
	u32 bits = data->q->nr_requests;
#endif

	return max(1U, bits * part / whole);
}

#endif
