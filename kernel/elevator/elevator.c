// SPDX-License-Identifier: GPL-2.0
/*
 * The blk-mq elevator "mqfq": how do requests of a kernel get into the core, and out of it?
 *
 * A request's flow is that of its first bio's cgroup (cgroup.c), or that of the process that asked
 * for it, whose key is in elv.priv[1] until it is inserted (process.h). Until then elv.priv[0] has
 * the reservation of its tag (tags.h), if there is one; from insert to finish it has the request's
 * lane, and elv.priv[1] the tokens that it holds, and whether it is counted (tuning.h). A flow counts the scheduler tags that it holds, and is there while it holds any.
 *
 * Locks: one per hardware queue, never two at once, never from an interrupt. Completions take none.
 * has_work() is false while a queue waits for virtual time or a token: whoever ends that clears
 * `waiting` and runs the queue.
 */
#include <linux/bio.h>
#include <linux/interrupt.h>
#include <linux/sched/mm.h>
#include "tags.h"
#define CREATE_TRACE_POINTS
#include "trace.h"

static unsigned int depth = 128;
module_param(depth, uint, 0444);
MODULE_PARM_DESC(depth, "D that an elevator begins with, units of 4 KiB (1 to 65535)");

static struct mqfq_elevator *elevator_of(struct request_queue *q)
{
	return q->elevator->elevator_data;
}

static void run_queue(struct mqfq *s, u32 hctx)
{
	struct mqfq_elevator *e = container_of(s, struct mqfq_elevator, s);
	struct blk_mq_hw_ctx *to = READ_ONCE(e->hctxs[hctx].hctx);

	WRITE_ONCE(e->hctxs[hctx].meter.clock_ns, ktime_get_ns());
	if (to)
		blk_mq_run_hw_queue(to, true);
}

/* Dense numbers for the memory nodes that the queues are near to. */
static u16 *sockets_of(struct request_queue *q, u32 hctxs)
{
	u16 *socket_of = kvcalloc(2 * hctxs, sizeof(u16), GFP_KERNEL);
	u16 *nodes = socket_of + hctxs, sockets = 0, at;
	struct blk_mq_hw_ctx *hctx;
	unsigned long i;

	if (!socket_of)
		return NULL;
	queue_for_each_hw_ctx(q, hctx, i) {
		u16 node = (u16)hctx->numa_node;

		for (at = 0; at < sockets && nodes[at] != node; at++)
			;
		if (at == sockets)
			nodes[sockets++] = node;
		socket_of[i] = at;
	}
	return socket_of;
}

static void elevator_free(struct mqfq_elevator *e)
{
	mqfq_flows_exit(e);
	mqfq_tuning_exit(e);
	mqfq_lanes_free(&e->plain, e->q->nr_hw_queues);
	kvfree(e->hctxs);
	mqfq_exit(&e->s);
	kfree(e);
}

/*
 * An idle flow's finish tag stays while virtual time goes on, and must not fall half the circle
 * behind. At 100 GB/s and weight 1 that is a quarter of an hour.
 */
#define REFRESH_JIFFIES (60 * HZ)

static void refresh(struct work_struct *work)
{
	struct delayed_work *own = to_delayed_work(work);
	struct mqfq_elevator *e = container_of(own, struct mqfq_elevator, refresh);
	u64 gvt = mqfq_gvt(&e->s.mind);
	u32 slot;

	mqfq_flow_refresh(&e->plain, gvt);
	for (slot = 0; mqfq_by_process(e) && slot < MQFQ_PROCESSES; slot++)
		mqfq_flow_refresh(&e->processes.flows[slot], gvt);
	mqfq_cgroups_refresh(e);
	schedule_delayed_work(&e->refresh, REFRESH_JIFFIES);
}

static struct mqfq_elevator *elevator_new(struct request_queue *q)
{
	struct mqfq_elevator *e = kzalloc_node(sizeof(*e), GFP_KERNEL, q->node);
	u32 hctxs = q->nr_hw_queues, hctx;
	u32 begin = clamp(depth, 1U, MQFQ_DEPTH_MAX);
	/* As the rule for T has it while one flow waits at the usual D. */
	u64 window = 16 * MQFQ_WINDOW_LEAST;
	u16 *socket_of;
	int error = -ENOMEM;

