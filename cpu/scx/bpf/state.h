/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What does the scheduler remember, and what do its words mean in virtual time?
 *
 * Source: cpu/src/vtime.rs and cpu/src/central.rs; P-MQFQ section 3, rules 1 and 2.
 *
 * # What the verifier sees
 * Functions with loops that several others call are global (`__noinline`, and not static): each is looked at once, not at
 * each call on each path, with which Linux 6.12 was not done after a minute.
 *
 * # Invariants
 * - Points of virtual time are compared by `is_before` alone, so they may wrap.
 * - `waiting` of a program is not 0: its bit in `waits` is set, or is about to be set by the one who counted.
 */
#pragma once

/* Options. The loader writes them before the program is loaded. */
const volatile u64 slice_ns = 3000000;
const volatile u64 min_slice_ns = 0;
const volatile u64 lag_ns = 100000000;
/* A thread that waits for so long is overdue; 0: never. See books.h. */
const volatile u64 wait_ns = 20000000;
/* Slots that are used. */
const volatile u32 nr_programs = PROGRAMS_MAX;
const volatile bool by_process = false;
const volatile bool preempts = true;
/* Events of each CPU that are kept, a power of 2. 0: none. */
const volatile u32 trace_len = 0;
const volatile u32 nr_cpus = 1;
const volatile u32 nr_llcs = 1;
const volatile u8 llc_of[CPUS_MAX];

/* Whether a CPU was told to give its request up. */
enum asked {
    ASKED_NOT = 0,
    /* By a request that is about to be in its local queue. */
    ASKED = 1,
    /* So, and a tick ago. */
    ASKED_FOR_LONG = 2,
    /* It looks for another one by itself. */
    PICKS = 3,
    /* As ASKED, by a request that may run on any CPU: of all in service this one is the furthest by its tags. */
    ASKED_AS_LAST = 4,
};

/* A CPU and its request. Other CPUs read the first 64 bytes alone: one line for each CPU at a wake-up. */
struct service {
    u64 start;
    /* Charged ahead, virtual ns, and in ns. */
    u64 span;
    u64 granted_ns;
    /* Time at the beginning of the request, and the thread's place among its siblings. */
    u64 since_ns;
    u64 within;
    u32 program;
    /* It serves a request. */
    u32 is_busy;
    /* It was told to take another one: `enum asked`. */
    u32 is_asked;
    /* A request waits until its minimum slice is over. */
    u32 is_due;
    /* The request is an overdue thread's. */
    u32 was_overdue;
    u32 is_offline;
    /* CPU time of the thread at the beginning of the request. */
    u64 exec_ns;
    u64 events;
    /* Its books: tickets that others wrote, and those that it is done with. */
    u64 written;
    u64 done;
    /* When a request that is shorter than a tick ends; 0: at a tick. */
    u64 ends_ns;
    /* The first on its books is overdue, as of its last pick. */
    u32 is_crowded;
    /* With a trace: lines that its looks at all CPUs have read since the last event. */
    u32 lines;
} __attribute__((aligned(128)));

static struct service services[CPUS_MAX];
/* A bit for each CPU that may serve a request; the lines of the others are not read. A CPU sets its bit when it begins a
 * request and clears it when it finds none, so the words change only where a CPU becomes idle or ends to be. */
static struct {
    u64 cpus;
} __attribute__((aligned(64))) busy[CPUS_MAX / 64];
/* A bit for each program with a thread in its queues. */
static u64 waits[PROGRAMS_MAX / 64];
/* A bit for each word of it that is not 0. */
static u64 full[PROGRAMS_MAX / 4096];
/* For each word of it: no program with a bit there has a smaller finish tag. Every `lower` changes it. */
static u64 least[PROGRAMS_MAX / 64];
/* And the CPUs, modulo 64, that may run a waiting thread of a program with a bit there; some may be named in vain. */
static u64 reach[PROGRAMS_MAX / 64];
/* Largest finish tag of programs that had nothing left in service. */
static u64 served;
/* Slots ever used, in words of `waits`. */
static u32 words = 1;
/* The next slot whose finish tag is looked at. */
static u32 refreshed;
/* Changes of active nested programs and of weights. */
static u32 generation = 1;

