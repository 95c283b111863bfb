// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which thread runs next on a CPU, and from whom may a waking one take it?
 *
 * Source: P-MQFQ section 3, rules 1 to 4, as cpu/src/ideal.rs and cpu/src/central.rs have them; each function names the
 * one that it follows. A program is a cgroup, or a thread group.
 *
 * # What differs from the reference
 * - One queue per program and cache (LLC) instead of one for all: threads wait in the order of their arrival, programs
 *   are compared by their finish tags when a CPU picks. A lock is of one program's queue; the finish tags, the bitmap
 *   of programs that wait, and what each CPU serves are words that are read without one. So two CPUs that pick at once
 *   may both see a program before the other's charge: a request may begin out of order by D charges at most.
 * - Tags of a program's later requests in service do not move back when an earlier one ends early. They are bounded
 *   instead by the finish tag less their own charge, which is what the chain gives for the last one (`start_of`).
 * - A program's lag is at most `lag_ns` (cpu/src/pmqfq/arrive.rs): else one that used less than its share for long
 *   could shut others out for as long.
 * - No thread waits without bound (books.h).
 * - A kernel thread that may run on one CPU only goes there at once: others wait for it.
 * - The quantum ends at a tick.
 *
 * # Invariants
 * - A CPU's request is charged ahead by exactly `span`, which is given back once, in `settle`.
 * - `waiting` counts threads from enqueue to running or quiescent.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "shared.h"
#include "state.h"
#include "books.h"

char _license[] SEC("license") = "GPL";

/*
 * CentralQueue::dispatch: a request begins. It is charged at once for all that it may run, so the next one of its
 * program begins where it would end.
 */
static void begin(struct task_struct *p, struct thread *t, u32 cpu, u64 granted_ns)
{
    struct program *f = program_at(t->program);
    struct service *on = service_of(cpu);

    if (!f || !on)
        return;
    granted_ns = shortened(on, cpu, granted_ns);
    p->scx.slice = granted_ns;
    on->span = span_of(f, granted_ns);
    on->granted_ns = granted_ns;
    on->start = __sync_fetch_and_add(&f->finish, on->span);
    on->exec_ns = p->se.sum_exec_runtime;
    on->since_ns = min_slice_ns ? bpf_ktime_get_ns() : 0;
    on->program = t->program;
    on->is_asked = 0;
    on->is_due = 0;
    on->is_busy = 1;
    __sync_fetch_and_add(&f->running, 1);
    __sync_fetch_and_add(&f->dispatches, 1);
    note(EVENT_BEGIN, cpu, t->program, p->pid, on->start, granted_ns);
}

/* CentralQueue::end, and rule 4: it pays for what it ran. */
static void settle(struct task_struct *p, struct thread *t, u32 cpu)
{
    struct service *on = service_of(cpu);
    struct program *f;
    u64 ran_ns, used;

    if (!on || !on->is_busy)
        return;
    on->is_busy = 0;
    on->is_asked = 0;
    f = program_at(on->program);
    if (!f)
        return;
    ran_ns = p->se.sum_exec_runtime - on->exec_ns;
    used = span_of(f, ran_ns);
    __sync_fetch_and_add(&f->finish, used - on->span);
    __sync_fetch_and_add(&f->served_ns, ran_ns);
    /* What is too short to be worth a slice is not kept (Ideal::stop). */
    t->left_ns = on->granted_ns > ran_ns ? on->granted_ns - ran_ns : 0;
    if (t->left_ns < min_slice_ns || t->left_ns < 100000)
        t->left_ns = 0;
    if (__sync_fetch_and_add(&f->running, -1) == 1 && is_before(served, f->finish))
        served = f->finish;
    note(EVENT_END, cpu, on->program, p->pid, f->finish, ran_ns);
}

static bool may_leave(struct task_struct *p)
{
    /* A program on a trampoline may itself be what disables migration of the current thread. */
    if (p->migration_disabled == 1)
        return bpf_get_current_task_btf() == p;
    return !p->migration_disabled;
}

/* Who would lose its CPU to a request, and system virtual time: one look at what all CPUs serve. */
struct look {
    u64 now;
    /* Largest start tag of another program on a CPU that it may take, and that CPU. */
    u64 most;
    s32 victim;
    /* Such a CPU whose minimum slice is not over. */
    s32 due;
    /* Some CPU serves no request: it may be idle. */
    bool has_free;
};

/*
 * Ideal::virtual_time and the scan of Ideal::preempt. Of several requests of one program the one on `own` is taken: the
 * program's tags are a chain, which closes up the same whichever of them ends, and a thread that stays where it was
 * needs no other CPU's lock.
 */
