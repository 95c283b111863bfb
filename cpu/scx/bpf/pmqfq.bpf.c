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
 * - A kernel thread that may run on one CPU only and wakes up goes there at once: others wait for it. It is charged, and
 *   when its quantum is over it waits for its turn.
 * - The rest of a quantum goes on where it was before that of a sibling (`take_first`).
 * - The quantum ends at a tick.
 * - A light thread (rule 8) is one that was given a CPU to wake up on; one that may run on one CPU only never is.
 *
 * # Invariants
 * - A CPU's request is charged ahead by exactly `span`, which is given back once, in `settle`.
 * - `waiting` counts threads from enqueue to running or quiescent.
 */
#include "kernel.h"
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "shared.h"
#include "state.h"
#include "books.h"
#include "look.h"

/* Process of the kernel's threads, and their weight: ten times that of a cgroup, unless the loader sets another. */
#define KTHREADD 2
#define KERNEL_WEIGHT 1000

char _license[] SEC("license") = "GPL";

/*
 * CentralQueue::dispatch: a request begins. It is charged at once for all that it may run, so the next one of its
 * program begins where it would end.
 */
static void begin(struct task_struct *p, struct thread *t, u32 cpu, u64 granted_ns)
{
    struct program *f = program_at(t->program);
    struct service *on = service_of(cpu);
    u64 charged_ns;

    if (!f || !on)
        return;
    granted_ns = charged_ns = shortened(on, cpu, granted_ns);
    /* Rule 8. */
    if (t->is_light) {
        u64 likely_ns = 2 * t->burst_ns > slice_ns / 30 ? 2 * t->burst_ns : slice_ns / 30;

        t->is_light = 0;
        if (charged_ns > likely_ns)
            charged_ns = likely_ns;
    }
    p->scx.slice = granted_ns;
    on->span = span_of(f, charged_ns);
    on->granted_ns = granted_ns;
    on->start = __sync_fetch_and_add(&f->finish, on->span);
    on->exec_ns = p->se.sum_exec_runtime;
    on->since_ns = scx_bpf_now();
    __sync_fetch_and_add(&f->ahead, on->span);
    __sync_fetch_and_add(&f->since_ns, on->since_ns);
    on->within = t->within;
    if (is_before(f->within, t->within))
        f->within = t->within;
    on->program = t->program;
    on->is_asked = 0;
    on->is_due = 0;
    on->is_busy = 1;
    set_busy(cpu);
    __sync_fetch_and_add(&f->running, 1);
    __sync_fetch_and_add(&f->dispatches, 1);
    note(EVENT_BEGIN, cpu, t->program, p->pid, on->start, charged_ns);
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
    t->was_last = on->is_asked == ASKED_AS_LAST;
    on->is_asked = 0;
    f = program_at(on->program);
    if (!f)
        return;
    ran_ns = p->se.sum_exec_runtime - on->exec_ns;
    used = span_of(f, ran_ns);
    __sync_fetch_and_add(&f->finish, used - on->span);
    __sync_fetch_and_add(&f->ahead, -on->span);
    __sync_fetch_and_add(&f->since_ns, -on->since_ns);
    if (f->waiting > 0)
        lower(on->program, f->finish);
    __sync_fetch_and_add(&f->served_ns, ran_ns);
    t->within += ran_ns;
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
    /*
     * A program on a trampoline may itself be what disables migration of the current thread. Linux 6.18 and later do so
     * with preemptible RCU alone; without it no such thread is said to be free, which costs it a look at idle CPUs.
     */
    if (p->migration_disabled == 1)
        return bpf_core_field_exists(p->rcu_read_lock_nesting) && bpf_get_current_task_btf() == p;
    return !p->migration_disabled;
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
    struct look *found = look_here();
    bool slept;
    u64 tag, now_ns;
    s32 victim;

    if (!f)
        return prev_cpu;
    t->asks = -1;
    now_ns = scx_bpf_now();
    t->is_rare = now_ns - t->slept_since_ns >= 16 * t->burst_ns;
    t->is_light = now_ns - t->slept_since_ns >= 4 * t->burst_ns;
    slept = !f->runnable;
    found->slot = t->program;
    found->slept = slept || t->is_light;
    found->may_move = true;
    found->brief = is_brief(t);
    found->rare = t->is_rare;
    found->within = within_of(t, f);
    look_around(p, prev_cpu, now_ns, found);
    /* Its siblings may fall asleep before `runnable`: without `found->slept` the look has no beginning. */
    t->looked = found->slept ? found->beginning : found->now;
    t->has_looked = 0;
    if (!slept)
        limit_lag(f, found->now);
    if (found->has_free) {
        bool is_idle = false;
        /* CentralQueue::take_idle_core: the one where it ran last if that is idle, else another. */
        s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

        if (is_idle) {
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, AT_ONCE);
            return cpu;
        }
    }
    if (!preempts)
        return prev_cpu;
    /* Rule 2, which `runnable` is about to apply. */
    tag = f->finish;
    if (slept && is_before(tag, found->beginning))
        tag = found->beginning;
    victim = ask(tag, found);
    if (victim < 0)
        victim = ask_sibling(found);
    if (victim < 0) {
        t->has_looked = !found->lost;
        return prev_cpu;
    }
    t->asks = victim;
    return victim;
}

