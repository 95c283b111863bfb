/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Flows are processes: which flow does this process have, among few that are made once?
 *
 * A slot is a flow and the key of whom it is: the process's number in the low half, a generation in
 * the high one. Looking up takes no lock. A process that has no slot claims one, under the caller's
 * lock: one that nobody has; else one without requests whose finish tag virtual time has reached;
 * else, forgetting how far ahead it was, one without requests. If there is none of these, the
 * process shares a flow with all others that found none.
 *
 * P1: a process has one slot at most. P2: while a request is on a slot's account, no other process
 * gets the slot. Who charges a request counts it, fully ordered, and looks at the key again; who
 * claims a slot takes its key away, fully ordered, and looks at the counts: one of the two sees the
 * other. A claim that sees a request gives the key back; who looked in between is charged with
 * those who have no slot.
 */
#ifndef MQFQ_PROCESS_H
#define MQFQ_PROCESS_H

#include "stage_queue.h"

#define MQFQ_PROCESSES 64

/* The key of those who have no slot. No slot has it. */
#define MQFQ_REST BIT_ULL(63)

struct mqfq_processes {
	struct mqfq_flow *flows;	/* MQFQ_PROCESSES of them; NULL: processes are no flows */
	u32 hctxs;
	u32 generation;
	atomic64_t key[MQFQ_PROCESSES] ____cacheline_aligned_in_smp;	/* 0: nobody's */
};

u64 mqfq_process_find(struct mqfq_processes *processes, u32 number);
u64 mqfq_process_claim(struct mqfq_processes *processes, u32 number, u64 gvt);
struct mqfq_flow *mqfq_process_flow(struct mqfq_processes *processes, u64 key);
u32 mqfq_process_weight(u32 class, u32 level);

#endif