static void look_around(struct task_struct *p, u32 slot, s32 own, bool may_move, struct look *found)
{
    u64 now_ns = min_slice_ns ? bpf_ktime_get_ns() : 0;
    bool is_bound = p->nr_cpus_allowed < nr_cpus;
    u32 victims = PROGRAMS_MAX;
    bool any = false;
    int cpu;

    found->now = served;
    found->most = 0;
    found->victim = found->due = -1;
    found->has_free = false;
    bpf_for(cpu, 0, nr_cpus) {
        struct service *on = service_of(cpu);
        u64 tag;

        if (!on->is_busy) {
            found->has_free = true;
            continue;
        }
        if (on->is_asked)
            continue;
        tag = start_of(on);
        if (!any || is_before(found->now, tag))
            found->now = tag;
        any = true;
        if (on->program == slot || on->was_overdue || (!may_move && cpu != own) || (is_bound && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr)))
            continue;
        if (min_slice_ns && now_ns - on->since_ns < min_slice_ns) {
            found->due = cpu;
            continue;
        }
        if (found->victim < 0 || is_before(found->most, tag)) {
            /* A later request of the same program than the one on its own CPU. */
            if (found->victim == own && victims == on->program) {
                found->most = tag;
                continue;
            }
        } else if (cpu != own || victims != on->program) {
            continue;
        } else {
            tag = found->most;
        }
        found->most = tag;
        found->victim = cpu;
        victims = on->program;
    }
}

/* Ideal::preempt: rule 3. Returns the CPU that a request with this start tag takes, or -1. */
static s32 ask(u64 tag, struct look *found)
{
    if (found->victim < 0 || !is_before(tag, found->most)) {
        if (min_slice_ns && found->due >= 0)
            service_of(found->due)->is_due = 1;
        return -1;
    }
    if (__sync_val_compare_and_swap(&service_of(found->victim)->is_asked, ASKED_NOT, ASKED))
        return -1;
    return found->victim;
}

static void count_preemption(struct task_struct *p, struct thread *t, struct program *f, s32 cpu, u64 tag, u64 most)
{
    struct program *g = program_at(service_of(cpu)->program);

    __sync_fetch_and_add(&f->preemptions, 1);
    if (g)
        __sync_fetch_and_add(&g->preempted, 1);
    note(EVENT_PREEMPT, cpu, t->program, p->pid, tag, most);
}

/*
 * Where does a thread wake up? On an idle CPU, or on the one that it takes from another program, so that it is on that
 * CPU's books from the beginning and need not be moved there.
 */
SEC("struct_ops/pmqfq_select_cpu")
s32 BPF_PROG(pmqfq_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
    struct thread *t = thread_of(p);
    struct program *f = t ? program_at(t->program) : NULL;
    struct look found;
    u64 tag;
    s32 victim;

    if (!f)
        return prev_cpu;
    t->asks = -1;
    look_around(p, t->program, prev_cpu, true, &found);
    if (f->runnable)
        limit_lag(f, found.now);
    if (found.has_free) {
        bool is_idle = false;
        /* CentralQueue::take_idle_core: the one where it ran last if that is idle, else another. */
        s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

        if (is_idle) {
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
            return cpu;
        }
    }
    if (!preempts)
        return prev_cpu;
    /* Rule 2, which `runnable` is about to apply. */
    tag = f->finish;
    if (!f->runnable && is_before(tag, found.now))
        tag = found.now;
    victim = ask(tag, &found);
    if (victim < 0)
        return prev_cpu;
    t->asks = victim;
    return victim;
}

/*
 * Whether the CPU that was asked at the wake-up still is to be had. The caller holds its lock, so it serves the same
 * request until the caller is done.
 */
static bool is_granted(struct thread *t, u64 tag, s32 cpu, u64 *most)
{
    struct service *on = service_of(cpu);

    if (t->asks != cpu || on->is_asked != ASKED || !on->is_busy || on->program == t->program)
        return false;
    *most = start_of(on);
    return is_before(tag, *most);
}

/*
 * Ideal::wake, and Ideal::stop for a thread that could go on: a request arrives. In the latter case its CPU has already
 * picked another one.
 */