/*
 * Whether the CPU that was asked at the wake-up still is to be had. The caller holds its lock, so it serves the same
 * request until the caller is done.
 */
static bool is_granted(struct thread *t, u64 tag, s32 cpu, u64 *most, u64 *rest_ns)
{
    struct service *on = service_of(cpu);
    u64 ran_ns = scx_bpf_now() - on->since_ns;
    struct program *g;

    *most = tag;
    if (t->asks != cpu || (on->is_asked != ASKED && on->is_asked != ASKED_AS_LAST) || !on->is_busy)
        return false;
    if (on->program == t->program) {
        *rest_ns = on->granted_ns > ran_ns + 100000 ? on->granted_ns - ran_ns : 100000;
        return may_swap(is_brief(t), t->is_rare, t->within, on->within + ran_ns, ran_ns);
    }
    g = program_at(on->program);
    *most = (t->slept || t->is_light) && g ? g->finish : start_of(on);
    return is_before(tag, *most);
}

/* A thread of the program is about to wait, for any CPU that it may use, or for this one. */
static void note_where(struct task_struct *p, u32 slot, struct program *f, s32 only)
{
    u64 cpus = 0;
    int word;

    if (only >= 0)
        cpus = bit_of(only);
    else if (p->nr_cpus_allowed >= nr_cpus || p->nr_cpus_allowed >= 64)
        cpus = ~0ULL;
    else
        bpf_for(word, 0, nr_cpus)
            if (bpf_cpumask_test_cpu(word, p->cpus_ptr))
                cpus |= bit_of(word);
    if (~f->where & cpus)
        __sync_fetch_and_or(&f->where, cpus);
    set_bit(slot);
    widen(slot, cpus);
    lower(slot, f->finish);
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
    struct look *found = look_here();
    u64 quantum_ns, queue;
    s32 cpu = scx_bpf_task_cpu(p);
    bool may_move, is_first;
    u32 arrives;

    if (!t || (p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1 && enq_flags & FLAG(SCX_ENQ_WAKEUP))) {
        scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | FLAG(SCX_ENQ_PREEMPT));
        return;
    }
    f = program_at(t->program);
    if (!f)
        return;
    wait_begins(t, t->program, f);
    if (t->asks >= 0) {
        u64 tag = f->finish, most, rest_ns = slice_ns;
        bool granted = is_granted(t, tag, cpu, &most, &rest_ns);

        t->asks = -1;
        if (granted) {
            note(EVENT_ARRIVE, cpu, t->program, p->pid, tag, most);
            if (service_of(cpu)->program != t->program)
                count_preemption(p, t, f, cpu, tag, most);
            else {
                note(EVENT_SWAP, cpu, t->program, p->pid, tag, rest_ns);
                t->has_rest = 1;
            }
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, rest_ns, enq_flags | FLAG(SCX_ENQ_PREEMPT) | AT_ONCE);
            return;
        }
    }
    quantum_ns = t->left_ns ? t->left_ns : slice_ns;
    may_move = p->nr_cpus_allowed > 1 && may_leave(p);
    arrives = may_move ? EVENT_ARRIVE : EVENT_ARRIVE | PINNED;
    /* Its turn as an overdue thread was cut short by a thread that had asked for the request before: it goes on behind. */
    if (t->left_ns && !(enq_flags & FLAG(SCX_ENQ_WAKEUP)) && service_of(cpu)->was_overdue) {
        note(arrives, cpu, t->program, p->pid, f->finish, trace_len ? virtual_time(false) : 0);
        note(EVENT_OVERDUE, cpu, t->program, p->pid, f->finish, 0);
        scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, quantum_ns, enq_flags);
        return;
    }
    /*
     * It has just looked for a CPU in vain, or was the furthest of all in service when it lost its own: it begins no
     * earlier than its last request, so no other one has a larger start tag.
     */
    if (enq_flags & FLAG(SCX_ENQ_CPU_SELECTED) ? t->has_looked : t->was_last && !(enq_flags & FLAG(SCX_ENQ_WAKEUP))) {
        t->has_looked = t->was_last = 0;
        note(arrives, cpu, t->program, p->pid, f->finish, trace_len ? virtual_time(false) : 0);
        goto wait;
    }
    found->slot = t->program;
    found->slept = t->slept || (t->is_light && enq_flags & FLAG(SCX_ENQ_WAKEUP));
    found->may_move = may_move;
    found->brief = is_brief(t);
    found->rare = t->is_rare;
    found->within = t->within;
    look_around(p, cpu, scx_bpf_now(), found);
    limit_lag(f, found->now);
    note(arrives, cpu, t->program, p->pid, f->finish, found->now);
    if (found->has_free && !(enq_flags & FLAG(SCX_ENQ_CPU_SELECTED))) {
        s32 idle = -1;

        if (may_move)
            idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
        else if (scx_bpf_test_and_clear_cpu_idle(cpu))
            idle = cpu;
        if (idle >= 0) {
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, quantum_ns, enq_flags | AT_ONCE);
            return;
        }
    }
    if (preempts) {
        u64 tag = f->finish;
        s32 victim = ask(tag, found);

        if (victim >= 0) {
            count_preemption(p, t, f, victim, tag, found->most);
            scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | victim, quantum_ns,
                               enq_flags | FLAG(SCX_ENQ_PREEMPT) | AT_ONCE);
            return;
        }
    }
