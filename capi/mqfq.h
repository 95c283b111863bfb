/*
 * libmqfq: shares by weight in any program. Multi-queue fair queueing: over many cores, work-conserving, with a proven
 * bound. Link with -lmqfq; `pkg-config --cflags --libs mqfq`. mqfq(3) is an introduction.
 *
 * A scheduler shares permits among tenants. A job of a tenant waits until it gets a permit, which goes back with what
 * the job really cost. Costs are in any unit (bytes, nanoseconds, tokens), 1 to 2^40.
 *
 * RESULTS. Functions return 0 (MQFQ_OK) or more, or a code below 0; then nothing has changed, nothing was written.
 *
 * THREADS. Any thread may call any function, but a worker takes one call at a time: a second one gets MQFQ_BUSY.
 *
 * MISUSE. A NULL, a number out of range, a tenant, permit or job that is used twice or with another scheduler: each
 * has its code. No exception or panic leaves a function: a fault of the library is MQFQ_INTERNAL. UNDEFINED is
 *   - a scheduler or worker pointer that did not come from its constructor, or that is used after it was freed,
 *     also by a call that another thread is still inside;
 *   - a pointer to memory that is too small, not aligned or not writable;
 *   - a bell or a function for mqfq_drain that throws or leaves by longjmp;
 *   - a fork while another thread is inside a call, if the child goes on to use the library.
 */
#ifndef MQFQ_H
#define MQFQ_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MQFQ_OK 0
/* mqfq_next: no job waits here. */
#define MQFQ_IDLE 1
/* mqfq_next: the first job's tenant is ahead of others by more than the window. */
#define MQFQ_WAIT_WINDOW 2
/* mqfq_next: all permits are out. */
#define MQFQ_WAIT_PERMITS 3

#define MQFQ_NULL (-1)         /* a pointer is NULL */
#define MQFQ_RANGE (-2)        /* a number is out of range */
#define MQFQ_TENANT_FULL (-3)  /* the tenant has as many jobs waiting as it may */
#define MQFQ_PLACE_FULL (-4)   /* as many jobs wait at this place as it holds */
#define MQFQ_GONE (-5)         /* the tenant was removed, the permit has ended, or the job has started */
#define MQFQ_OTHER (-6)        /* the handle is of another scheduler */
#define MQFQ_TENANTS_FULL (-7) /* there are as many tenants as there may be */
#define MQFQ_PLACE_TAKEN (-8)  /* the place has an owner, or all have workers and a call wants to wait */
#define MQFQ_BUSY (-9)         /* it is in use */
#define MQFQ_TIMEOUT (-10)     /* the time is over */
#define MQFQ_INTERNAL (-11)    /* a fault of the library, which has told stderr about it */

typedef struct mqfq_scheduler mqfq_scheduler;
typedef struct mqfq_worker mqfq_worker;

/* Handles without memory behind them: copy them as you like, they need no freeing. */
typedef struct mqfq_tenant { uint64_t scheduler, number; } mqfq_tenant;
typedef struct mqfq_permit { uint64_t scheduler, number; } mqfq_permit;
typedef struct mqfq_job { uint64_t word[3]; } mqfq_job;

/* A field that is 0 has its default; `reserved` is 0. */
typedef struct mqfq_options {
    uint32_t places;        /* each for a worker or for calls that wait, 1 to 1024; 1. As many as there are cores */
    uint32_t permits;       /* jobs under way at once, 1 to 65535; 4 per place */
    uint32_t tenants;       /* at once, 1 to 2^20; 256 */
    uint32_t jobs;          /* waiting at a place, 1 to 2^24; 4096 */
    uint32_t tenant_jobs;   /* of one tenant waiting at a place, 1 or more; 1024 */
    uint32_t find_permits;  /* permits are found while jobs run, up to this, 1 to 65535, from `permits` on; they stay */
    uint64_t typical_cost;  /* of a job, 1 to 2^40; found */
    uint64_t away_after_ns; /* silence after which a worker is passed; 1 ms */
    uint64_t reserved[4];
} mqfq_options;

/* How a tenant fares. */
typedef struct mqfq_counters {
    uint64_t served;          /* jobs that have ended */
    uint64_t served_cost;     /* what they cost */
    uint64_t waiting;         /* jobs that wait */
    uint64_t under_way;       /* jobs under way */
    uint64_t held_by_window;  /* times that its job was the first of a place, and too far ahead of others */
    uint64_t held_by_permits; /* times that its job was the first of a place, and all permits were out */
} mqfq_counters;

/* What a code says, in English; never NULL, and constant. */
const char *mqfq_strerror(int code);

/* A scheduler; `options` NULL: all defaults. MQFQ_NULL, MQFQ_RANGE. */
int mqfq_scheduler_new(const mqfq_options *options, mqfq_scheduler **scheduler);

/* Frees it. MQFQ_BUSY: there is a worker, a permit is out, or a call waits, and it is not freed. MQFQ_NULL. */
int mqfq_scheduler_free(mqfq_scheduler *scheduler);

/* Changes the permits, 1 to 65535, from the next job on. MQFQ_NULL; MQFQ_RANGE, also where they are found. */
int mqfq_set_permits(mqfq_scheduler *scheduler, uint32_t permits);

/* Permits in force. MQFQ_NULL. */
int mqfq_permits(mqfq_scheduler *scheduler, uint32_t *permits);