SEC("struct_ops/pmqfq_enqueue")
void BPF_PROG(pmqfq_enqueue, struct task_struct *p, u64 enq_flags)
{
    struct thread *t = thread_of(p);
    struct program *f;
    struct look found;
    u64 quantum_ns, queue;
    s32 cpu = scx_bpf_task_cpu(p);
    bool may_move;

    if (!t || (p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1)) {
        scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | FLAG(SCX_ENQ_PREEMPT));
        return;
    }
    f = program_at(t->program);
    if (!f)
        return;
    wait_begins(t, t->program, f);
    if (t->asks >= 0) {
        u64 tag = f->finish, most;
        bool granted = is_granted(t, tag, cpu, &most);

        t->asks = -1;
        if (granted) {
            note(EVENT_ARRIVE, cpu, t->program, p->pid, tag, most);
            count_preemption(p, t, f, cpu, tag, most);
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | FLAG(SCX_ENQ_PREEMPT));
            return;
        }
    }
    quantum_ns = t->left_ns ? t->left_ns : slice_ns;
    may_move = p->nr_cpus_allowed > 1 && may_leave(p);
    look_around(p, t->program, cpu, may_move, &found);
    limit_lag(f, found.now);
    note(EVENT_ARRIVE, cpu, t->program, p->pid, f->finish, found.now);
    if (found.has_free && !(enq_flags & FLAG(SCX_ENQ_CPU_SELECTED))) {
        s32 idle = -1;

        if (may_move)
            idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
        else if (scx_bpf_test_and_clear_cpu_idle(cpu))
            idle = cpu;
        if (idle >= 0) {
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, quantum_ns, enq_flags);
            return;
        }
    }
    if (preempts) {
        u64 tag = f->finish;
        s32 victim = ask(tag, &found);

        if (victim >= 0) {
            count_preemption(p, t, f, victim, tag, found.most);
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | victim, quantum_ns, enq_flags | FLAG(SCX_ENQ_PREEMPT));
            return;
        }
    }
    queue = queue_of(t->program, llc_at(cpu));
    if (wait_ns && !promise(p, t, cpu, may_move, queue)) {
        /* Books that are full: in the order of arrival, which no thread waits long for. */
        scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, quantum_ns, enq_flags);
        return;
    }
    set_bit(t->program);
    /* CentralQueue::push_front: the rest of a quantum goes before the siblings. */
    scx_bpf_dsq_insert(p, queue, quantum_ns,
                       t->left_ns ? enq_flags | FLAG(SCX_ENQ_HEAD) : enq_flags);
}

/* CentralQueue::first: the program with the smallest finish tag of those that wait, after `past`. */
static u32 first_after(u64 past, u32 past_slot, bool any, u64 *tag)
{
    u32 best = PROGRAMS_MAX;
    int word, step;

    *tag = 0;
    bpf_for(word, 0, words) {
        u64 bits = *word_at(word);

        bpf_for(step, 0, 64) {
            struct program *f;
            u32 slot;

            if (!bits)
                break;
            slot = word * 64 + __builtin_ctzll(bits);
            bits &= bits - 1;
            f = program_at(slot);
            if (!f)
                continue;
            if (any && (is_before(f->finish, past) || (f->finish == past && slot <= past_slot)))
                continue;
            if (best == PROGRAMS_MAX || is_before(f->finish, *tag)) {
                best = slot;
                *tag = f->finish;
            }
        }
    }
    return best;
}

/* A thread of a program, of this cache if there is one. Now and then another cache is first, so that nobody waits long
 * in the queue of one whose CPUs always serve others, or are gone. */
static bool take_from(u32 slot, u32 llc)
{
    struct program *f;
    int other;

    if (nr_llcs <= 1)
        return scx_bpf_dsq_move_to_local(queue_of(slot, llc));
    f = program_at(slot);
    if (f && !(f->dispatches & 63) && scx_bpf_dsq_move_to_local(queue_of(slot, (f->dispatches >> 6) % nr_llcs)))
        return true;
    if (scx_bpf_dsq_move_to_local(queue_of(slot, llc)))
        return true;
    bpf_for(other, 0, nr_llcs)
        if (other != llc && scx_bpf_dsq_move_to_local(queue_of(slot, other)))
            return true;
    return false;
}

/* Anybody: while `first_after` goes from tag to tag a charge may put a program behind it, and no CPU idles for that. */
static bool take_any(u32 llc)
{
    int word, step;

    bpf_for(word, 0, words) {
        u64 bits = *word_at(word);

        bpf_for(step, 0, 64) {
            if (!bits)
                break;
            if (take_from(word * 64 + __builtin_ctzll(bits), llc))
                return true;
            bits &= bits - 1;
        }
    }
    return false;
}