	if (!e)
		return ERR_PTR(-ENOMEM);
	e->q = q;
	e->s.kick = run_queue;
	socket_of = sockets_of(q, hctxs);
	e->hctxs = kvcalloc(hctxs, sizeof(struct mqfq_hctx), GFP_KERNEL);
	if (socket_of && e->hctxs && !mqfq_lanes_alloc(&e->plain, hctxs, GFP_KERNEL))
		error = mqfq_init(&e->s, hctxs, socket_of, begin, window);
	if (!error)
		error = mqfq_tuning_init(e, begin, window);
	kvfree(socket_of);
	if (error) {
		elevator_free(e);
		return ERR_PTR(error);
	}
	for (hctx = 0; hctx < hctxs; hctx++) {
		spin_lock_init(&e->hctxs[hctx].lock);
		e->hctxs[hctx].granted_end = &e->hctxs[hctx].granted;
		e->hctxs[hctx].queue = &e->s.queues[hctx];
		e->hctxs[hctx].index = hctx;
		/* Queues of a SCSI host may have one set of tags together. */
		e->hctxs[hctx].account = blk_mq_is_shared_tags(q->tag_set->flags) ?
			&e->hctxs[0] : &e->hctxs[hctx];
	}
	mqfq_flow_init(&e->plain, MQFQ_WEIGHT_DEFAULT, 0);
	spin_lock_init(&e->process_lock);
	e->full_jiffies = jiffies - 1;
	INIT_DELAYED_WORK(&e->refresh, refresh);
	return e;
}

static int mqfq_init_sched(MQFQ_INIT_SCHED_ARGS)
{
	struct elevator_queue *eq = MQFQ_ELEVATOR;
	/* The queue is frozen: memory must not come from writing to it. */
	unsigned int flags = memalloc_noio_save();
	struct mqfq_elevator *e;
	int error = -ENOMEM;

	if (!eq)
		goto out;
	e = elevator_new(q);
	if (IS_ERR(e)) {
		error = PTR_ERR(e);
		goto undo;
	}
	eq->elevator_data = e;
	blk_queue_flag_clear(QUEUE_FLAG_SQ_SCHED, q);
	q->elevator = eq;
	error = mqfq_cgroups_activate(e);
	if (!error && !e->has_cgroups)
		error = mqfq_flows_set(e, true);
	if (!error) {
		mqfq_kept_apply(e);
		mqfq_wbt_disable(q, eq);
		schedule_delayed_work(&e->refresh, REFRESH_JIFFIES);
		goto out;
	}
	q->elevator = NULL;
	eq->elevator_data = NULL;
	elevator_free(e);
undo:
	mqfq_elevator_undo(eq);
out:
	memalloc_noio_restore(flags);
	if (error)
		pr_err("mqfq: no elevator for a device of %u queues: error %d\n", q->nr_hw_queues,
		       error);
	return error;
}

static void mqfq_exit_sched(struct elevator_queue *eq)
{
	struct mqfq_elevator *e = eq->elevator_data;

	cancel_delayed_work_sync(&e->refresh);
	mqfq_kept_save(e);
	mqfq_cgroups_deactivate(e);
	mqfq_wbt_enable(e->q, eq);
	WARN_ON_ONCE(mqfq_tokens_free(&e->s.tokens) != e->s.tokens.depth);
	elevator_free(e);
}

static void mqfq_depth_updated(MQFQ_DEPTH_UPDATED_ARGS)
{
	/* Limits may go down to one tag, and a limited waiter must be woken in time. */
	MQFQ_DEPTH_UPDATED;
}

static int mqfq_init_hctx(struct blk_mq_hw_ctx *hctx, unsigned int index)
{
	struct mqfq_elevator *e = elevator_of(hctx->queue);

	if (index >= e->s.hctxs)
		return -E2BIG;
	hctx->sched_data = &e->hctxs[index];
	WRITE_ONCE(e->hctxs[index].hctx, hctx);
	mqfq_min_shallow(hctx);
	return 0;
}

static void mqfq_exit_hctx(struct blk_mq_hw_ctx *hctx, unsigned int index)
{
	struct mqfq_hctx *own = hctx->sched_data;

	WARN_ON_ONCE(own->granted);
	WRITE_ONCE(own->hctx, NULL);
	hctx->sched_data = NULL;
}

static void mqfq_limit_depth(blk_opf_t opf, struct blk_mq_alloc_data *data)
{
	struct mqfq_hctx *own = data->hctx->sched_data;

	/*
	 * While half of the tags are free, and no task waits for one, no flow starves. Tasks that wait
	 * are not counted yet, and there may be more of them than tags.
	 */
	if (2 * (atomic_read(&own->account->tags_out) + data->nr_tags) > data->q->nr_requests ||
	    atomic_read(&data->hctx->sched_tags->bitmap_tags.ws_active))
		mqfq_tags_limit(opf, data);
}

