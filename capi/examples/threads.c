/*
 * A thread per request waits for a permit, as in a server: two permits, weights 1:3.
 *
 *     cc threads.c $(pkg-config --cflags --libs mqfq) -lpthread -o threads && ./threads
 */
#include <mqfq.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define CLIENTS 32
#define JOBS 4000

static mqfq_scheduler *scheduler;
static mqfq_tenant tenants[2];
static atomic_int left = JOBS;

/* Ends the program with what a code says. */
static void check(int code) {
    if (code < 0) {
        fprintf(stderr, "%s\n", mqfq_strerror(code));
        exit(1);
    }
}

static void *client(void *tenant) {
    while (atomic_fetch_sub(&left, 1) > 0) {
        mqfq_permit permit;
        check(mqfq_acquire(scheduler, *(mqfq_tenant *)tenant, 1000, UINT64_MAX, &permit));
        sched_yield(); /* the work: here other threads get to the queue meanwhile */
        check(mqfq_finish(scheduler, permit, 1000));
    }
    return NULL;
}

int main(void) {
    mqfq_options options = {.permits = 2};
    check(mqfq_scheduler_new(&options, &scheduler));
    check(mqfq_tenant_add(scheduler, 1, &tenants[0]));
    check(mqfq_tenant_add(scheduler, 3, &tenants[1]));
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        if (pthread_create(&threads[i], NULL, client, &tenants[i % 2]) != 0)
            return 1;
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    mqfq_counters of[2];
    for (int i = 0; i < 2; i++)
        check(mqfq_tenant_counters(scheduler, tenants[i], &of[i]));
    printf("%d requests to %d, a ratio of %.2f\n", (int)of[0].served, (int)of[1].served,
           (double)of[1].served / (double)of[0].served);
    check(mqfq_scheduler_free(scheduler));
    return 0;
}