/* Ideal::pick. A thread whose quantum is over goes on if its program still is first. */
SEC("struct_ops/pmqfq_dispatch")
void BPF_PROG(pmqfq_dispatch, s32 cpu, struct task_struct *prev)
{
    struct thread *t = NULL;
    struct service *on = service_of(cpu);
    struct program *g = NULL;
    u64 own = 0, past = 0;
    struct ticket *overdue;
    u32 past_slot = 0;
    bool is_missed = false;
    int tries;

    /* Nobody asks for a CPU that is about to serve another request anyway. */
    if (on->is_busy)
        on->is_asked = PICKS;
    if (prev && on->is_busy && prev->scx.flags & SCX_TASK_QUEUED) {
        t = thread_of(prev);
        g = program_at(on->program);
        if (t && g)
            own = g->finish - on->span + span_of(g, prev->se.sum_exec_runtime - on->exec_ns);
        else
            t = NULL;
    }
    /* Books::pick. */
    overdue = first_overdue(cpu, on);
    on->is_crowded = !!overdue;
    if (overdue && !on->was_overdue) {
        u32 slot = overdue->program, pid = overdue->pid;
        u64 waited_ns = bpf_ktime_get_ns() - overdue->since_ns;

        on->done++;
        if (take_overdue(overdue, cpu)) {
            struct program *f = program_at(slot);

            on->was_overdue = 1;
            note(EVENT_OVERDUE, cpu, slot, pid, f ? f->finish : 0, waited_ns);
            return;
        }
    }
    on->was_overdue = 0;
    bpf_for(tries, 0, 256) {
        struct program *f;
        u64 tag;
        u32 slot = first_after(past, past_slot, tries > 0, &tag);

        if (slot >= PROGRAMS_MAX || (t && is_before(own, tag)))
            break;
        note(EVENT_PICK, cpu, slot, 0, tag, own);
        if (take_from(slot, llc_at(cpu)))
            return;
        /* Nobody is left, or may run here. */
        second_looks++;
        is_missed = true;
        f = program_at(slot);
        if (f && f->waiting <= 0)
            clear_bit(slot, f);
        past = tag;
        past_slot = slot;
    }
    if (t) {
        settle(prev, t, cpu);
        t->left_ns = 0;
        limit_lag(g, virtual_time());
        begin(prev, t, cpu, slice_ns);
    } else if (is_missed) {
        take_any(llc_at(cpu));
    }
}

/* Ideal::timer: a minimum slice is over. Also the safety net of a reschedule that was not served. */
SEC("struct_ops/pmqfq_tick")
void BPF_PROG(pmqfq_tick, struct task_struct *p)
{
    u32 cpu = scx_bpf_task_cpu(p);
    struct service *on = service_of(cpu);
    u64 tag;

    if (on->is_asked)
        on->is_asked = on->is_asked == ASKED ? ASKED_FOR_LONG : ASKED_NOT;
    if (!on->ends_ns && first_overdue(cpu, on)) {
        p->scx.slice = 0;
        return;
    }
    if (!on->is_due || bpf_ktime_get_ns() - on->since_ns < min_slice_ns)
        return;
    on->is_due = 0;
    if (first_after(0, 0, false, &tag) < PROGRAMS_MAX && is_before(tag, start_of(on)))
        p->scx.slice = 0;
}

/* A program wants to run, or no longer: the weights of those that do, up to the root. */
static void activate(u32 slot, s32 by)
{
    struct program *f = program_at(slot);
    int level;

    bpf_for(level, 0, 32) {
        struct program *above;
        s32 before;

        if (!f)
            return;
        before = __sync_fetch_and_add(&f->active, by);
        if (before != (by > 0 ? 0 : 1) || !f->parent)
            return;
        above = program_at(f->parent);
        if (!above)
            return;
        if (by > 0)
            f->counted = f->weight;
        __sync_fetch_and_add(&above->below, by > 0 ? f->counted : -f->counted);
        __sync_fetch_and_add(&generation, 1);
        f = above;
    }
}

/* Ideal::wake, its first half: rule 2. */
SEC("struct_ops/pmqfq_runnable")
void BPF_PROG(pmqfq_runnable, struct task_struct *p, u64 enq_flags)
{
    struct thread *t = thread_of(p);
    struct program *f;

    if (!t || t->is_runnable)
        return;
    f = program_at(t->program);
    if (!f)
        return;
    t->is_runnable = 1;
    t->runs_for = t->program;
    t->left_ns = 0;
    if (__sync_fetch_and_add(&f->runnable, 1) == 0) {
        activate(t->program, 1);
        raise_finish(f, virtual_time());
    }
}

