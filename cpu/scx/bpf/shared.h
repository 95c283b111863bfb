/* SPDX-License-Identifier: GPL-2.0-only */
/* Which memory do the BPF program and its loader share? All numbers are little-endian integers; see trace.rs. */
#pragma once

/* Version of `struct event`. */
#define TRACE_VERSION 2
#define PROGRAMS_MAX 32768
/* Slot of the kernel's threads, as long as they are in no cgroup. */
#define KERNEL 1
#define CPUS_MAX 1024
#define LLCS_MAX 64
/* Threads on a CPU's books, those that have left them and were not looked at included. A power of 2. */
#define TICKETS_MAX 4096

/* A program: a cgroup, or a thread group. Slot 0 is the root cgroup, and processes without a slot. */
struct program {
    /* Of the cgroup, or the thread group. */
    u64 id;
    /* Last finish tag, virtual ns: charged service times 100 over the weight, with all that is in service charged ahead. */
    u64 finish;
    /* CPU time, ns. */
    u64 served_ns;
    /* Virtual ns of a ns, 16 bits of fraction, as of generation `rate_of`. */
    u64 rate;
    u32 rate_of;
    /* cpu.weight. */
    u32 weight;
    /* The slot above it; 0: none but the root. */
    u32 parent;
    u32 is_used;
    /* Threads that run or wait, and of these the ones in its queues. */
    s32 runnable;
    s32 waiting;
    /* Its requests in service. */
    s32 running;
    /* It or one below it has such a thread: their number. Weights of those directly below that do, each as counted. */
    s32 active;
    s32 below;
    s32 counted;
    s32 threads;
    u64 dispatches;
    u64 preemptions;
    u64 preempted;
    u64 migrations;
    /* Its lag was cut. */
    u64 cuts;
    /* CPUs, modulo 64, that may run one of its waiting threads; some may be named in vain. */
    u64 where;
    /* Largest place of a thread of it in service, among its siblings: ns of CPU time. */
    u64 within;
    /* Slots below it, and the most that there may be. */
    u32 slots_below;
    u32 room;
    /* Of its requests in service: what they were charged ahead, virtual ns, and the sum of the times they began at. */
    u64 ahead;
    u64 since_ns;
};

enum event_kind {
    EVENT_ARRIVE = 1,   /* other: system virtual time, or the start tag of the request whose CPU it takes */
    EVENT_BEGIN = 2,    /* other: ns charged ahead; tag: start tag */
    EVENT_END = 3,      /* other: ns run; tag: finish tag after the charge */
    EVENT_PREEMPT = 4,  /* other: the victim's start tag; tag: that of the arriving one; cpu: the victim's */
    EVENT_BLOCK = 5,    /* other: threads of the program that still run or wait */
    EVENT_WEIGHT = 6,   /* other: weight */
    EVENT_OVERDUE = 8,  /* a CPU takes an overdue thread; tag: the program's finish tag; other: how long it waited */
    EVENT_SWAP = 9,     /* a thread takes the CPU of a sibling; tag: the program's finish tag; other: ns that are left */
    EVENT_PICK = 7,     /* a CPU is about to take a thread of the program; tag: its finish tag; no pid */
};

struct event {
    /* Number on its CPU, from 1; 0: never written. */
    u64 number;
    u64 at_ns;
    u64 tag;
    u64 other;
    u32 program;
    u32 pid;
    u16 kind;
    u16 cpu;
    /* The program's threads in its queues. */
    s32 waiting;
    /* The CPU that wrote it. */
    u16 writer;
    /* Cache lines that its looks have read since: one of each CPU that serves, and with `slept` its program's. */
    u16 lines;
    /* EVENT_ARRIVE: the thread may run on `cpu` alone. */
    u16 is_pinned;
    u16 unused;
};
