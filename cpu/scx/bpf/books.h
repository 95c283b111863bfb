/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long may a runnable thread wait, whatever the tags say?
 *
 * Source: cpu/src/patience.rs, which has the rule, the bound and its price: W is `wait_ns`, s a 128th of it.
 *
 * # What differs from the reference
 * - A thread that may run on several CPUs is on the books of the CPU where it ran last, or of another one by chance, if
 *   that has fewer.
 * - s is longer while over 128 threads are on the books, up to W/16: at 64 they already have half of the CPU, so that
 *   adds to their wait and not to the price, and the CPU spends less on switches.
 * - A turn that is cut short by a thread that had asked for the request before goes on behind that one (`enqueue`).
 * - A request ends for an overdue thread at the next tick, so the bound is a tick longer. Short ones end by a timer.
 *
 * # Invariants
 * - A CPU's books are read by that CPU alone, with its lock held. Others write tickets, each into a place of its own.
 * - A ticket without a thread is of one that waits no longer.
 */
#pragma once

#define BPF_FOR_EACH_ITER (&___it)

struct end_of_slice {
    struct bpf_timer timer;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, CPUS_MAX);
    __type(key, u32);
    __type(value, struct end_of_slice);
} ends SEC(".maps");

/* s. */
static __always_inline u64 short_ns(struct service *on)
{
    u64 times = (on->written - on->done) / 64;

    return wait_ns / 128 * (times < 1 ? 1 : times > 8 ? 8 : times);
}

/* Books::join. Returns whether there was room. */
static bool promise(struct task_struct *p, struct thread *t, u32 cpu, bool may_move, u64 queue)
{
    struct service *on = service_of(cpu);
    struct ticket *ticket;
    u64 number;

    /* Now and then, for it reads another CPU's line. */
    if (may_move && !(on->written & 3)) {
        /* Fibonacci hashing: another one each time. */
        u32 other = (u64)((u32)on->written * 2654435761U) * nr_cpus >> 32;
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
    ticket->since_ns = scx_bpf_now();
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

/* The first on the books of this CPU, if it is overdue. Tickets are looked at once they are old, many at a time. */
static struct ticket *first_overdue(u32 cpu, struct service *on)
{
    struct ticket *ticket = ticket_at(cpu, on->done);
    u64 now_ns;
    int tries;

    if (!wait_ns || on->done == on->written || !ticket)
        return NULL;
    now_ns = scx_bpf_now();
    if ((s64)(now_ns - ticket->since_ns) < (s64)wait_ns)
        return NULL;
    bpf_for(tries, 0, 1024) {
        if (on->done == on->written)
            break;
        ticket = ticket_at(cpu, on->done);
        if (!ticket || ticket->number != on->done + 1 || (s64)(now_ns - ticket->since_ns) < (s64)wait_ns)
            break;
        if (ticket->pid && is_good(ticket, cpu))
            return ticket;
        on->done++;
    }
    return NULL;
}

/* May the CPU run a thread that waits? */
static __always_inline bool may_take(struct task_struct *p, s32 cpu)
{
    return scx_bpf_task_cpu(p) == cpu || (!p->migration_disabled && bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
}

/* Takes a thread out of a queue to this CPU, for s: that one, or with 0 the first that may run here. It may be gone, or
 * on its way to another CPU. */
static bool take_thread(u64 queue, u32 pid, s32 cpu, u64 flags)
{
    struct task_struct *p;
    bool is_taken = false;

    bpf_for_each(scx_dsq, p, queue, 0) {
        if (pid ? p->pid != pid : !may_take(p, cpu))
            continue;
        if (may_take(p, cpu)) {
            scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, short_ns(service_of(cpu)));
            is_taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, flags);
            /* Linux 6.12 does not end the request of a CPU for a thread of its own that is moved with SCX_ENQ_PREEMPT. */
            if (is_taken && flags)
                scx_bpf_kick_cpu(cpu, bpf_core_enum_value(enum scx_kick_flags, SCX_KICK_PREEMPT));
        }
        break;
    }
    return is_taken;
}

/* The first on the books has its turn on this CPU. */
static bool take_overdue(struct service *on, struct ticket *overdue, s32 cpu, u64 flags)
{
    u32 slot = overdue->program, pid = overdue->pid;
    u64 queue = overdue->queue, waited_ns = scx_bpf_now() - overdue->since_ns;
    struct program *f = program_at(slot);

    on->done++;
    if (!take_thread(queue, pid, cpu, flags))
        return false;
    on->was_overdue = 1;
    note(EVENT_OVERDUE, cpu, slot, pid, f ? f->finish : 0, waited_ns);
    return true;
}

/* Pinned: its books are for this CPU alone. */
static void end_after(struct service *on, u32 cpu, u64 ns)
{
    struct end_of_slice *end = bpf_map_lookup_elem(&ends, &cpu);

    /* By the timer's own clock: that of scx_bpf_now() may stand still for a while where the TSC is not stable. */
    on->ends_ns = bpf_ktime_get_ns() + ns;
    if (end)
        bpf_timer_start(&end->timer, ns, BPF_F_TIMER_CPU_PIN);
}

/* Of a request that begins: the longest that it may be, which a timer ends if ticks are too far apart for it. */
static u64 shortened(struct service *on, u32 cpu, u64 granted_ns)
{
    on->ends_ns = 0;
    if (!on->is_crowded)
        return granted_ns;
    if (granted_ns > short_ns(on))
        granted_ns = short_ns(on);
    end_after(on, cpu, granted_ns);
    return granted_ns;
}