static noinline bool merge(struct request_queue *q, struct mqfq_hctx *own, struct bio *bio,
			   unsigned int segments)
{
	struct mqfq_lane *lane = mqfq_flow_of_current(elevator_of(q), bio)->lanes[own->index];
	bool merged;

	spin_lock(&own->lock);
	merged = blk_bio_list_merge(q, &lane->requests, bio, segments);
	spin_unlock(&own->lock);
	return merged;
}

static bool mqfq_bio_merge(struct request_queue *q, struct bio *bio, unsigned int segments)
{
	struct mqfq_hctx *own = mqfq_map_queue(q, bio)->sched_data;

	return READ_ONCE(own->queue->stage.staged) && merge(q, own, bio, segments);
}

static void mqfq_prepare_request(struct request *rq)
{
	struct mqfq_elevator *e = elevator_of(rq->q);

	rq->elv.priv[0] = unlikely(atomic_read(&e->reserving)) ? mqfq_take_reservation(e) : NULL;
	rq->elv.priv[1] = unlikely(mqfq_by_process(e)) ? (void *)mqfq_key_of_current(e) : NULL;
}

/* Whether the first request waits for a token now, for the controllers. */
static void note(struct mqfq_hctx *own, struct mqfq_queue *queue, enum mqfq_state state)
{
	bool waits = state == MQFQ_NO_TOKEN || (state == MQFQ_THROTTLED && queue->is_pinned);

	if (waits != own->meter.is_waiting)
		mqfq_tuning_waits(&own->meter, waits);
}

/* What a request holds while it is on the device: its units, and whether it is counted. */
static inline unsigned long charge(struct mqfq_elevator *e, struct mqfq_meter *meter,
				   struct request *rq, u32 units)
{
	if (!mqfq_tuning_is_on(&e->tuning))
		return units;
	WRITE_ONCE(meter->begun, meter->begun + units);
	smp_wmb(); /* pairs with read_meter() */
	WRITE_ONCE(meter->unit_ns, meter->unit_ns + units * READ_ONCE(meter->clock_ns));
	WRITE_ONCE(meter->start_unit_ns, meter->start_unit_ns + units * rq->start_time_ns);
	smp_wmb(); /* pairs with read_meter() */
	WRITE_ONCE(meter->units, meter->units + units);
	return units | MQFQ_COUNTED;
}

/* The request goes to the device with so many units, now or when the device has room. */
static inline void grant(struct mqfq_elevator *e, struct mqfq_hctx *own, struct mqfq_lane *lane,
			 struct request *rq, u32 units)
{
	u32 direction = rq_data_dir(rq);

	rq->elv.priv[1] = (void *)charge(e, &own->meter, rq, units);
	WRITE_ONCE(lane->bytes[direction], lane->bytes[direction] + blk_rq_bytes(rq));
	WRITE_ONCE(lane->done[direction], lane->done[direction] + 1);
	trace_mqfq_dispatch(rq, lane, own->index);
}

/* The request is the next that is dispatched, or the last of those that need no more leave. */
static inline void let_go(struct mqfq_hctx *own, struct request *rq, bool at_head)
{
	struct request **at = at_head ? &own->granted : own->granted_end;

	rq->rq_next = at_head ? own->granted : NULL;
	/* has_work() reads it. */
	WRITE_ONCE(*at, rq);
	if (!rq->rq_next)
		own->granted_end = &rq->rq_next;
}