wait:
    queue = queue_of(t->program, llc_at(cpu));
    if (wait_ns && !promise(p, t, cpu, may_move, queue)) {
        /* Books that are full: in the order of arrival, which no thread waits long for. */
        scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, quantum_ns, enq_flags);
        return;
    }
    note_where(p, t->program, f, may_move ? -1 : cpu);
    /* CentralQueue::push_front: the rest of a quantum goes before the siblings, as does a thread by rule 7. */
    is_first = t->left_ns || ((enq_flags & FLAG(SCX_ENQ_WAKEUP) || t->has_rest) &&
                              is_soon(is_brief(t), t->is_rare, t->within, f->within));
    t->has_rest = 0;
    scx_bpf_dsq_insert(p, queue, quantum_ns,
                       is_first ? enq_flags | FLAG(SCX_ENQ_HEAD) : enq_flags);
}

static __always_inline bool move_here(u64 queue)
{
    return scx_bpf_dsq_move_to_local(queue, AT_ONCE);
}

/*
 * A thread that waits in this queue. The rest of a quantum goes on where it was, if that is this CPU, before the rest
 * of a sibling's: a move takes another CPU's lock. No other thread is passed over.
 */
static bool take_first(struct program *f, u64 queue, s32 cpu)
{
    struct task_struct *p;
    bool is_taken = false;
    int looked = 0;

    if (f->waiting > 1)
        bpf_for_each(scx_dsq, p, queue, 0) {
            struct thread *t;

            if (scx_bpf_task_cpu(p) == cpu) {
                if (looked)
                    is_taken = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, AT_ONCE);
                break;
            }
            t = thread_of(p);
            if (!t || !t->left_ns || ++looked == 8)
                break;
        }
    return is_taken || move_here(queue);
}

/* A thread of a program, of this cache if there is one. Now and then another cache is first, so that nobody waits long
 * in the queue of one whose CPUs always serve others, or are gone. */
static bool take_from(struct program *f, u32 slot, s32 cpu)
{
    u32 llc = llc_at(cpu);
    int other;

    if (nr_llcs <= 1)
        return take_first(f, queue_of(slot, llc), cpu);
    if (!(f->dispatches & 63) && move_here(queue_of(slot, (f->dispatches >> 6) % nr_llcs)))
        return true;
    if (take_first(f, queue_of(slot, llc), cpu))
        return true;
    bpf_for(other, 0, nr_llcs)
        if (other != llc && move_here(queue_of(slot, other)))
            return true;
    return false;
}

