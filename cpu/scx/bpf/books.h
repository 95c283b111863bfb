/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long may a runnable thread wait, whatever the tags say?
 *
 * Source: cpu/src/patience.rs, which has the rule, the bound and its price: W is `wait_ns`, s a 128th of it.
 *
 * # What differs from the reference
 * - A thread that may run on several CPUs is on the books of the CPU where it ran last, or of another one by chance, if
 *   that has fewer.
 * - A request ends for an overdue thread at the next tick, so the bound is a tick longer. The short ones end by a timer.
 *
 * # Invariants
 * - A CPU's books are read by that CPU alone, with its lock held. Others write tickets, each into a place of its own.
 * - A ticket is good while its thread waits with that number; else the thread has run meanwhile.
 */
#pragma once

#define BPF_FOR_EACH_ITER (&___it)

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

struct end_of_slice {
    struct bpf_timer timer;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, CPUS_MAX);
    __type(key, u32);
    __type(value, struct end_of_slice);
} ends SEC(".maps");

static __always_inline struct ticket *ticket_at(u32 cpu, u64 number)
{
    u32 at = cpu * TICKETS_MAX + (number & (TICKETS_MAX - 1));

    return bpf_map_lookup_elem(&tickets, &at);
}

/* Books::join. Returns whether there was room. */
static bool promise(struct task_struct *p, struct thread *t, u32 cpu, bool may_move, u64 queue)
{
    struct service *on = service_of(cpu);
    struct ticket *ticket;
    u64 number;

    if (may_move) {
        u32 other = bpf_get_prandom_u32() % nr_cpus;
        struct service *there = service_of(other);

        if (!there->is_offline && there->written - there->done < on->written - on->done &&
            bpf_cpumask_test_cpu(other, p->cpus_ptr)) {
            on = there;
            cpu = other;
        }
    }
    /* Each CPU may be writing one more. */
    if (on->written - on->done >= TICKETS_MAX - CPUS_MAX)
        return false;
    number = __sync_fetch_and_add(&on->written, 1);
    ticket = ticket_at(cpu, number);
    if (!ticket)
        return false;
    ticket->since_ns = bpf_ktime_get_ns();
    ticket->queue = queue;
    ticket->pid = p->pid;
    ticket->program = t->program;
    t->books = cpu;
    t->ticket = number + 1;
    __sync_lock_test_and_set(&ticket->number, number + 1);
    return true;
}

static bool is_good(struct ticket *ticket, u32 cpu)
{
    struct task_struct *p = bpf_task_from_pid(ticket->pid);
    struct thread *t;
    bool good;

    if (!p)
        return false;
    t = thread_of(p);
    good = t && t->is_waiting && t->books == cpu && t->ticket == ticket->number;
    bpf_task_release(p);
    return good;
}

/* The first on the books of this CPU, if it is overdue. */
static struct ticket *first_overdue(u32 cpu, struct service *on)
{
    u64 now_ns;
    int tries;

    if (!wait_ns || on->done == on->written)
        return NULL;
    now_ns = bpf_ktime_get_ns();
    bpf_for(tries, 0, 64) {
        struct ticket *ticket;

        if (on->done == on->written)
            break;
        ticket = ticket_at(cpu, on->done);
        if (!ticket || ticket->number != on->done + 1 || (s64)(now_ns - ticket->since_ns) < (s64)wait_ns)
            break;
        if (is_good(ticket, cpu))
            return ticket;
        on->done++;
    }
    return NULL;
}

/* Takes that thread to this CPU. It may be gone, or on its way to another CPU. */
static bool take_overdue(struct ticket *ticket, s32 cpu)
{
    struct task_struct *p;
    bool is_taken = false;

    bpf_for_each(scx_dsq, p, ticket->queue, 0) {
        if (p->pid != ticket->pid)
            continue;
        if (scx_bpf_task_cpu(p) == cpu || (!p->migration_disabled && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))) {
            scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, wait_ns / 128);
            is_taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
        }
        break;
    }
    return is_taken;
}

/* Of a request that begins: the longest that it may be, which a timer ends if ticks are too far apart for it. */
static u64 shortened(struct service *on, u32 cpu, u64 granted_ns)
{
    struct end_of_slice *end;

    on->ends_ns = 0;
    if (!on->is_crowded)
        return granted_ns;
    if (granted_ns > wait_ns / 128)
        granted_ns = wait_ns / 128;
    on->ends_ns = bpf_ktime_get_ns() + granted_ns;
    end = bpf_map_lookup_elem(&ends, &cpu);
    if (end)
        bpf_timer_start(&end->timer, granted_ns, 0);
    return granted_ns;
}

static void kick(s32 cpu)
{
    u64 flags = bpf_core_enum_value(enum scx_kick_flags, SCX_KICK_PREEMPT);

    if (bpf_ksym_exists(scx_bpf_kick_cpu___told))
        scx_bpf_kick_cpu___told(cpu, flags, NULL);
    else if (bpf_ksym_exists(scx_bpf_kick_cpu))
        scx_bpf_kick_cpu(cpu, flags);
}

static int slice_ends(void *map, u32 *cpu, struct end_of_slice *end)
{
    struct service *on = service_of(*cpu);

    if (on->is_busy && on->ends_ns && (s64)(bpf_ktime_get_ns() - on->ends_ns) >= 0) {
        on->ends_ns = 0;
        kick(*cpu);
    }
    return 0;
}

static void prepare_books(void)
{
    const struct cpumask *online = scx_bpf_get_online_cpumask();
    int cpu;

    bpf_for(cpu, 0, nr_cpus) {
        u32 key = cpu;
        struct end_of_slice *end = bpf_map_lookup_elem(&ends, &key);

        if (!end)
            break;
        bpf_timer_init(&end->timer, &ends, CLOCK_MONOTONIC);
        bpf_timer_set_callback(&end->timer, slice_ends);
        service_of(cpu)->is_offline = !bpf_cpumask_test_cpu(cpu, online);
    }
    scx_bpf_put_cpumask(online);
}