static inline void insert(struct mqfq_elevator *e, struct mqfq_hctx *own, struct request *rq,
			  bool at_head)
{
	struct mqfq_lane *lane, *reserved;
	u32 index, units;

	reserved = blk_rq_is_passthrough(rq) ? NULL : mqfq_reserved_by(rq);
	/*
	 * One that comes back keeps its tokens. The data of a write with a flush before it comes at
	 * the head for the first time, and is charged like any other.
	 */
	if (blk_rq_is_passthrough(rq) || (rq->elv.priv[0] && !reserved)) {
		let_go(own, rq, at_head);
		return;
	}
	index = own->index;
	if (unlikely(rq->elv.priv[1])) {
		lane = mqfq_hold_tag_of_process(e, own, rq);
	} else {
		lane = mqfq_flow_of(e, rq->bio)->lanes[index];
		if (unlikely(READ_ONCE(lane->flow->is_idle)))
			mqfq_cgroups_wake(e, lane->flow);
		mqfq_hold_tag(own, lane);
	}
	rq->elv.priv[0] = lane;
	if (unlikely(reserved))
		mqfq_unreserve(e, reserved, reserved != lane->flow->lanes[own->account->index]);
	mqfq_begin(rq);
	if (rq->start_time_ns > READ_ONCE(own->meter.clock_ns))
		WRITE_ONCE(own->meter.clock_ns, rq->start_time_ns);
	units = mqfq_enter(&e->s, own->queue, lane, &rq->queuelist);
	trace_mqfq_insert(rq, lane, index);
	if (units) {
		grant(e, own, lane, rq, units);
		let_go(own, rq, false);
	}
}

static bool mqfq_has_work(struct blk_mq_hw_ctx *hctx)
{
	struct mqfq_hctx *own = hctx->sched_data;
	struct mqfq_queue *queue;

	if (READ_ONCE(own->granted))
		return true;
	queue = own->queue;
	return READ_ONCE(queue->stage.staged) && !READ_ONCE(queue->waiting);
}

/*
 * A task that submits without a plug dispatches by itself what may go. The block layer would have a
 * worker do so: two switches a request, unless, as in Linux 6.12, each bio has a plug. A plug is
 * flushed with a dispatch of its own, perhaps while its task goes to sleep; so are requests that
 * come back, by a worker.
 */
static inline bool may_dispatch(struct blk_mq_hw_ctx *hctx)
{
	return !current->plug && !(current->flags & PF_WQ_WORKER) &&
	       !(hctx->flags & BLK_MQ_F_BLOCKING);
}

static void mqfq_insert_requests(struct blk_mq_hw_ctx *hctx, struct list_head *list,
				 MQFQ_INSERT_FLAGS flags)
{
	struct mqfq_elevator *e = elevator_of(hctx->queue);
	struct mqfq_hctx *own = hctx->sched_data;
	struct list_head *at, *next;

	spin_lock(&own->lock);
	/* All of them leave the list, each to a place of its own. */
	for (at = list->next; at != list; at = next) {
		next = at->next;
		insert(e, own, list_entry_rq(at), flags & MQFQ_AT_HEAD);
	}
	INIT_LIST_HEAD(list);
	if (own->queue->stage.first && !READ_ONCE(own->queue->waiting))
		note(own, own->queue, mqfq_settle(&e->s, own->queue));
	spin_unlock(&own->lock);
	/* As the worker does; blk_mq_run_hw_queue() would first ask whether there is work. */
	if (may_dispatch(hctx) && mqfq_has_work(hctx))
		hctx->run_work.work.func(&hctx->run_work.work);
}

/* With nothing granted: the first of those that are staged, if it may go. */
static noinline struct request *pick(struct mqfq_elevator *e, struct mqfq_hctx *own)
{
	struct mqfq_queue *queue = own->queue;
	struct request *rq = NULL;
	enum mqfq_state state;
	struct list_head *item;
	struct mqfq_lane *lane;
	u32 units;

	state = mqfq_pick(&e->s, queue, &item, &lane, &units);
	if (state == MQFQ_DISPATCH) {
		rq = list_entry_rq(item);
		grant(e, own, lane, rq, units);
		/* So that has_work() says at once that there is no use in asking again. */
		if (queue->stage.first)
			state = mqfq_settle(&e->s, queue);
	}
	note(own, queue, state);
	return rq;
}

static struct request *mqfq_dispatch_request(struct blk_mq_hw_ctx *hctx)
{
	struct mqfq_hctx *own = hctx->sched_data;
	struct request *rq;

	spin_lock(&own->lock);
	rq = own->granted;
	if (rq) {
		WRITE_ONCE(own->granted, rq->rq_next);
		if (!rq->rq_next)
			own->granted_end = &own->granted;
	} else {
		rq = pick(elevator_of(hctx->queue), own);
	}
	spin_unlock(&own->lock);
	return rq;
}

