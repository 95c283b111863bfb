/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What of the kernel does scx_pmqfq see? The members and functions that it uses, and no more.
 *
 * Structures are matched with those of the running kernel by name (CO-RE), so one object fits kernels whose structures
 * differ. A kfunc is declared here with the arguments that it has had since its introduction; those that the kernel
 * adds implicitly are not the program's. Numbers of enumerators are taken from the running kernel as well.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type_used {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_STACK = 23,
    BPF_MAP_TYPE_TASK_STORAGE = 29,
};
#define BPF_F_NO_PREALLOC 1U
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1ULL
#define BPF_NOEXIST 1ULL

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
    unsigned long bits[1];
};

struct sched_entity {
    u64 sum_exec_runtime;
};

struct sched_ext_entity {
    u32 flags;
    u64 slice;
};

struct task_struct {
    u32 flags;
    int pid;
    int tgid;
    int nr_cpus_allowed;
    const struct cpumask *cpus_ptr;
    u16 migration_disabled;
    /* Where CONFIG_PREEMPT_RCU is set. */
    int rcu_read_lock_nesting;
    struct sched_entity se;
    struct sched_ext_entity scx;
};

struct kernfs_node {
    u64 id;
};

struct cgroup_subsys_state {
    struct cgroup_subsys_state *parent;
};

enum cgroup_subsys_id {
    cpu_cgrp_id,
};

/* The cpu controller's part of a cgroup. */
struct task_group {
    struct cgroup_subsys_state css;
    int idle;
};

struct cgroup {
    struct cgroup_subsys_state self;
    struct cgroup_subsys_state *subsys[1];
    int level;
    struct kernfs_node *kn;
};

struct scx_init_task_args {
    bool fork;
    struct cgroup *cgroup;
};

struct scx_exit_task_args {
    bool cancelled;
};

struct scx_cgroup_init_args {
    u32 weight;
};

enum scx_exit_kind {
    SCX_EXIT_ERROR = 1024,
};

struct scx_exit_info {
    enum scx_exit_kind kind;
    s64 exit_code;
    const char *reason;
    char *msg;
};

struct pt_regs;

#pragma clang attribute pop

/* The callbacks of ours. libbpf finds each member of the kernel's structure by its name. */
struct sched_ext_ops {
    s32 (*select_cpu)(struct task_struct *, s32, u64);
    void (*enqueue)(struct task_struct *, u64);
    void (*dispatch)(s32, struct task_struct *);
    void (*tick)(struct task_struct *);
    void (*runnable)(struct task_struct *, u64);
    void (*running)(struct task_struct *);
    void (*stopping)(struct task_struct *, bool);
    void (*quiescent)(struct task_struct *, u64);
    s32 (*init_task)(struct task_struct *, struct scx_init_task_args *);
    void (*exit_task)(struct task_struct *, struct scx_exit_task_args *);
    s32 (*cgroup_init)(struct cgroup *, struct scx_cgroup_init_args *);
    void (*cgroup_exit)(struct cgroup *);
    void (*cgroup_move)(struct task_struct *, struct cgroup *, struct cgroup *);
    void (*cgroup_set_weight)(struct cgroup *, u32);
    void (*cgroup_set_idle)(struct cgroup *, bool);
    void (*cpu_online)(s32);
    void (*cpu_offline)(s32);
    s32 (*init)(void);
    void (*exit)(struct scx_exit_info *);
    u32 dispatch_max_batch;
    u64 flags;
    u32 timeout_ms;
    u32 exit_dump_len;
    u64 hotplug_seq;
    char name[128];
};

/* Of <linux/sched.h>: a kernel thread. */
#define PF_KTHREAD 0x00200000

enum scx_dsq_id_flags {
    SCX_DSQ_LOCAL = 0x8000000000000002ULL,
    SCX_DSQ_LOCAL_ON = 0xc000000000000000ULL,
};

enum scx_enq_flags {
    SCX_ENQ_WAKEUP = 1ULL,
    SCX_ENQ_HEAD = 1ULL << 16,
    SCX_ENQ_CPU_SELECTED = 1ULL << 20,
    SCX_ENQ_PREEMPT = 1ULL << 32,
    /* Linux 7.1 and later. */
    SCX_ENQ_IMMED = 1ULL << 33,
};

enum scx_ent_flags {
    SCX_TASK_QUEUED = 1,
};

enum scx_kick_flags {
    SCX_KICK_PREEMPT = 1ULL << 1,
};

struct bpf_iter_num {
    u64 __opaque[1];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
    u64 __opaque[6];
} __attribute__((aligned(8)));

struct bpf_timer {
    u64 __opaque[2];
} __attribute__((aligned(8)));
#define CLOCK_MONOTONIC 1
#define BPF_F_TIMER_CPU_PIN (1ULL << 1)