/* Permits that are not out; exact only while no other call is under way. MQFQ_NULL. */
int mqfq_free_permits(mqfq_scheduler *scheduler, int64_t *permits);

/* A tenant of a weight of 1 to 10,000: only the ratio of weights counts. MQFQ_NULL, MQFQ_RANGE, MQFQ_TENANTS_FULL. */
int mqfq_tenant_add(mqfq_scheduler *scheduler, uint32_t weight, mqfq_tenant *tenant);

/* Another weight. MQFQ_NULL, MQFQ_RANGE, MQFQ_GONE, MQFQ_OTHER. */
int mqfq_tenant_set_weight(mqfq_scheduler *scheduler, mqfq_tenant tenant, uint32_t weight);

/* Removes it: its jobs that wait or are under way end as others do. MQFQ_NULL, MQFQ_GONE, MQFQ_OTHER. */
int mqfq_tenant_remove(mqfq_scheduler *scheduler, mqfq_tenant tenant);

/* How it fares, over all places. MQFQ_NULL, MQFQ_GONE, MQFQ_OTHER. */
int mqfq_tenant_counters(mqfq_scheduler *scheduler, mqfq_tenant tenant, mqfq_counters *counters);

/*
 * FOR THREADS. Waits for a permit for a job that is thought to cost `cost`; at most `timeout_ns`, 0: not at all,
 * UINT64_MAX: without end. A call whose time is over costs its tenant nothing. It needs a place without a worker.
 * MQFQ_NULL, MQFQ_RANGE, MQFQ_TENANT_FULL, MQFQ_PLACE_FULL, MQFQ_GONE, MQFQ_OTHER, MQFQ_PLACE_TAKEN, MQFQ_TIMEOUT.
 */
int mqfq_acquire(mqfq_scheduler *scheduler, mqfq_tenant tenant, uint64_t cost, uint64_t timeout_ns,
                 mqfq_permit *permit);

/* Ends a job, of a worker too: it has cost `actual`, at most 2^40. MQFQ_NULL, MQFQ_GONE, MQFQ_OTHER. */
int mqfq_finish(mqfq_scheduler *scheduler, mqfq_permit permit, uint64_t actual);

/*
 * A LOOP PER CORE. The worker of a place, from 0, where no mqfq_acquire has waited: it takes the first place that is
 * free and keeps it. MQFQ_NULL, MQFQ_RANGE, MQFQ_PLACE_TAKEN.
 */
int mqfq_worker_new(mqfq_scheduler *scheduler, uint32_t place, mqfq_worker **worker);

/* Frees it: jobs that wait are forgotten and cost nothing, permits stay. MQFQ_NULL, MQFQ_BUSY. */
int mqfq_worker_free(mqfq_worker *worker);

/*
 * Lets a job wait; `job` is the caller's and comes back from mqfq_next. `name`, which may be NULL, is for
 * mqfq_withdraw. MQFQ_NULL, MQFQ_RANGE, MQFQ_TENANT_FULL, MQFQ_PLACE_FULL, MQFQ_GONE, MQFQ_OTHER, MQFQ_BUSY.
 */
int mqfq_push(mqfq_worker *worker, mqfq_tenant tenant, uint64_t cost, void *job, mqfq_job *name);

/*
 * The next job to start (MQFQ_OK), or why there is none (MQFQ_IDLE, MQFQ_WAIT_WINDOW, MQFQ_WAIT_PERMITS). Call it until
 * it is not MQFQ_OK before sleeping. `now_ns`: a monotonic clock, the same for all workers. MQFQ_NULL, MQFQ_BUSY.
 */
int mqfq_next(mqfq_worker *worker, uint64_t now_ns, mqfq_permit *permit, void **job);

/* As mqfq_finish, and faster for a job that this worker has started. Then call mqfq_next. As that, and MQFQ_BUSY. */
int mqfq_worker_finish(mqfq_worker *worker, mqfq_permit permit, uint64_t actual);

/* Takes a job back that waits here: its tenant pays nothing. Then call mqfq_next. MQFQ_NULL, MQFQ_GONE, MQFQ_BUSY. */
int mqfq_withdraw(mqfq_worker *worker, mqfq_job name, void **job);

/* Takes all jobs back that wait here, and hands each to `each`. MQFQ_NULL, MQFQ_BUSY. */
int mqfq_drain(mqfq_worker *worker, void (*each)(void *job, void *context), void *context);

/*
 * Calls `bell` when a wake comes for this worker while it sleeps, from any thread. A ring that has begun may end after
 * mqfq_worker_free: keep `context` until the scheduler is freed. MQFQ_NULL, MQFQ_BUSY.
 */
int mqfq_on_wake(mqfq_worker *worker, void (*bell)(void *context), void *context);

/* 1: the worker may sleep until its bell rings, and calls mqfq_woke then. 0: call mqfq_next. MQFQ_NULL, MQFQ_BUSY. */
int mqfq_may_sleep(mqfq_worker *worker);

/* The worker does not sleep any more. MQFQ_NULL, MQFQ_BUSY. */
int mqfq_woke(mqfq_worker *worker);

/*
 * Time at which mqfq_next may find another worker away that is not away now: a worker that sleeps wakes by then.
 * UINT64_MAX: no other one is awake. MQFQ_NULL, MQFQ_BUSY.
 */
int mqfq_look_again_ns(mqfq_worker *worker, uint64_t *at_ns);

#ifdef __cplusplus
}
#endif
#endif