/* A request that was counted has completed. True if a step of the controllers is due. */
static inline bool count(struct mqfq_elevator *e, struct mqfq_meter *meter, u32 units, u64 now)
{
	struct mqfq_tuning *tuning = &e->tuning;
	struct mqfq_counts __percpu *counts = tuning->counts;
	u32 class = mqfq_class_of(units);
	u64 before_ns, longest_ns;

	WRITE_ONCE(meter->clock_ns, now);
	before_ns = this_cpu_read(counts->completed_ns);
	longest_ns = this_cpu_read(counts->silent_to_ns) - this_cpu_read(counts->silent_from_ns);
	this_cpu_inc(counts->begun);
	smp_wmb(); /* pairs with read_cpu() */
	this_cpu_add(counts->work[class].units, units);
	this_cpu_inc(counts->work[class].requests);
	this_cpu_add(counts->unit_ns, units * now);
	if ((s64)(now - before_ns - longest_ns) > 0 ||
	    this_cpu_read(counts->epoch) != READ_ONCE(tuning->epoch)) {
		this_cpu_write(counts->silent_from_ns, before_ns);
		this_cpu_write(counts->silent_to_ns, now);
		this_cpu_write(counts->epoch, READ_ONCE(tuning->epoch));
	}
	this_cpu_write(counts->completed_ns, now);
	smp_wmb(); /* pairs with read_cpu() */
	return !(this_cpu_inc_return(counts->done) & tuning->period_mask);
}

/* A request leaves the device, and its tag is as good as free. */
static void mqfq_completed_request(struct request *rq, u64 now)
{
	struct mqfq_lane *lane = mqfq_is_prepared(rq) ? rq->elv.priv[0] : NULL;
	struct mqfq_elevator *e;
	struct mqfq_hctx *own;
	bool is_due = false;
	unsigned long held;
	u32 units;

	if (!lane)
		return;
	e = elevator_of(rq->q);
	if (unlikely(mqfq_reserved_by(rq))) {
		/* It was made for a plug, and not used. */
		lane = mqfq_reserved_by(rq);
		rq->elv.priv[0] = NULL;
		mqfq_unreserve(e, lane, true);
		return;
	}
	own = rq->mq_hctx->sched_data;
	held = (unsigned long)rq->elv.priv[1];
	units = held & MQFQ_UNITS_MASK;
	trace_mqfq_complete(rq, lane, own->index);
	rq->elv.priv[0] = NULL;
	if ((s64)(now - rq->start_time_ns) > 0)
		atomic64_add(now - rq->start_time_ns, &lane->system_ns);
	/* Counts that are begun on a CPU are done there; the lane is there as long. */
	preempt_disable();
	if (held & MQFQ_COUNTED)
		is_due = count(e, &own->meter, units, now);
	mqfq_give_tag_back(own, lane);
	if (units)
		mqfq_complete(&e->s, own->index, units);
	if (unlikely(is_due))
		mqfq_tuning_step(e, now);
}

/* One that ends without a time never came to the device, or its driver did not say when. */
static void mqfq_finish_request(struct request *rq)
{
	if (unlikely(rq->elv.priv[0]))
		mqfq_completed_request(rq, ktime_get_ns());
}

static struct elevator_type mqfq_type = {
	.ops = {
		.init_sched = mqfq_init_sched,
		.exit_sched = mqfq_exit_sched,
		.init_hctx = mqfq_init_hctx,
		.exit_hctx = mqfq_exit_hctx,
		.depth_updated = mqfq_depth_updated,
		.limit_depth = mqfq_limit_depth,
		.bio_merge = mqfq_bio_merge,
		.prepare_request = mqfq_prepare_request,
		.insert_requests = mqfq_insert_requests,
		.has_work = mqfq_has_work,
		.dispatch_request = mqfq_dispatch_request,
		.completed_request = mqfq_completed_request,
		.finish_request = mqfq_finish_request,
	},
	.elevator_attrs = (struct elv_fs_entry *)mqfq_attributes,
	.elevator_name = "mqfq",
	.elevator_owner = THIS_MODULE,
};

static int __init mqfq_module_init(void)
{
	int error = mqfq_cgroups_register();

	if (error)
		return error;
	error = elv_register(&mqfq_type);
	if (error)
		mqfq_cgroups_unregister();
	return error;
}

static void __exit mqfq_module_exit(void)
{
	elv_unregister(&mqfq_type);
	mqfq_cgroups_unregister();
	mqfq_kept_exit();
}

module_init(mqfq_module_init);
module_exit(mqfq_module_exit);
MODULE_LICENSE("GPL");
/* What the kernel asks for when "mqfq" is written to a device's scheduler. */
MODULE_ALIAS("mqfq-iosched");
MODULE_DESCRIPTION("Multi-queue fair queueing with cgroup weights");