struct exit_report {
    s32 kind;
    s32 is_set;
    s64 code;
    char reason[128];
    char message[1024];
};
struct exit_report report;
/* Programs for which there was no slot; picks that looked at one more program. */
u64 without_slot, second_looks;

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, PROGRAMS_MAX);
    __type(key, u32);
    __type(value, struct program);
} programs SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, PROGRAMS_MAX);
    __type(key, u64);
    __type(value, u32);
} slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_STACK);
    __uint(max_entries, PROGRAMS_MAX);
    __type(value, u32);
} free_slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct event);
} trace SEC(".maps");

/* A thread's wait on a CPU's books. */
struct ticket {
    /* From 1; written last. */
    u64 number;
    u64 since_ns;
    u64 queue;
    u32 pid;
    u32 program;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct ticket);
} tickets SEC(".maps");

static __always_inline struct ticket *ticket_at(u32 cpu, u64 number)
{
    u32 at = cpu * TICKETS_MAX + (number & (TICKETS_MAX - 1));

    return bpf_map_lookup_elem(&tickets, &at);
}

/* Of a thread. */
struct thread {
    u32 program;
    /* It is counted as waiting, and by which program. */
    u32 is_waiting;
    u32 counted_by;
    /* It is counted as runnable, and by which program. */
    u32 is_runnable;
    u32 runs_for;
    /* Rest of its quantum, ns; 0: a new one. */
    u64 left_ns;
    s32 last_cpu;
    /* The CPU that it asked for when it woke up; -1: none. */
    s32 asks;
    /* The CPU on whose books it waits, and the number of its ticket there. */
    u32 books;
    u64 ticket;
    /* Its program had no other thread to run when it woke up. */
    u32 slept;
    /* Virtual time when it looked for a CPU at its wake-up, and whether there was none to take. */
    u64 looked;
    u32 has_looked;
    /* CPU time of the thread when it last woke up, and what it used between waking up and sleeping the last time, ns. */
    u64 woke_ns;
    u64 burst_ns;
    /* When it went to sleep, and whether it then slept for 16 times that. */
    u64 slept_since_ns;
    u32 is_rare;
    /* It woke after 4 times that, and has not run since: rule 8. */
    u32 is_light;
    /* It runs for the rest of a sibling's quantum. */
    u32 has_rest;
    /* It lost its CPU as the furthest of all in service. */
    u32 was_last;
    /* Its place among its siblings: CPU time, ns, counted from where they were when it woke up. */
    u64 within;
};

struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct thread);
} threads SEC(".maps");

#define FLAG(name) bpf_core_enum_value(enum scx_enq_flags, name)
/*
 * A thread that was put on a CPU runs there at once, or comes back to `enqueue`: when a thread of a higher class, such
 * as a real-time one, has the CPU or takes it. A kernel before 7.1 leaves the thread there until that one sleeps.
 */
#define AT_ONCE (bpf_core_enum_value_exists(enum scx_enq_flags, SCX_ENQ_IMMED) ? FLAG(SCX_ENQ_IMMED) : 0)

static __always_inline struct program *program_at(u32 slot)
{
    return bpf_map_lookup_elem(&programs, &slot);
}

static __always_inline struct thread *thread_of(struct task_struct *p)
{
    return bpf_task_storage_get(&threads, p, 0, 0);
}

/* The number is below CPUS_MAX; masked, for the kernel's verifier. */
static __always_inline struct service *service_of(u64 cpu)
{
    cpu &= CPUS_MAX - 1;
    barrier_var(cpu);
    return &services[cpu];
}

static __always_inline bool is_before(u64 a, u64 b)
{
    return (s64)(a - b) < 0;
}

static __always_inline u64 bit_of(u32 cpu)
{
    return 1ULL << (cpu & 63);
}

static __always_inline u64 *busy_at(u64 word)
{
    word &= CPUS_MAX / 64 - 1;
    barrier_var(word);
    return &busy[word].cpus;
}

/* The CPU begins a request, or has found none. */
static __always_inline void set_busy(u32 cpu)
{
    u64 *word = busy_at(cpu / 64);

    if (!(*word & bit_of(cpu)))
        __sync_fetch_and_or(word, bit_of(cpu));
}

static __always_inline void set_idle(u32 cpu)
{
    u64 *word = busy_at(cpu / 64);

    if (*word & bit_of(cpu))
        __sync_fetch_and_and(word, ~bit_of(cpu));
}

