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

#ifndef CONFIG_64BIT
#error "mqfq is for 64-bit machines: its sums are words that are read without a lock"
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
typedef bool mqfq_insert_flags;
#define mqfq_at_head(flags) (flags)
/* Flushes are completed unprepared: their `elv` is a union with what flushing keeps. */
#define mqfq_is_prepared(rq) ((rq)->rq_flags & RQF_ELVPRIV)
#else
typedef blk_insert_t mqfq_insert_flags;
#define mqfq_at_head(flags) ((flags) & BLK_MQ_INSERT_AT_HEAD)
#define mqfq_is_prepared(rq) true
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
#define MQFQ_PD_ALLOC_ARGS gfp_t gfp, struct request_queue *q, struct blkcg *blkcg
#define mqfq_pd_alloc_queue q
#define mqfq_activate(q, pol) blkcg_activate_policy(q, pol)
#define mqfq_deactivate(q, pol) blkcg_deactivate_policy(q, pol)
/* A removed cgroup leaves the queue's list before its flow is freed. */
#define mqfq_blkgs_lock(q) do { } while (0)
#define mqfq_blkgs_unlock(q) do { } while (0)
#else
#define MQFQ_PD_ALLOC_ARGS struct gendisk *disk, struct blkcg *blkcg, gfp_t gfp
#define mqfq_pd_alloc_queue (disk->queue)
#define mqfq_activate(q, pol) blkcg_activate_policy((q)->disk, pol)
#define mqfq_deactivate(q, pol) blkcg_deactivate_policy((q)->disk, pol)
/* A removed cgroup stays in the queue's list until its flow has been freed, under this alone. */
#define mqfq_blkgs_lock(q) mutex_lock(&(q)->blkcg_mutex)
#define mqfq_blkgs_unlock(q) mutex_unlock(&(q)->blkcg_mutex)
#endif

/* A cgroup's settings of one device: "MAJ:MIN VALUE" opened, and closed again. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
static inline int mqfq_conf_open(struct blkcg *blkcg, struct blkcg_policy *pol, char *input,
				 struct blkg_conf_ctx *ctx)
{
	return blkg_conf_prep(blkcg, pol, input, ctx);
}

static inline void mqfq_conf_close(struct blkg_conf_ctx *ctx)
{
	blkg_conf_finish(ctx);
}
#else
static inline int mqfq_conf_open(struct blkcg *blkcg, struct blkcg_policy *pol, char *input,
				 struct blkg_conf_ctx *ctx)
{
	int error;

	blkg_conf_init(ctx, input);
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
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
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
	blkg_conf_exit(ctx);
#else
	blkg_conf_unprep(ctx);
	blkg_conf_close_bdev(ctx);
#endif
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
#define MQFQ_INIT_SCHED_ARGS struct request_queue *q, struct elevator_type *type

/* The elevator's own half; NULL if there is no memory. */
#define mqfq_elevator_of(q) elevator_alloc(q, type)
#define mqfq_elevator_undo(eq) kobject_put(&(eq)->kobj)
#define MQFQ_DEPTH_UPDATED_ARGS struct blk_mq_hw_ctx *hctx

#define MQFQ_DEPTH_UPDATED hctx

#define mqfq_min_shallow(hctx) \
	sbitmap_queue_min_shallow_depth(&(hctx)->sched_tags->bitmap_tags, 1)
#define mqfq_min_shallow_of(hctx) mqfq_min_shallow(hctx)
#else
#define MQFQ_INIT_SCHED_ARGS struct request_queue *q, struct elevator_queue *own

#define mqfq_elevator_of(q) (own)
#define mqfq_elevator_undo(eq) do { } while (0)
#define MQFQ_DEPTH_UPDATED_ARGS struct request_queue *q
#define MQFQ_DEPTH_UPDATED q

#define mqfq_min_shallow(q) blk_mq_set_min_shallow_depth(q, 1)
#define mqfq_min_shallow_of(hctx) mqfq_min_shallow((hctx)->queue)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define mqfq_begin(rq) do { } while (0)
#else
/* Where no iostats are kept, 7.2 leaves it the time of submission of an earlier use, or 0. */
static inline void mqfq_begin(struct request *rq)
{
	if (!(rq->rq_flags & RQF_IO_STAT))
		rq->start_time_ns = ktime_get_ns();
}
#endif

static inline struct blk_mq_hw_ctx *mqfq_map_queue(struct request_queue *q, struct bio *bio)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 18, 0)
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
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 18, 0)
	u32 bits = 1U << data->hctx->sched_tags->bitmap_tags.sb.shift;
#else
	u32 bits = data->q->nr_requests;
#endif

	return max(1U, bits * part / whole);
}

#endif