SEC("struct_ops/pmqfq_quiescent")
void BPF_PROG(pmqfq_quiescent, struct task_struct *p, u64 deq_flags)
{
    struct thread *t = thread_of(p);
    struct program *f;
    s32 left;

    if (!t)
        return;
    wait_ends(t);
    if (!t->is_runnable)
        return;
    t->is_runnable = 0;
    f = program_at(t->runs_for);
    if (!f)
        return;
    left = __sync_fetch_and_add(&f->runnable, -1) - 1;
    if (!left)
        activate(t->runs_for, -1);
    note(EVENT_BLOCK, scx_bpf_task_cpu(p), t->runs_for, p->pid, f->finish, left);
}

SEC("struct_ops/pmqfq_running")
void BPF_PROG(pmqfq_running, struct task_struct *p)
{
    struct thread *t = thread_of(p);
    u32 cpu = scx_bpf_task_cpu(p);
    struct program *f;

    if (!t)
        return;
    wait_ends(t);
    f = program_at(t->program);
    if (f && t->last_cpu != (s32)cpu)
        __sync_fetch_and_add(&f->migrations, 1);
    t->last_cpu = cpu;
    begin(p, t, cpu, p->scx.slice ? p->scx.slice : slice_ns);
}

SEC("struct_ops/pmqfq_stopping")
void BPF_PROG(pmqfq_stopping, struct task_struct *p, bool runnable)
{
    struct thread *t = thread_of(p);

    if (t)
        settle(p, t, scx_bpf_task_cpu(p));
}

#include "slots.h"

/* With these two a CPU may come and go; without, the kernel ends the scheduler. */
SEC("struct_ops/pmqfq_cpu_online")
void BPF_PROG(pmqfq_cpu_online, s32 cpu)
{
    struct service *on = service_of(cpu);

    if (on)
        on->is_asked = on->is_due = on->is_offline = 0;
}

SEC("struct_ops/pmqfq_cpu_offline")
void BPF_PROG(pmqfq_cpu_offline, s32 cpu)
{
    struct service *on = service_of(cpu);

    if (on) {
        on->is_asked = on->is_due = 0;
        on->is_offline = 1;
    }
}

SEC("struct_ops.s/pmqfq_init")
s32 BPF_PROG(pmqfq_init)
{
    struct program *root = program_at(0);
    u64 id = 1;
    u32 zero = 0;
    int llc, slot;
    s32 failed;

    if (!root)
        return -12;
    root->id = id;
    root->weight = 100;
    root->is_used = 1;
    bpf_for(llc, 0, nr_llcs) {
        failed = scx_bpf_create_dsq(queue_of(0, llc), -1);
        if (failed)
            return failed;
    }
    prepare_books();
    bpf_map_update_elem(&slots, &id, &zero, 0);
    bpf_for(slot, 1, PROGRAMS_MAX) {
        u32 free = PROGRAMS_MAX - slot;

        bpf_map_push_elem(&free_slots, &free, 0);
    }
    return 0;
}

SEC("struct_ops/pmqfq_exit")
void BPF_PROG(pmqfq_exit, struct scx_exit_info *info)
{
    report.kind = info->kind;
    report.code = info->exit_code;
    bpf_probe_read_kernel_str(report.reason, sizeof(report.reason), info->reason);
    bpf_probe_read_kernel_str(report.message, sizeof(report.message), info->msg);
    report.is_set = 1;
}

SEC(".struct_ops.link")
struct sched_ext_ops pmqfq = {
    .select_cpu = (void *)pmqfq_select_cpu,
    .enqueue = (void *)pmqfq_enqueue,
    .dispatch = (void *)pmqfq_dispatch,
    .tick = (void *)pmqfq_tick,
    .runnable = (void *)pmqfq_runnable,
    .running = (void *)pmqfq_running,
    .stopping = (void *)pmqfq_stopping,
    .quiescent = (void *)pmqfq_quiescent,
    .init_task = (void *)pmqfq_init_task,
    .exit_task = (void *)pmqfq_exit_task,
    .cgroup_init = (void *)pmqfq_cgroup_init,
    .cgroup_exit = (void *)pmqfq_cgroup_exit,
    .cgroup_move = (void *)pmqfq_cgroup_move,
    .cgroup_set_weight = (void *)pmqfq_cgroup_set_weight,
    .cpu_online = (void *)pmqfq_cpu_online,
    .cpu_offline = (void *)pmqfq_cpu_offline,
    .init = (void *)pmqfq_init,
    .exit = (void *)pmqfq_exit,
    .timeout_ms = 5000,
    .name = "pmqfq",
};