#define KSYM extern __attribute__((section(".ksyms")))
KSYM s32 scx_bpf_create_dsq(u64 dsq_id, s32 node);
KSYM s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle);
KSYM s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags);
KSYM bool scx_bpf_test_and_clear_cpu_idle(s32 cpu);
KSYM s32 scx_bpf_task_cpu(const struct task_struct *p);
KSYM bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask);
KSYM int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end);
KSYM int *bpf_iter_num_next(struct bpf_iter_num *it);
KSYM void bpf_iter_num_destroy(struct bpf_iter_num *it);
KSYM int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags);
KSYM struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it);
KSYM void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it);
KSYM void bpf_rcu_read_lock(void);
KSYM void bpf_rcu_read_unlock(void);
KSYM struct task_struct *bpf_task_from_pid(s32 pid);
KSYM void bpf_task_release(struct task_struct *p);
KSYM const struct cpumask *scx_bpf_get_online_cpumask(void);
KSYM void scx_bpf_put_cpumask(const struct cpumask *mask);

/*
 * Some kernels lack one or the other of these. libbpf drops the last suffix, ours, and the verifier skips a call of what
 * is not there. Linux 6.12 has the names with `dispatch` and `consume`, 6.13 those with `insert` and `move`, 6.14 the
 * clock, 7.1 flags of a move.
 */
#define KSYM_MAYBE extern __attribute__((section(".ksyms"), weak))
KSYM_MAYBE void scx_bpf_dispatch___6_12(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags);
KSYM_MAYBE void scx_bpf_dsq_insert___6_13(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags);
KSYM_MAYBE bool scx_bpf_consume___6_12(u64 dsq_id);
KSYM_MAYBE bool scx_bpf_dsq_move_to_local___6_13(u64 dsq_id);
KSYM_MAYBE bool scx_bpf_dsq_move_to_local___v2___7_1(u64 dsq_id, u64 enq_flags);
KSYM_MAYBE void scx_bpf_dispatch_from_dsq_set_slice___6_12(struct bpf_iter_scx_dsq *it__iter, u64 slice);
KSYM_MAYBE void scx_bpf_dsq_move_set_slice___6_13(struct bpf_iter_scx_dsq *it__iter, u64 slice);
KSYM_MAYBE bool scx_bpf_dispatch_from_dsq___6_12(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
                                                 u64 enq_flags);
KSYM_MAYBE bool scx_bpf_dsq_move___6_13(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
                                        u64 enq_flags);
KSYM_MAYBE u64 scx_bpf_now___6_14(void);
KSYM_MAYBE void scx_bpf_kick_cpu___6_12(s32 cpu, u64 flags);

#include <bpf/bpf_helpers.h>

static __always_inline void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags)
{
    if (bpf_ksym_exists(scx_bpf_dsq_insert___6_13))
        scx_bpf_dsq_insert___6_13(p, dsq_id, slice, enq_flags);
    else
        scx_bpf_dispatch___6_12(p, dsq_id, slice, enq_flags);
}

/* Before Linux 7.1 without the flags. */
static __always_inline bool scx_bpf_dsq_move_to_local(u64 dsq_id, u64 enq_flags)
{
    if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___7_1))
        return scx_bpf_dsq_move_to_local___v2___7_1(dsq_id, enq_flags);
    if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___6_13))
        return scx_bpf_dsq_move_to_local___6_13(dsq_id);
    return scx_bpf_consume___6_12(dsq_id);
}

static __always_inline void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice)
{
    if (bpf_ksym_exists(scx_bpf_dsq_move_set_slice___6_13))
        scx_bpf_dsq_move_set_slice___6_13(it, slice);
    else
        scx_bpf_dispatch_from_dsq_set_slice___6_12(it, slice);
}

static __always_inline bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
                                             u64 enq_flags)
{
    if (bpf_ksym_exists(scx_bpf_dsq_move___6_13))
        return scx_bpf_dsq_move___6_13(it, p, dsq_id, enq_flags);
    return scx_bpf_dispatch_from_dsq___6_12(it, p, dsq_id, enq_flags);
}

/* Debian's 7.2 lacks the function, and needs it nowhere. */
static __always_inline void scx_bpf_kick_cpu(s32 cpu, u64 flags)
{
    if (bpf_ksym_exists(scx_bpf_kick_cpu___6_12))
        scx_bpf_kick_cpu___6_12(cpu, flags);
}

/* The older clock differs from that of a callback by less than the callback takes. */
static __always_inline u64 scx_bpf_now(void)
{
    return bpf_ksym_exists(scx_bpf_now___6_14) ? scx_bpf_now___6_14() : bpf_ktime_get_ns();
}
