/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From whom may a request take a CPU, and which program is first of those that wait?
 *
 * Source: Ideal::preempt and Ideal::preempt_late of cpu/src/ideal.rs (rules 3 and 6), CentralQueue::first_on of
 * cpu/src/central.rs.
 */
#pragma once

/* Who would lose its CPU to a request, and system virtual time: one look at what all CPUs serve. */
struct look {
    /* Whose request it is, whether its program slept until now or it is light, and whether it may leave its CPU. */
    u32 slot;
    bool slept, may_move;
    /* Of the thread: `is_brief`, `is_rare` and its place among its siblings. */
    bool brief, rare;
    u64 within;
    u64 now;
    /* With `slept`: where a program begins that slept. */
    u64 beginning;
    /* A CPU that the request may take from another program, if its start tag is below this. */
    u64 most;
    s32 victim;
    /* With `slept`: the CPU where its thread is, if that is such a one. */
    s32 own;
    u64 own_most;
    /* Such a CPU whose minimum slice is not over. */
    s32 due;
    /* The CPU of a sibling that has run for long: its own, or that of the one furthest ahead; and that one's place. */
    s32 sibling;
    u64 reached;
    /* A CPU serves no request: it may be idle. */
    bool has_free;
    /* A CPU that was to be had was asked by another request first. */
    bool lost;
    /* The thread may run on any CPU, and of all requests in service the victim would be the furthest. */
    bool is_free, is_last;
    /* The thread's CPU, and the time. */
    s32 home;
    u64 now_ns;
    /* So far: a request is in service; the victim's program, and with `slept` where that would be. */
    bool any;
    u32 victims;
    u64 furthest;
    /* With a trace: lines of CPUs and of programs that were read. */
    u32 lines;
};

/* Of the CPU on which the callback runs: no other callback with a look comes in between. On the stack the verifier would
 * tell apart what each word is, and look at each of the loops for some 100 times as long. */
static struct look looks[CPUS_MAX];

static __always_inline struct look *look_here(void)
{
    u64 cpu = bpf_get_smp_processor_id() & (CPUS_MAX - 1);

    barrier_var(cpu);
    return &looks[cpu];
}

/* The thread slept again within a 60th of a quantum the last time. */
static __always_inline bool is_brief(struct thread *t)
{
    return t->burst_ns <= slice_ns / 60;
}

/* Kin::is_soon: the thread in the first place is behind the second one, and brief, or a quantum behind and rare. */
static __always_inline bool is_soon(bool brief, bool rare, u64 within, u64 place)
{
    s64 behind_ns = place - within;

    return behind_ns > 0 && (brief || (rare && behind_ns >= (s64)slice_ns));
}

/* Rule 7, Kin::ahead_ns: may a thread go on with the quantum of a sibling, which is in that place and ran for so long? */
static __always_inline bool may_swap(bool brief, bool rare, u64 within, u64 reached, u64 ran_ns)
{
    u64 least_ns = is_soon(brief, rare, within, reached) || min_slice_ns > slice_ns / 3 ? min_slice_ns : slice_ns / 3;

    return is_before(within, reached) && ran_ns >= least_ns;
}

/* Where its program would be if the request had to end now. */
static __always_inline u64 paid_of(struct service *on, struct program *g, u64 now_ns)
{
    u64 ran_ns = now_ns - on->since_ns;

    return g->finish - on->span + span_of(g, ran_ns < on->granted_ns ? ran_ns : on->granted_ns);
}

/*
 * Ideal::virtual_time and the scans of Ideal::preempt, and with `slept` of Ideal::preempt_late, over 64 CPUs. Of several
 * requests of one program the former takes the one on `own`: the program's tags are a chain, which closes up the same
 * whichever of them ends, and a thread that stays where it was needs no other CPU's lock.
 */
