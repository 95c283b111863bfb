// SPDX-License-Identifier: GPL-2.0
/* Flows of processes: see process.h. */
#include "process.h"

/* Of best effort, from level 0 on; each is 1.25 times the next. Level 4 is that of nice 0. */
static const u32 weights[] = { 244, 195, 156, 125, MQFQ_WEIGHT_DEFAULT, 80, 64, 51 };

/* A realtime process has so many times the weight of best effort, an idle one this weight. */
#define REALTIME 10
#define IDLE_WEIGHT 10

/* @class and @level as ionice(1) has them: 0 to 3, where 0 is none, and 0 to 7. */
u32 mqfq_process_weight(u32 class, u32 level)
{
	switch (class) {
	case 1:
		return REALTIME * weights[level % 8];
	case 2:
		return weights[level % 8];
	case 3:
		return IDLE_WEIGHT;
	default:
		return MQFQ_WEIGHT_DEFAULT;
	}
}

/* Where the slot of a process is looked for first. */
static u32 home_of(u32 number)
{
	return (u32)(number * 2654435769U) / (u32)(BIT_ULL(32) / MQFQ_PROCESSES);
}

#define MQFQ_SLOT(home, step) (((home) + (step)) % MQFQ_PROCESSES)

/* The key of process @number, more than 0; 0: it has no slot. */
u64 mqfq_process_find(struct mqfq_processes *processes, u32 number)
{
	u32 home = home_of(number), step;

	for (step = 0; step < MQFQ_PROCESSES; step++) {
		/* Acquire: pairs with the release in take_slot(): the flow is this process's. */
		u64 key = atomic64_read_acquire(&processes->key[MQFQ_SLOT(home, step)]);

		if ((u32)key == number)
			return key;
	}
	return 0;
}

/* The flow of whom has this key; NULL: the slot is another's by now. */
struct mqfq_flow *mqfq_process_flow(struct mqfq_processes *processes, u64 key)
{
	u32 home = home_of((u32)key), step;

	for (step = 0; key != MQFQ_REST && step < MQFQ_PROCESSES; step++) {
		u32 slot = MQFQ_SLOT(home, step);

		/* Acquire: as in mqfq_process_find(). */
		if ((u64)atomic64_read_acquire(&processes->key[slot]) == key)
			return &processes->flows[slot];
	}
	return NULL;
}

static bool has_requests(struct mqfq_processes *processes, u32 slot)
{
	u32 hctx;

	for (hctx = 0; hctx < processes->hctxs; hctx++)
		if (atomic64_read(&processes->flows[slot].lanes[hctx]->requests_out))
			return true;
	return false;
}

/* @slot becomes that of process @number, unless it has requests. Returns the key, or 0. */
static u64 take_slot(struct mqfq_processes *processes, u32 slot, u32 number, u64 gvt)
{
	/* Fully ordered: pairs with whoever counts a request and looks at the key again. */
	u64 before = atomic64_xchg(&processes->key[slot], 0), key;

	if (has_requests(processes, slot)) {
		atomic64_set_release(&processes->key[slot], before);
		return 0;
	}
	processes->generation = (processes->generation + 1) & 0x7fffffff;
	key = (u64)processes->generation << 32 | number;
	mqfq_flow_init(&processes->flows[slot], MQFQ_WEIGHT_DEFAULT, gvt);
	/* Release: pairs with the acquire of whoever finds it. */
	atomic64_set_release(&processes->key[slot], key);
	return key;
}

/* As find, and gives it a slot if it has none and there is one. One caller at a time. */
u64 mqfq_process_claim(struct mqfq_processes *processes, u32 number, u64 gvt)
{
	u64 key = mqfq_process_find(processes, number);
	u32 home = home_of(number), step;

	for (step = 0; !key && step < 3 * MQFQ_PROCESSES; step++) {
		u32 slot = MQFQ_SLOT(home, step), round = step / MQFQ_PROCESSES;
		u64 finish = atomic64_read(&processes->flows[slot].finish);
		bool is_nobodys = !atomic64_read(&processes->key[slot]);

		/* Then those that are not ahead of virtual time, then any. */
		if ((is_nobodys || (round == 1 && !vtime_before(gvt, finish)) || round == 2) &&
		    !has_requests(processes, slot))
			key = take_slot(processes, slot, number, gvt);
	}
	return key;
}