static __noinline void write_event(u32 what, u32 slot, u32 pid, u64 tag, u64 other)
{
    u32 here = bpf_get_smp_processor_id();
    struct service *on = service_of(here);
    struct program *f = program_at(slot);
    struct event *event;
    u32 at;

    if (!on || !f)
        return;
    at = here * trace_len + (on->events & (trace_len - 1));
    event = bpf_map_lookup_elem(&trace, &at);
    if (!event)
        return;
    on->events++;
    event->at_ns = bpf_ktime_get_ns();
    event->tag = tag;
    event->other = other;
    event->program = slot;
    event->pid = pid;
    event->kind = what >> 16 & 0xff;
    event->is_pinned = what >> 24;
    event->cpu = what & 0xffff;
    event->waiting = f->waiting;
    event->writer = here;
    event->lines = on->lines;
    on->lines = 0;
    event->number = on->events;
}

/* Beside a kind. */
#define PINNED 0x100

static __always_inline void note(u32 kind, u32 cpu, u32 slot, u32 pid, u64 tag, u64 other)
{
    if (trace_len)
        write_event(kind << 16 | cpu, slot, pid, tag, other);
}

/* Rate::of in cpu/src/vtime.rs; of a nested program by its part of what is above it, among those that want to run. */
__noinline u64 rate_of(struct program *f __arg_nonnull)
{
    u32 now = generation;
    u64 weight = 1ULL << 20;
    struct program *at = f;
    int level;

    if (f->rate_of == now)
        return f->rate;
    bpf_for(level, 0, 32) {
        u32 parent = at->parent;
        struct program *above;

        if (!parent)
            break;
        above = program_at(parent);
        if (!above)
            break;
        if (above->below > (s32)at->weight)
            weight = weight * at->weight / (u32)above->below;
        at = above;
    }
    weight *= at->weight;
    if (weight < 1ULL << 14)
        weight = 1ULL << 14;
    f->rate = (100ULL << 36) / weight;
    f->rate_of = now;
    return f->rate;
}

/* Rate::span in cpu/src/vtime.rs. */
static __always_inline u64 span_of(struct program *f, u64 ns)
{
    return ns * rate_of(f) >> 16;
}

/* Ideal::start_tag: of the request on a CPU. */
static __always_inline u64 start_of(struct service *on)
{
    struct program *g = program_at(on->program);
    u64 last = g ? g->finish - on->span : on->start;

    return is_before(last, on->start) ? last : on->start;
}

/*
 * CentralQueue::largest_own_point, of the program on one CPU: its progress, or its largest start tag if that is smaller.
 * Its words may change amid the look, so what its requests used is held between nothing and all that they were charged.
 */
static __always_inline u64 own_point(struct service *on, u64 start, u64 now_ns)
{
    struct program *g = program_at(on->program);
    u64 ahead, used, point;
    s64 ran_ns;

    if (!g)
        return start;
    ahead = g->ahead;
    ran_ns = (s64)((u64)g->running * now_ns - g->since_ns);
    used = ran_ns > 0 ? span_of(g, ran_ns) : 0;
    if (used > ahead)
        used = ahead;
    point = g->finish - ahead + used;
    return is_before(point, start) ? point : start;
}

static void raise_finish(struct program *f, u64 to)
{
    u64 finish = f->finish;
    int tries;

    if (!is_before(finish, to))
        return;
    bpf_for(tries, 0, 8) {
        u64 seen = __sync_val_compare_and_swap(&f->finish, finish, to);

        if (seen == finish || !is_before(seen, to))
            return;
        finish = seen;
    }
}

/* Ideal::virtual_time: rule 1; or Ideal::beginning: where a program begins that slept, by rule 8. */
__noinline u64 virtual_time(bool is_beginning)
{
    bool any = false;
    u64 most = served, now_ns = is_beginning ? scx_bpf_now() : 0;
    int word, step;

    bpf_for(word, 0, (nr_cpus + 63) / 64) {
        u64 left = *busy_at(word);

        bpf_for(step, 0, 64) {
            struct service *on;
            u64 start;

            if (!left)
                break;
            on = service_of(word * 64 + __builtin_ctzll(left));
            left &= left - 1;
            if (!on->is_busy || on->is_asked)
                continue;
            start = start_of(on);
            if (is_beginning)
                start = own_point(on, start, now_ns);
            if (!any || is_before(most, start))
                most = start;
            any = true;
        }
    }
    return most;
}

