/* Each misuse that mqfq.h names and its code; a loop, threads, a sleeper and time-outs. Run under sanitizers by main.rs. */
#include <mqfq.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int line, long long found, long long expected) {
    if (found != expected) {
        fprintf(stderr, "misuse.c:%d: %lld (%s), expected %lld\n", line, found, mqfq_strerror((int)found), expected);
        exit(1);
    }
}
#define EXPECT(call, code) expect(__LINE__, (call), (code))

static mqfq_scheduler *scheduler(mqfq_options options) {
    mqfq_scheduler *made = NULL;
    EXPECT(mqfq_scheduler_new(&options, &made), MQFQ_OK);
    return made;
}

static mqfq_tenant tenant(mqfq_scheduler *of, uint32_t weight) {
    mqfq_tenant added;
    EXPECT(mqfq_tenant_add(of, weight, &added), MQFQ_OK);
    return added;
}

static mqfq_counters counters(mqfq_scheduler *of, mqfq_tenant tenant) {
    mqfq_counters found;
    EXPECT(mqfq_tenant_counters(of, tenant, &found), MQFQ_OK);
    return found;
}

static void nulls(void) {
    mqfq_scheduler *s = scheduler((mqfq_options){0});
    mqfq_tenant t = tenant(s, 1);
    mqfq_permit permit;
    mqfq_job name = {{0, 0, 0}};
    mqfq_worker *w;
    uint64_t at;
    void *job;
    EXPECT(mqfq_scheduler_new(NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_scheduler_free(NULL), MQFQ_NULL);
    EXPECT(mqfq_set_permits(NULL, 1), MQFQ_NULL);
    EXPECT(mqfq_free_permits(NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_free_permits(s, NULL), MQFQ_NULL);
    EXPECT(mqfq_permits(NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_permits(s, NULL), MQFQ_NULL);
    EXPECT(mqfq_tenant_add(NULL, 1, &t), MQFQ_NULL);
    EXPECT(mqfq_tenant_add(s, 1, NULL), MQFQ_NULL);
    EXPECT(mqfq_tenant_set_weight(NULL, t, 1), MQFQ_NULL);
    EXPECT(mqfq_tenant_remove(NULL, t), MQFQ_NULL);
    EXPECT(mqfq_tenant_counters(NULL, t, NULL), MQFQ_NULL);
    EXPECT(mqfq_tenant_counters(s, t, NULL), MQFQ_NULL);
    EXPECT(mqfq_acquire(NULL, t, 1, 0, &permit), MQFQ_NULL);
    EXPECT(mqfq_acquire(s, t, 1, 0, NULL), MQFQ_NULL);
    EXPECT(mqfq_finish(NULL, permit = (mqfq_permit){0, 0}, 1), MQFQ_NULL);
    EXPECT(mqfq_worker_new(NULL, 0, &w), MQFQ_NULL);
    EXPECT(mqfq_worker_new(s, 0, NULL), MQFQ_NULL);
    EXPECT(mqfq_worker_free(NULL), MQFQ_NULL);
    EXPECT(mqfq_push(NULL, t, 1, NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_next(NULL, 0, &permit, &job), MQFQ_NULL);
    EXPECT(mqfq_worker_finish(NULL, permit, 1), MQFQ_NULL);
    EXPECT(mqfq_withdraw(NULL, name, &job), MQFQ_NULL);
    EXPECT(mqfq_drain(NULL, NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_on_wake(NULL, NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_may_sleep(NULL), MQFQ_NULL);
    EXPECT(mqfq_woke(NULL), MQFQ_NULL);
    EXPECT(mqfq_look_again_ns(NULL, &at), MQFQ_NULL);
    EXPECT(mqfq_worker_new(s, 0, &w), MQFQ_OK);
    EXPECT(mqfq_next(w, 0, NULL, &job), MQFQ_NULL);
    EXPECT(mqfq_next(w, 0, &permit, NULL), MQFQ_NULL);
    EXPECT(mqfq_withdraw(w, name, NULL), MQFQ_NULL);
    EXPECT(mqfq_drain(w, NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_on_wake(w, NULL, NULL), MQFQ_NULL);
    EXPECT(mqfq_look_again_ns(w, NULL), MQFQ_NULL);
    EXPECT(mqfq_worker_free(w), MQFQ_OK);
    EXPECT(mqfq_scheduler_free(s), MQFQ_OK);
}

static void ranges(void) {
    mqfq_options wrong[] = {{.places = 1025}, {.permits = 65536}, {.tenants = (1 << 20) + 1}, {.jobs = (1 << 24) + 1},
                            {.find_permits = 65536}, {.permits = 2, .find_permits = 1}, {.typical_cost = (1ull << 40) + 1}, {.reserved = {0, 0, 0, 1}}};
    mqfq_scheduler *none = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT(mqfq_scheduler_new(&wrong[i], &none), MQFQ_RANGE);
    EXPECT(none == NULL, 1);
    uint32_t found = 0;
    mqfq_scheduler *finds = scheduler((mqfq_options){.find_permits = 2});
    EXPECT(mqfq_set_permits(finds, 2), MQFQ_RANGE);
    EXPECT(mqfq_permits(finds, &found), MQFQ_OK);
    EXPECT(found, 2);
    EXPECT(mqfq_scheduler_free(finds), MQFQ_OK);
    mqfq_scheduler *s = scheduler((mqfq_options){.tenants = 1});
    mqfq_tenant t;
    mqfq_permit permit;
    mqfq_worker *w;
    EXPECT(mqfq_tenant_add(s, 0, &t), MQFQ_RANGE);
    EXPECT(mqfq_tenant_add(s, 10001, &t), MQFQ_RANGE);
    t = tenant(s, 10000);
    EXPECT(mqfq_tenant_add(s, 1, &(mqfq_tenant){0, 0}), MQFQ_TENANTS_FULL);
    EXPECT(mqfq_tenant_set_weight(s, t, 0), MQFQ_RANGE);
    EXPECT(mqfq_acquire(s, t, 0, 0, &permit), MQFQ_RANGE);
    EXPECT(mqfq_acquire(s, t, (1ull << 40) + 1, 0, &permit), MQFQ_RANGE);
    EXPECT(mqfq_set_permits(s, 0), MQFQ_RANGE);
    EXPECT(mqfq_worker_new(s, 1, &w), MQFQ_RANGE);
    EXPECT(mqfq_worker_new(s, UINT32_MAX, &w), MQFQ_RANGE);
    EXPECT(mqfq_acquire(s, t, 1ull << 40, 0, &permit), MQFQ_OK);
    EXPECT(mqfq_finish(s, permit, UINT64_MAX), MQFQ_OK);
    EXPECT(counters(s, t).served_cost == 1ull << 40, 1);
    EXPECT(mqfq_scheduler_free(s), MQFQ_OK);
}

static void twice_and_elsewhere(void) {
    mqfq_scheduler *s = scheduler((mqfq_options){.places = 2, .jobs = 2, .tenant_jobs = 1});
    mqfq_scheduler *other = scheduler((mqfq_options){.places = 2});
    mqfq_tenant t = tenant(s, 1), gone = tenant(s, 1);
    EXPECT(mqfq_tenant_remove(other, gone), MQFQ_OTHER);
    EXPECT(mqfq_tenant_remove(s, gone), MQFQ_OK);
    EXPECT(mqfq_tenant_remove(s, gone), MQFQ_GONE);
    mqfq_tenant next = tenant(s, 1);
    mqfq_permit permit;
    EXPECT(mqfq_acquire(s, gone, 1, 0, &permit), MQFQ_GONE);
    EXPECT(mqfq_tenant_set_weight(s, gone, 1), MQFQ_GONE);
    EXPECT(mqfq_tenant_counters(s, gone, &(mqfq_counters){0}), MQFQ_GONE);
    EXPECT(mqfq_tenant_set_weight(other, t, 1), MQFQ_OTHER);
    EXPECT(mqfq_acquire(other, t, 1, 0, &permit), MQFQ_OTHER);
    EXPECT(mqfq_acquire(s, (mqfq_tenant){t.scheduler, UINT64_MAX}, 1, 0, &permit), MQFQ_GONE);
    EXPECT(mqfq_acquire(s, t, 1, 0, &permit), MQFQ_OK);
    EXPECT(mqfq_scheduler_free(s), MQFQ_BUSY);
    EXPECT(mqfq_finish(other, permit, 1), MQFQ_OTHER);
    EXPECT(mqfq_finish(s, (mqfq_permit){permit.scheduler, UINT64_MAX}, 1), MQFQ_GONE);
    EXPECT(mqfq_finish(s, permit, 1), MQFQ_OK);
    EXPECT(mqfq_finish(s, permit, 1), MQFQ_GONE);
    EXPECT(counters(s, t).served, 1);

    mqfq_worker *w, *second;
    EXPECT(mqfq_worker_new(s, 1, &w), MQFQ_OK);
    EXPECT(mqfq_worker_new(s, 1, &second), MQFQ_PLACE_TAKEN);
    EXPECT(mqfq_scheduler_free(s), MQFQ_BUSY);
    int jobs[2];
    void *job;
    mqfq_job name, started;
    EXPECT(mqfq_push(w, gone, 1, NULL, NULL), MQFQ_GONE);
    EXPECT(mqfq_push(w, tenant(other, 1), 1, NULL, NULL), MQFQ_OTHER);
    EXPECT(mqfq_push(w, t, 0, NULL, NULL), MQFQ_RANGE);
    EXPECT(mqfq_push(w, t, 5, &jobs[1], &name), MQFQ_OK);
    EXPECT(mqfq_push(w, t, 5, &jobs[1], NULL), MQFQ_TENANT_FULL);
    EXPECT(mqfq_push(w, next, 5, &jobs[0], &started), MQFQ_OK); /* it had nothing yet: the first */
    EXPECT(mqfq_push(w, tenant(s, 1), 5, NULL, NULL), MQFQ_PLACE_FULL);
    EXPECT(mqfq_next(w, 0, &permit, &job), MQFQ_OK);
    EXPECT(job == &jobs[0], 1);
    EXPECT(mqfq_withdraw(w, started, &job), MQFQ_GONE);
    EXPECT(mqfq_withdraw(w, (mqfq_job){{~0ull, ~0ull, ~0ull}}, &job), MQFQ_GONE);
    EXPECT(mqfq_withdraw(w, name, &job), MQFQ_OK);
    EXPECT(job == &jobs[1], 1);
    EXPECT(mqfq_withdraw(w, name, &job), MQFQ_GONE);
    EXPECT(mqfq_worker_finish(w, permit, 5), MQFQ_OK);
    EXPECT(mqfq_worker_finish(w, permit, 5), MQFQ_GONE);
    EXPECT(mqfq_next(w, 0, &permit, &job), MQFQ_IDLE);
    EXPECT(mqfq_worker_free(w), MQFQ_OK);
    EXPECT(mqfq_worker_new(s, 1, &w), MQFQ_OK);
    EXPECT(mqfq_worker_new(s, 0, &second), MQFQ_PLACE_TAKEN); /* calls have waited there */
    EXPECT(mqfq_worker_free(w), MQFQ_OK);
    mqfq_worker *both[2];
    for (uint32_t i = 0; i < 2; i++)
        EXPECT(mqfq_worker_new(other, i, &both[i]), MQFQ_OK);
    EXPECT(mqfq_acquire(other, tenant(other, 1), 1, 0, &permit), MQFQ_PLACE_TAKEN);
    for (int i = 0; i < 2; i++)
        EXPECT(mqfq_worker_free(both[i]), MQFQ_OK);
    int64_t permits;
    EXPECT(mqfq_free_permits(s, &permits), MQFQ_OK);
    EXPECT(permits, 8);
    EXPECT(mqfq_scheduler_free(s), MQFQ_OK);
    EXPECT(mqfq_scheduler_free(other), MQFQ_OK);
}

static void forget(void *job, void *context) {
    (void)job, (void)context;
}

static void take_again(void *job, void *worker) {
    mqfq_permit permit;
    void *next;
    ++*(int *)job;
    EXPECT(mqfq_next(worker, 0, &permit, &next), MQFQ_IDLE);
}

/* 30,000 jobs whose costs are known at the end; 1:3 by cost. Waits are told apart, and a drain hands over what waits. */
static void loop(void) {
    mqfq_scheduler *s = scheduler((mqfq_options){.permits = 2});
    mqfq_tenant of[2] = {tenant(s, 1), tenant(s, 3)};
    uint64_t cost[2] = {1024, 128};
    mqfq_worker *w;
    mqfq_permit permit;
    void *job;
    EXPECT(mqfq_worker_new(s, 0, &w), MQFQ_OK);
    for (int n = 0; n < 30000; n++) {
        for (int i = 0; i < 2; i++)
            while (counters(s, of[i]).waiting < 8)
                EXPECT(mqfq_push(w, of[i], 256, &cost[i], NULL), MQFQ_OK);
        EXPECT(mqfq_next(w, n, &permit, &job), MQFQ_OK);
        EXPECT(mqfq_worker_finish(w, permit, *(uint64_t *)job), MQFQ_OK);
    }
    double ratio = (double)counters(s, of[1]).served_cost / (double)counters(s, of[0]).served_cost;
    printf("loop: a ratio of %.3f\n", ratio);
    EXPECT(ratio > 2.95 && ratio < 3.05, 1);
    mqfq_permit held[2];
    for (int i = 0; i < 2; i++)
        EXPECT(mqfq_next(w, 0, &held[i], &job), MQFQ_OK);
    EXPECT(mqfq_next(w, 0, &permit, &job), MQFQ_WAIT_PERMITS);
    int counts[3] = {0, 0, 0};
    EXPECT(mqfq_drain(w, forget, NULL), MQFQ_OK);
    for (int i = 0; i < 3; i++)
        EXPECT(mqfq_push(w, of[0], 1, &counts[i], NULL), MQFQ_OK);
    EXPECT(mqfq_drain(w, take_again, w), MQFQ_OK);
    EXPECT(counts[0] + counts[1] + counts[2], 3);
    EXPECT(mqfq_worker_free(w), MQFQ_OK);
    for (int i = 0; i < 2; i++)
        EXPECT(mqfq_finish(s, held[i], 1), MQFQ_OK); /* their worker is gone */
    EXPECT(mqfq_scheduler_free(s), MQFQ_OK);
}

enum { THREADS = 8, ROUNDS = 2000 };
struct shared {
    mqfq_scheduler *of;
    mqfq_tenant tenants[2];
    atomic_int inside, most, timeouts;
};
struct client {
    struct shared *with;
    int number, served;
};

static void *client(void *of) {
    struct client *self = of;
    struct shared *with = self->with;
    for (int n = 0; n < ROUNDS; n++) {
        mqfq_permit permit;
        /* One of four calls gives up soon. */
        int code = mqfq_acquire(with->of, with->tenants[self->number % 2], 10, n % 4 ? UINT64_MAX : 1000, &permit);
        if (code == MQFQ_TIMEOUT) {
            atomic_fetch_add(&with->timeouts, 1);
            continue;
        }
        EXPECT(code, MQFQ_OK);
        int inside = atomic_fetch_add(&with->inside, 1) + 1;
        int most = atomic_load(&with->most);
        while (inside > most && !atomic_compare_exchange_weak(&with->most, &most, inside))
            ;
        self->served++;
        atomic_fetch_sub(&with->inside, 1);
        EXPECT(mqfq_finish(with->of, permit, 10), MQFQ_OK);
    }
    return NULL;
}

/* Never more than the permits inside; all that was served is counted; a call that timed out leaves nothing behind. */
static void threads(mqfq_options options) {
    struct shared with = {.of = scheduler(options)};
    pthread_t thread[THREADS];
    struct client clients[THREADS];
    for (int i = 0; i < 2; i++)
        with.tenants[i] = tenant(with.of, 1 + 2 * i);
    for (int i = 0; i < THREADS; i++) {
        clients[i] = (struct client){&with, i, 0};
        EXPECT(pthread_create(&thread[i], NULL, client, &clients[i]), 0);
    }
    uint64_t served = 0;
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(thread[i], NULL), 0);
        served += clients[i].served;
    }
    EXPECT(atomic_load(&with.most) <= 3, 1);
    EXPECT(served + atomic_load(&with.timeouts), THREADS * ROUNDS);
    mqfq_counters found[2] = {counters(with.of, with.tenants[0]), counters(with.of, with.tenants[1])};
    EXPECT(found[0].served_cost + found[1].served_cost, served * 10);
    EXPECT(found[0].waiting + found[1].waiting + found[0].under_way + found[1].under_way, 0);
    int64_t permits;
    EXPECT(mqfq_free_permits(with.of, &permits), MQFQ_OK);
    uint32_t in_force;
    EXPECT(mqfq_permits(with.of, &in_force), MQFQ_OK);
    EXPECT(permits, in_force);
    EXPECT(mqfq_scheduler_free(with.of), MQFQ_OK);
}

struct sleeper {
    pthread_mutex_t lock;
    pthread_cond_t rang;
    int rings;
    mqfq_scheduler *of;
    mqfq_permit permit;
};

static void ring(void *context) {
    struct sleeper *sleeper = context;
    pthread_mutex_lock(&sleeper->lock);
    sleeper->rings++;
    pthread_cond_signal(&sleeper->rang);
    pthread_mutex_unlock(&sleeper->lock);
}

static void *finisher(void *context) {
    struct sleeper *sleeper = context;
    EXPECT(mqfq_finish(sleeper->of, sleeper->permit, 1), MQFQ_OK);
    return NULL;
}

/* A worker sleeps until a permit comes back from another thread; two calls at once are refused. */
static void sleeps(void) {
    struct sleeper sleeper = {.of = scheduler((mqfq_options){.permits = 1})};
    EXPECT(pthread_mutex_init(&sleeper.lock, NULL) + pthread_cond_init(&sleeper.rang, NULL), 0);
    mqfq_tenant t = tenant(sleeper.of, 1);
    mqfq_worker *w;
    void *job;
    uint64_t at;
    pthread_t thread;
    EXPECT(mqfq_worker_new(sleeper.of, 0, &w), MQFQ_OK);
    EXPECT(mqfq_on_wake(w, ring, &sleeper), MQFQ_OK);
    for (int i = 0; i < 2; i++)
        EXPECT(mqfq_push(w, t, 1, NULL, NULL), MQFQ_OK);
    EXPECT(mqfq_next(w, 7, &sleeper.permit, &job), MQFQ_OK);
    mqfq_permit second;
    EXPECT(mqfq_next(w, 7, &second, &job), MQFQ_WAIT_PERMITS);
    EXPECT(mqfq_look_again_ns(w, &at), MQFQ_OK);
    EXPECT(at == UINT64_MAX, 1);
    int may = mqfq_may_sleep(w);
    if (may == 0) {
        EXPECT(mqfq_next(w, 7, &second, &job), MQFQ_WAIT_PERMITS);
        may = mqfq_may_sleep(w);
    }
    EXPECT(may, 1);
    EXPECT(pthread_create(&thread, NULL, finisher, &sleeper), 0);
    pthread_mutex_lock(&sleeper.lock);
    while (sleeper.rings == 0)
        pthread_cond_wait(&sleeper.rang, &sleeper.lock);
    pthread_mutex_unlock(&sleeper.lock);
    EXPECT(mqfq_woke(w), MQFQ_OK);
    EXPECT(mqfq_next(w, 8, &second, &job), MQFQ_OK);
    EXPECT(mqfq_worker_finish(w, second, 1), MQFQ_OK);
    EXPECT(pthread_join(thread, NULL), 0);
    EXPECT(mqfq_worker_free(w), MQFQ_OK);
    EXPECT(mqfq_scheduler_free(sleeper.of), MQFQ_OK);
}

struct pair {
    mqfq_worker *inside;
    int rings;
};

static void call_inside(void *context) {
    struct pair *pair = context;
    mqfq_permit permit;
    void *job;
    pair->rings++;
    EXPECT(mqfq_next(pair->inside, 0, &permit, &job), MQFQ_BUSY);
    EXPECT(mqfq_worker_free(pair->inside), MQFQ_BUSY);
}

/* The bell of one worker rings inside a call of another, which takes no second call then. */
static void second_call(void) {
    mqfq_scheduler *s = scheduler((mqfq_options){.places = 2, .permits = 1});
    mqfq_tenant t = tenant(s, 1);
    mqfq_worker *w[2];
    mqfq_permit permit;
    void *job;
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT(mqfq_worker_new(s, i, &w[i]), MQFQ_OK);
        EXPECT(mqfq_push(w[i], t, 1, NULL, NULL), MQFQ_OK);
    }
    struct pair pair = {w[0], 0};
    EXPECT(mqfq_on_wake(w[1], call_inside, &pair), MQFQ_OK);
    EXPECT(mqfq_next(w[0], 0, &permit, &job), MQFQ_OK);
    do
        EXPECT(mqfq_next(w[1], 0, &(mqfq_permit){0, 0}, &job), MQFQ_WAIT_PERMITS);
    while (mqfq_may_sleep(w[1]) == 0);
    EXPECT(mqfq_worker_finish(w[0], permit, 1), MQFQ_OK);
    EXPECT(pair.rings, 1);
    for (int i = 0; i < 2; i++)
        EXPECT(mqfq_worker_free(w[i]), MQFQ_OK);
    EXPECT(mqfq_scheduler_free(s), MQFQ_OK);
}

int main(void) {
    EXPECT(strcmp(mqfq_strerror(MQFQ_OK), "no error"), 0);
    EXPECT(strcmp(mqfq_strerror(-1000), "no code of libmqfq"), 0);
    nulls();
    ranges();
    twice_and_elsewhere();
    loop();
    second_call();
    threads((mqfq_options){.places = 2, .permits = 3});
    threads((mqfq_options){.places = 2, .permits = 1, .find_permits = 3});
    sleeps();
    puts("all as mqfq.h says");
    return 0;
}