__noinline int look_at_cpus(struct task_struct *p __arg_trusted, u32 word, struct look *found __arg_nonnull)
{
    u64 all = nr_cpus >= (word + 1) * 64 ? ~0ULL : bit_of(nr_cpus) - 1, left = *busy_at(word);
    u32 slot = found->slot;
    s32 own = found->home;
    u64 now_ns = found->now_ns;
    int step;

    if (~left & all)
        found->has_free = true;
    bpf_for(step, 0, 64) {
        struct service *on;
        u64 tag;
        s32 cpu;

        if (!left)
            break;
        cpu = word * 64 + __builtin_ctzll(left);
        left &= left - 1;
        on = service_of(cpu);
        if (trace_len)
            found->lines++;
        if (!on->is_busy) {
            found->has_free = true;
            continue;
        }
        if (on->is_asked)
            continue;
        tag = start_of(on);
        if (!found->any || is_before(found->now, tag))
            found->now = tag;
        if (found->slept) {
            u64 point = own_point(on, tag, now_ns);

            if (!found->any || is_before(found->beginning, point))
                found->beginning = point;
        }
        found->any = true;
        if (on->was_overdue || (!found->may_move && cpu != own) ||
            (!found->is_free && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr)))
            continue;
        if (on->program == slot) {
            u64 ran_ns = now_ns - on->since_ns, at = on->within + ran_ns;

            /* The one on its own CPU needs no word to another CPU. */
            if (may_swap(found->brief, found->rare, found->within, at, ran_ns) &&
                (found->sibling < 0 || cpu == own || (found->sibling != own && is_before(found->reached, at)))) {
                found->sibling = cpu;
                found->reached = at;
            }
            continue;
        }
        if (min_slice_ns && now_ns - on->since_ns < min_slice_ns) {
            found->due = cpu;
            continue;
        }
        if (found->slept) {
            struct program *g = program_at(on->program);
            u64 paid = g ? paid_of(on, g, now_ns) : 0;

            if (trace_len)
                found->lines++;
            /* Its own, which needs no word to another CPU, is as good as the furthest. */
            if (g && cpu == own) {
                found->own = cpu;
                found->own_most = g->finish;
            }
            if (g && (found->victim < 0 || is_before(found->furthest, paid))) {
                found->furthest = paid;
                found->most = g->finish;
                found->victim = cpu;
                found->is_last = found->is_free;
            }
            continue;
        }
        if (found->victim < 0 || is_before(found->most, tag)) {
            /* A later request of the same program than the one on its own CPU. */
            if (found->victim == own && found->victims == on->program) {
                found->most = tag;
                found->is_last = false;
                continue;
            }
            found->is_last = found->is_free;
        } else if (cpu != own || found->victims != on->program) {
            continue;
        } else {
            tag = found->most;
            found->is_last = false;
        }
        found->most = tag;
        found->victim = cpu;
        found->victims = on->program;
    }
    return 0;
}

static __always_inline void look_around(struct task_struct *p, s32 home, u64 now_ns, struct look *found)
{
    int word;

    found->is_free = found->may_move && p->nr_cpus_allowed >= nr_cpus;
    found->home = home;
    found->now_ns = now_ns;
    found->now = found->beginning = served;
    found->most = found->reached = found->furthest = 0;
    found->victim = found->own = found->due = found->sibling = -1;
    found->victims = PROGRAMS_MAX;
    found->has_free = found->any = found->lost = found->is_last = false;
    found->lines = 0;
    if (nr_cpus <= 64)
        look_at_cpus(p, 0, found);
    else
        bpf_for(word, 0, (nr_cpus + 63) / 64)
            look_at_cpus(p, word, found);
    if (trace_len)
        service_of(bpf_get_smp_processor_id())->lines += found->lines;
}

/* No program in a word has a thread for the CPU, which looks there again once one comes that may have. */
static __noinline void narrow(u32 at, u32 cpu)
{
    u64 bits, *here = reach_at(at);
    int step;

    if (!(*here & bit_of(cpu)))
        return;
    __sync_fetch_and_and(here, ~bit_of(cpu));
    bits = *word_at(at);
    bpf_for(step, 0, 64) {
        struct program *f;

        if (!bits)
            return;
        f = program_at(at * 64 + __builtin_ctzll(bits));
        bits &= bits - 1;
        if (f && f->where & bit_of(cpu)) {
            __sync_fetch_and_or(here, bit_of(cpu));
            return;
        }
    }
}

/* The program with the smallest finish tag of those in a word that wait with a thread that may run on the CPU, if it is
 * before the best so far. What is found of the word is remembered. */
