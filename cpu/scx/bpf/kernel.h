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

extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __attribute__((section(".ksyms")));
extern bool scx_bpf_dsq_move_to_local(u64 dsq_id) __attribute__((section(".ksyms")));
/* Linux 7.1 and later; libbpf drops the last suffix. */
extern bool scx_bpf_dsq_move_to_local___v2___here(u64 dsq_id, u64 enq_flags) __attribute__((section(".ksyms"), weak));
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags)
    __attribute__((section(".ksyms")));
extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle)
    __attribute__((section(".ksyms")));
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __attribute__((section(".ksyms")));
extern bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __attribute__((section(".ksyms")));
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __attribute__((section(".ksyms")));
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __attribute__((section(".ksyms")));
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __attribute__((section(".ksyms")));
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __attribute__((section(".ksyms")));
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __attribute__((section(".ksyms")));
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __attribute__((section(".ksyms")));
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __attribute__((section(".ksyms")));
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __attribute__((section(".ksyms")));
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it__iter, u64 slice) __attribute__((section(".ksyms")));
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 enq_flags)
    __attribute__((section(".ksyms")));
extern struct task_struct *bpf_task_from_pid(s32 pid) __attribute__((section(".ksyms")));
extern void bpf_task_release(struct task_struct *p) __attribute__((section(".ksyms")));
extern const struct cpumask *scx_bpf_get_online_cpumask(void) __attribute__((section(".ksyms")));
extern void scx_bpf_put_cpumask(const struct cpumask *mask) __attribute__((section(".ksyms")));
extern u64 scx_bpf_now(void) __attribute__((section(".ksyms")));
