/* SPDX-License-Identifier: GPL-2.0 */
/* Events mqfq:mqfq_insert, mqfq_dispatch and mqfq_complete: a history that a checker can judge. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM mqfq

#if !defined(MQFQ_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define MQFQ_TRACE_H

#include <linux/tracepoint.h>
#include "glue.h"

DECLARE_EVENT_CLASS(mqfq_request,
		    TP_PROTO(struct request *rq, struct mqfq_lane *lane, u32 hctx),
		    TP_ARGS(rq, lane, hctx),
		    TP_STRUCT__entry(__field(void *, flow)
				     __field(u64, start)
				     __field(u32, weight)
				     __field(u32, hctx)
				     __field(u32, bytes)
				     __field(u32, units)
				     __field(int, tag)),
		    TP_fast_assign(__entry->flow = lane->flow;
				   __entry->start = lane->start;
				   __entry->weight = lane->flow->weight;
				   __entry->hctx = hctx;
				   __entry->bytes = blk_rq_bytes(rq);
				   __entry->units =
					(unsigned long)rq->elv.priv[1] & MQFQ_UNITS_MASK;
				   __entry->tag = rq->internal_tag;),
		    TP_printk("flow=%p weight=%u hctx=%u tag=%d bytes=%u units=%u head=%llu",
			      __entry->flow, __entry->weight, __entry->hctx, __entry->tag,
			      __entry->bytes, __entry->units, __entry->start));

DEFINE_EVENT(mqfq_request, mqfq_insert,
	     TP_PROTO(struct request *rq, struct mqfq_lane *lane, u32 hctx),
	     TP_ARGS(rq, lane, hctx));
DEFINE_EVENT(mqfq_request, mqfq_dispatch,
	     TP_PROTO(struct request *rq, struct mqfq_lane *lane, u32 hctx),
	     TP_ARGS(rq, lane, hctx));
DEFINE_EVENT(mqfq_request, mqfq_complete,
	     TP_PROTO(struct request *rq, struct mqfq_lane *lane, u32 hctx),
	     TP_ARGS(rq, lane, hctx));

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