enum picked {
    TAKEN,
    NOTHING,
    /* The program that was first had no thread for this CPU. */
    AGAIN,
};

/* One look at the programs. `may_stay`: a thread runs here whose program would be at `own`. */
static __noinline int pick(s32 cpu, bool may_stay, u64 own)
{
    struct program *f;
    u64 tag;
    u32 slot = first_on(cpu, &tag);

    if (slot >= PROGRAMS_MAX || (may_stay && is_before(own, tag)))
        return NOTHING;
    f = program_at(slot);
    if (!f)
        return NOTHING;
    note(EVENT_PICK, cpu, slot, 0, tag, own);
    if (take_from(f, slot, cpu)) {
        /* The thread that was taken counts as waiting until it runs; it was the last in the queues. */
        if (f->waiting <= 1)
            clear_bit(slot, f, 1);
        return TAKEN;
    }
    /*
     * No thread is left, or none may run here: this CPU does not look there again before one more waits. A thread that
     * comes between the two is found by another CPU, or when it is overdue.
     */
    second_looks++;
    __sync_fetch_and_and(&f->where, ~bit_of(cpu));
    if (f->waiting <= 0)
        clear_bit(slot, f, 0);
    return AGAIN;
}

/* Ideal::pick. A thread whose quantum is over goes on if its program still is first. */
SEC("struct_ops/pmqfq_dispatch")
void BPF_PROG(pmqfq_dispatch, s32 cpu, struct task_struct *prev)
{
    struct thread *t = NULL;
    struct service *on = service_of(cpu);
    struct program *g = NULL;
    struct ticket *overdue;
    u64 own = 0;
    int tries, picked;

    /* A CPU that is about to serve another request anyway is not asked. */
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
    if (overdue && !on->was_overdue && take_overdue(on, overdue, cpu, 0))
        return;
    on->was_overdue = 0;
    picked = pick(cpu, !!t, own);
    if (picked == AGAIN)
        bpf_for(tries, 1, PROGRAMS_MAX) {
            picked = pick(cpu, !!t, own);
            if (picked != AGAIN)
                break;
        }
    if (picked == TAKEN)
        return;
    if (t) {
        settle(prev, t, cpu);
        t->left_ns = 0;
        limit_lag(g, virtual_time(false));
        begin(prev, t, cpu, slice_ns);
    } else if (!on->is_busy) {
        set_idle(cpu);
    }
}

/* The first by tags has its turn on this CPU, unless that is the program that runs here: then its request goes on. */
static void take_by_tags(struct service *on, u32 cpu, u64 flags)
{
    struct program *g = program_at(on->program);
    u64 tag;
    u32 slot = first_on(cpu, &tag);
    int llc;

    on->was_overdue = 0;
    if (slot < PROGRAMS_MAX && g && !is_before(paid_of(on, g, scx_bpf_now()), tag)) {
        note(EVENT_PICK, cpu, slot, 0, tag, 0);
        if (take_thread(queue_of(slot, llc_at(cpu)), 0, cpu, flags))
            return;
        bpf_for(llc, 0, nr_llcs)
            if (take_thread(queue_of(slot, llc), 0, cpu, flags))
                return;
    }
    on->is_asked = ASKED_NOT;
    end_after(on, cpu, short_ns(on));
}

/*
 * A short request is over. The thread that is next is put before it, for no call tells a CPU to pick that all kernels
 * with this scheduler class can be asked for (Debian's 7.2 has no scx_bpf_kick_cpu). Books::pick has the order.
 */
static void end_slice(u32 cpu)
{
    u64 preempt = FLAG(SCX_ENQ_PREEMPT);
    struct service *on = service_of(cpu);
    struct ticket *overdue;

    if (cpu != bpf_get_smp_processor_id() || !on->is_busy || !on->ends_ns ||
        (s64)(bpf_ktime_get_ns() - on->ends_ns) < 0)
        return;
    /* Until here `ends_ns` keeps the tick away from the books. */
    if (__sync_val_compare_and_swap(&on->is_asked, ASKED_NOT, ASKED))
        goto over;
    overdue = first_overdue(cpu, on);
    if (!overdue && !on->was_overdue) {
        on->is_asked = ASKED_NOT;
        on->is_crowded = 0;
        goto over;
    }
    if (!overdue || on->was_overdue || !take_overdue(on, overdue, cpu, preempt)) {
        on->ends_ns = 0;
        take_by_tags(on, cpu, preempt);
        return;
    }
over:
    on->ends_ns = 0;
}