/* Rule 2 with a limit: cpu/src/pmqfq/arrive.rs. */
static void limit_lag(struct program *f, u64 now)
{
    u64 least = now - span_of(f, lag_ns);

    if (is_before(f->finish, least)) {
        raise_finish(f, least);
        __sync_fetch_and_add(&f->cuts, 1);
    }
}

static void wait_begins(struct thread *t, u32 slot, struct program *f)
{
    if (t->is_waiting)
        return;
    t->is_waiting = 1;
    t->counted_by = slot;
    __sync_fetch_and_add(&f->waiting, 1);
}

static void wait_ends(struct thread *t)
{
    struct program *f;

    if (!t->is_waiting)
        return;
    t->is_waiting = 0;
    if (t->ticket) {
        struct ticket *ticket = ticket_at(t->books, t->ticket - 1);

        if (ticket && ticket->number == t->ticket)
            ticket->pid = 0;
        t->ticket = 0;
    }
    f = program_at(t->counted_by);
    if (f)
        __sync_fetch_and_add(&f->waiting, -1);
}

static __always_inline u64 *word_at(u64 at)
{
    at &= PROGRAMS_MAX / 64 - 1;
    barrier_var(at);
    return &waits[at];
}

static __always_inline u64 *top_at(u64 at)
{
    at &= PROGRAMS_MAX / 4096 - 1;
    barrier_var(at);
    return &full[at];
}

static __always_inline u64 *least_at(u64 at)
{
    at &= PROGRAMS_MAX / 64 - 1;
    barrier_var(at);
    return &least[at];
}

/*
 * A program that waits has this tag now, or may soon wait. After its bit is set: who raises `least` reads it before the
 * bits, and does so only if it is the same afterwards.
 */
static void lower(u32 slot, u64 tag)
{
    u64 *at = least_at(slot / 64), had = *at, to = (is_before(tag, had) ? tag : had) - 1;
    u64 seen = __sync_val_compare_and_swap(at, had, to);
    int tries;

    if (seen == had)
        return;
    bpf_for(tries, 0, 64) {
        had = seen;
        to = (is_before(tag, had) ? tag : had) - 1;
        seen = __sync_val_compare_and_swap(at, had, to);
        if (seen == had)
            return;
    }
    *at = tag - (1ULL << 40);
}

static __always_inline void set_bit(u32 slot)
{
    u64 *word = word_at(slot / 64), *top = top_at(slot / 4096);
    u64 bit = 1ULL << (slot & 63), above = 1ULL << (slot / 64 & 63);

    if (!(*word & bit))
        __sync_fetch_and_or(word, bit);
    if (!(*top & above))
        __sync_fetch_and_or(top, above);
}

static __always_inline u64 *reach_at(u64 at)
{
    at &= PROGRAMS_MAX / 64 - 1;
    barrier_var(at);
    return &reach[at];
}

/* After the program's bit and its `where` are set. Who clears a bit of `reach` looks at both once more (`narrow`). */
static __always_inline void widen(u32 slot, u64 cpus)
{
    u64 *at = reach_at(slot / 64);

    if (~*at & cpus)
        __sync_fetch_and_or(at, cpus);
}

/* So many of the threads that count as waiting are in no queue. */
static void clear_bit(u32 slot, struct program *f, s32 taken)
{
    u64 *word = word_at(slot / 64), *top = top_at(slot / 4096);
    u64 bit = 1ULL << (slot & 63), above = 1ULL << (slot / 64 & 63);

    f->where = 0;
    if (!(__sync_fetch_and_and(word, ~bit) & ~bit)) {
        __sync_fetch_and_and(top, ~above);
        if (*word)
            __sync_fetch_and_or(top, above);
    }
    if (f->waiting > taken) {
        f->where = ~0ULL;
        set_bit(slot);
        widen(slot, ~0ULL);
        lower(slot, f->finish);
    }
}

static __always_inline u64 queue_of(u32 slot, u32 llc)
{
    return (u64)slot << 8 | llc;
}

static __always_inline u32 llc_at(s32 cpu)
{
    u64 at = (u64)cpu & (CPUS_MAX - 1);

    barrier_var(at);
    return llc_of[at];
}
