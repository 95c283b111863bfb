/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which program does a thread belong to? A slot for each cgroup of the cpu controller, or for each process.
 *
 * Source: cpu/src/places.rs, which has the rule for cgroups, and what follows when slots run out.
 *
 * # Invariants
 * - A slot's queues are made once and stay, so a thread may still be in one when the slot has got another program.
 * - Cgroups come and go one at a time (the kernel's cgroup lock); processes by the maps' own locks, on fork and exit.
 */
#pragma once

/* Processes get their slots on several CPUs at once, and a smaller number must not come after a larger one. */
static void raise_words(u32 to)
{
    u32 had = words;
    int tries;

    bpf_for(tries, 0, PROGRAMS_MAX / 64) {
        u32 seen;

        if (had >= to)
            return;
        seen = __sync_val_compare_and_swap(&words, had, to);
        if (seen == had)
            return;
        had = seen;
    }
}

/*
 * A program's part of the slots: it and all below it may have three quarters of what is above it, so that no user who
 * may make cgroups can use up the slots of others. Returns whether there is room for one more under `parent`.
 */
static bool has_room(u32 parent)
{
    int level;

    bpf_for(level, 0, 32) {
        struct program *f = program_at(parent);

        if (!f)
            return false;
        if (f->slots_below >= f->room)
            return false;
        if (!parent)
            return true;
        parent = f->parent;
    }
    return false;
}

static void count_slot(u32 parent, s32 by)
{
    int level;

    bpf_for(level, 0, 32) {
        struct program *f = program_at(parent);

        if (!f)
            return;
        __sync_fetch_and_add(&f->slots_below, by);
        if (!parent)
            return;
        parent = f->parent;
    }
}

/* A slot for a program, that of `parent` if there is none for it. Its queues are made once and stay. */
static u32 slot_for(u64 id, u32 weight, u32 parent)
{
    struct program *f, *above = program_at(parent);
    u32 slot = 0, *known = bpf_map_lookup_elem(&slots, &id);
    int llc;

    if (known)
        return *known;
    if (!above || !has_room(parent) || bpf_map_pop_elem(&free_slots, &slot) || slot >= PROGRAMS_MAX)
        goto none;
    f = program_at(slot);
    if (!f)
        goto none;
    if (!f->is_used) {
        bpf_for(llc, 0, nr_llcs)
            if (scx_bpf_create_dsq(queue_of(slot, llc), -1))
                goto none;
        f->is_used = 1;
    }
    f->id = id;
    f->weight = weight;
    f->parent = parent;
    f->slots_below = 0;
    f->room = above->room / 4 * 3;
    f->rate_of = 0;
    f->finish = 0;
    f->within = 0;
    f->served_ns = 0;
    f->threads = 0;
    f->dispatches = f->preemptions = f->preempted = f->migrations = f->cuts = 0;
    raise_words(slot / 64 + 1);
    if (bpf_map_update_elem(&slots, &id, &slot, BPF_NOEXIST)) {
        f->id = 0;
        bpf_map_push_elem(&free_slots, &slot, 0);
        known = bpf_map_lookup_elem(&slots, &id);
        return known ? *known : parent;
    }
    count_slot(parent, 1);
    note(EVENT_WEIGHT, 0, slot, 0, 0, weight);
    return slot;
none:
    __sync_fetch_and_add(&without_slot, 1);
    return parent;
}

static void forget(u64 id)
{
    u32 slot, *known = bpf_map_lookup_elem(&slots, &id);
    struct program *f;

    if (!known || !*known)
        return;
    slot = *known;
    bpf_map_delete_elem(&slots, &id);
    f = program_at(slot);
    if (f) {
        f->id = 0;
        count_slot(f->parent, -1);
    }
    bpf_map_push_elem(&free_slots, &slot, 0);
}

/* The slot of a cgroup, or of the nearest one above it that has one. */
static u32 slot_of_cgroup(struct cgroup *cgroup)
{
    struct cgroup *at = cgroup;
    int level;

    bpf_for(level, 0, 64) {
        u64 id;
        u32 *known;

        if (!at)
            break;
        id = BPF_CORE_READ(at, kn, id);
        known = bpf_map_lookup_elem(&slots, &id);
        if (known)
            return *known;
        /* The subsystem's state is the cgroup's first member. */
        at = (struct cgroup *)BPF_CORE_READ(at, self.parent);
    }
    return 0;
}

/* Kernel threads are a program of their own, unless they were put into a cgroup. */
static u32 slot_of_thread(struct task_struct *p, struct cgroup *cgroup)
{
    u32 slot = by_process ? 0 : slot_of_cgroup(cgroup);

    return !slot && p->flags & PF_KTHREAD ? KERNEL : slot;
}

SEC("struct_ops.s/pmqfq_init_task")
s32 BPF_PROG(pmqfq_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
    struct thread *t = bpf_task_storage_get(&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
    struct program *f;

    if (!t)
        return -12; /* ENOMEM */
    t->last_cpu = -1;
    t->asks = -1;
    if (!by_process || p->flags & PF_KTHREAD)
        /* Where CONFIG_EXT_GROUP_SCHED is set. */
        t->program = slot_of_thread(p, bpf_core_field_exists(args->cgroup) ? args->cgroup : NULL);
    else
        t->program = slot_for(p->tgid, 100, 0);
    f = program_at(t->program);
    if (f)
        __sync_fetch_and_add(&f->threads, 1);
    return 0;
}

SEC("struct_ops/pmqfq_exit_task")
void BPF_PROG(pmqfq_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
    struct thread *t = thread_of(p);
    struct program *f;

    if (!t)
        return;
    wait_ends(t);
    f = program_at(t->program);
    if (f && __sync_fetch_and_add(&f->threads, -1) == 1 && by_process && t->program > KERNEL)
        forget(f->id);
}

/* cpu.idle of a cgroup is set: it weighs as little as any can. */
#define IDLE_WEIGHT 1

static bool is_idle(struct cgroup *cgroup)
{
    struct cgroup_subsys_state **at = cgroup->subsys, *css = NULL;

    at += bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
    bpf_probe_read_kernel(&css, sizeof(css), at);
    /* The group's first member. */
    return css && BPF_CORE_READ((struct task_group *)css, idle) > 0;
}

SEC("struct_ops.s/pmqfq_cgroup_init")
s32 BPF_PROG(pmqfq_cgroup_init, struct cgroup *cgroup, struct scx_cgroup_init_args *args)
{
    u32 parent = 0;

    if (by_process || !cgroup->level)
        return 0;
    if (cgroup->level > 1) {
        struct cgroup *above = (struct cgroup *)cgroup->self.parent;
        u64 id = BPF_CORE_READ(above, kn, id);
        u32 *known = bpf_map_lookup_elem(&slots, &id);

        /* One below a cgroup without a slot is in the same program. */
        if (!known) {
            __sync_fetch_and_add(&without_slot, 1);
            return 0;
        }
        parent = *known;
    }
    slot_for(cgroup->kn->id, is_idle(cgroup) ? IDLE_WEIGHT : args->weight ? args->weight : 100, parent);
    return 0;
}

SEC("struct_ops/pmqfq_cgroup_exit")
void BPF_PROG(pmqfq_cgroup_exit, struct cgroup *cgroup)
{
    if (!by_process && cgroup->level)
        forget(cgroup->kn->id);
}

SEC("struct_ops/pmqfq_cgroup_move")
void BPF_PROG(pmqfq_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
    struct thread *t = thread_of(p);
    struct program *f, *g;

    if (!t || by_process)
        return;
    f = program_at(t->program);
    t->program = slot_of_thread(p, to);
    g = program_at(t->program);
    if (f)
        __sync_fetch_and_add(&f->threads, -1);
    if (g)
        __sync_fetch_and_add(&g->threads, 1);
}

static void set_weight(struct cgroup *cgroup, u32 weight)
{
    u64 id = cgroup->kn->id;
    u32 *known = bpf_map_lookup_elem(&slots, &id), slot = known ? *known : 0;
    struct program *f = program_at(slot), *above;

    if (by_process || !slot || !f || !weight)
        return;
    f->weight = weight;
    above = f->parent ? program_at(f->parent) : NULL;
    if (above && f->active > 0) {
        s32 before = __sync_lock_test_and_set(&f->counted, (s32)weight);

        __sync_fetch_and_add(&above->below, (s32)weight - before);
    }
    __sync_fetch_and_add(&generation, 1);
    note(EVENT_WEIGHT, 0, slot, 0, f->finish, weight);
}

SEC("struct_ops/pmqfq_cgroup_set_weight")
void BPF_PROG(pmqfq_cgroup_set_weight, struct cgroup *cgroup, u32 weight)
{
    set_weight(cgroup, weight);
}

/* A cgroup that is idle no longer has the default weight, as the kernel has it. */
SEC("struct_ops/pmqfq_cgroup_set_idle")
void BPF_PROG(pmqfq_cgroup_set_idle, struct cgroup *cgroup, bool idle)
{
    set_weight(cgroup, idle ? IDLE_WEIGHT : 100);
}