static int slice_ends(void *map, u32 *cpu, struct end_of_slice *end)
{
    /* Linux 6.16 takes the callback for one that may sleep, since the program may that sets the timer. */
    bpf_rcu_read_lock();
    end_slice(*cpu);
    bpf_rcu_read_unlock();
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

/*
 * Tags are compared by the sign of their difference, so one that virtual time has left behind by 2^63 would seem to be
 * ahead: after 6 hours at the smallest rate of 64 CPUs. Each tick looks at one slot; with a tick of 10 ms on one CPU all
 * have been looked at in 6 minutes. What rule 2 gives a program that wakes up is the same.
 */
static void refresh(struct service *on)
{
    u32 slot = __sync_fetch_and_add(&refreshed, 1) % (words * 64);
    struct program *f = program_at(slot);
    u64 far;

    if (!f || !on->is_busy || f->runnable > 0)
        return;
    far = on->start - (1ULL << 40);
    if (is_before(f->finish, far))
        raise_finish(f, far);
}

/* Ideal::timer: a minimum slice is over. Also the safety net of a reschedule that was not served. */
SEC("struct_ops/pmqfq_tick")
void BPF_PROG(pmqfq_tick, struct task_struct *p)
{
    u32 cpu = scx_bpf_task_cpu(p);
    struct service *on = service_of(cpu);
    u64 tag;

    if (on->is_asked)
        on->is_asked = on->is_asked == ASKED || on->is_asked == ASKED_AS_LAST ? ASKED_FOR_LONG : ASKED_NOT;
    refresh(on);
    if (!on->ends_ns && first_overdue(cpu, on)) {
        p->scx.slice = 0;
        return;
    }
    if (!on->is_due || scx_bpf_now() - on->since_ns < min_slice_ns)
        return;
    on->is_due = 0;
    if (first_on(cpu, &tag) < PROGRAMS_MAX && is_before(tag, start_of(on)))
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
    t->left_ns = t->has_rest = 0;
    t->woke_ns = p->se.sum_exec_runtime;
    t->within = within_of(t, f);
    t->slept = 0;
    if (__sync_fetch_and_add(&f->runnable, 1) == 0) {
        t->slept = 1;
        activate(t->program, 1);
        /* With a CPU that was chosen at the wake-up, virtual time is that of this look. */
        raise_finish(f, enq_flags & FLAG(SCX_ENQ_CPU_SELECTED) ? t->looked : virtual_time(true));
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
    t->burst_ns = p->se.sum_exec_runtime - t->woke_ns;
    t->slept_since_ns = scx_bpf_now();
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
    t->slept = 0;
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
    struct program *root = program_at(0), *kernel = program_at(KERNEL);
    u64 id = 1;
    u32 zero = 0;
    int llc, slot;
    s32 failed;

    if (!root || !kernel)
        return -12;
    root->id = id;
    root->weight = 100;
    root->is_used = 1;
    root->room = nr_programs;
    kernel->id = KTHREADD;
    kernel->weight = KERNEL_WEIGHT;
    kernel->is_used = 1;
    bpf_for(llc, 0, nr_llcs) {
        failed = scx_bpf_create_dsq(queue_of(0, llc), -1);
        if (!failed)
            failed = scx_bpf_create_dsq(queue_of(KERNEL, llc), -1);
        if (failed)
            return failed;
    }
    prepare_books();
    bpf_map_update_elem(&slots, &id, &zero, 0);
    bpf_for(slot, 0, nr_programs - KERNEL - 1) {
        u32 free = nr_programs - 1 - slot;

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
    .cgroup_set_idle = (void *)pmqfq_cgroup_set_idle,
    .cpu_online = (void *)pmqfq_cpu_online,
    .cpu_offline = (void *)pmqfq_cpu_offline,
    .init = (void *)pmqfq_init,
    .exit = (void *)pmqfq_exit,
    .timeout_ms = 5000,
    .name = "pmqfq",
};