static __noinline void look_at_word(u32 at, u32 cpu, u32 *best, u64 *tag)
{
    u64 *least = least_at(at), had = *least, bits = *word_at(at), smallest = 0;
    bool any = false, is_here = false;
    int step;

    bpf_for(step, 0, 64) {
        struct program *f;
        u64 finish;
        u32 slot;

        if (!bits)
            break;
        slot = at * 64 + __builtin_ctzll(bits);
        bits &= bits - 1;
        f = program_at(slot);
        if (!f)
            continue;
        finish = f->finish;
        if (!any || is_before(finish, smallest))
            smallest = finish;
        any = true;
        if (!(f->where & bit_of(cpu)))
            continue;
        is_here = true;
        if (*best == PROGRAMS_MAX || is_before(finish, *tag)) {
            *best = slot;
            *tag = finish;
        }
    }
    if (any && !is_here && words > 1)
        narrow(at, cpu);
    if (any && is_before(had, smallest))
        __sync_val_compare_and_swap(least, had, smallest);
}

/*
 * CentralQueue::first_on: the program with the smallest finish tag of those that wait with a thread that may run on the
 * CPU. Of the words that may have one, that which may have the smallest is looked at first, then the others that may have
 * a smaller one: of 1,000 programs with free threads about one word of 16.
 */
__noinline u32 first_on(u32 cpu, u64 *tag __arg_nonnull)
{
    u32 best = PROGRAMS_MAX, first = PROGRAMS_MAX / 64;
    u64 smallest = 0;
    int top, step;

    *tag = 0;
    if (words == 1) {
        look_at_word(0, cpu, &best, tag);
        return best;
    }
    bpf_for(top, 0, (words + 63) / 64) {
        u64 left = *top_at(top);

        bpf_for(step, 0, 64) {
            u32 at;
            u64 least;

            if (!left)
                break;
            at = top * 64 + __builtin_ctzll(left);
            left &= left - 1;
            if (!(*reach_at(at) & bit_of(cpu)))
                continue;
            least = *least_at(at);
            if (first == PROGRAMS_MAX / 64 || is_before(least, smallest)) {
                first = at;
                smallest = least;
            }
        }
    }
    if (first == PROGRAMS_MAX / 64)
        return best;
    look_at_word(first, cpu, &best, tag);
    bpf_for(top, 0, (words + 63) / 64) {
        u64 left = *top_at(top);

        bpf_for(step, 0, 64) {
            u32 at;

            if (!left)
                break;
            at = top * 64 + __builtin_ctzll(left);
            left &= left - 1;
            if (at != first && *reach_at(at) & bit_of(cpu) &&
                (best == PROGRAMS_MAX || is_before(*least_at(at), *tag)))
                look_at_word(at, cpu, &best, tag);
        }
    }
    return best;
}

/* Ideal::preempt: rule 3, with `slept` rules 6 and 8. Returns the CPU that a request with this start tag takes, or -1. */
static s32 ask(u64 tag, struct look *found)
{
    u64 first;

    if (found->own >= 0 && is_before(tag, found->own_most)) {
        found->is_last &= found->victim == found->own;
        found->victim = found->own;
        found->most = found->own_most;
    }
    if (found->victim < 0 || !is_before(tag, found->most)) {
        if (min_slice_ns && found->due >= 0)
            service_of(found->due)->is_due = 1;
        return -1;
    }
    if (found->slept) {
        u32 other = first_on(found->victim, &first);

        if (other < PROGRAMS_MAX && other != found->slot && !is_before(tag, first))
            return -1;
    }
    if (__sync_val_compare_and_swap(&service_of(found->victim)->is_asked, ASKED_NOT,
                                    found->is_last && !min_slice_ns ? ASKED_AS_LAST : ASKED)) {
        found->lost = true;
        return -1;
    }
    return found->victim;
}

/* The CPU of a sibling that is ahead and has run for long. */
static s32 ask_sibling(struct look *found)
{
    if (found->sibling < 0)
        return -1;
    if (__sync_val_compare_and_swap(&service_of(found->sibling)->is_asked, ASKED_NOT, ASKED))
        return -1;
    return found->sibling;
}

/* Where a thread that wakes up is among its siblings: 16 quanta behind the furthest, if it was further away. */
static __always_inline u64 within_of(struct thread *t, struct program *f)
{
    u64 least = f->within - 16 * slice_ns;

    return is_before(t->within, least) ? least : t->within;
}
