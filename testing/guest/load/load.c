/*
 * Which work do programs of the CPU cases do? Threads that compute in blocks of counted steps, and wait for each other.
 *
 *   load KIND THREADS STEPS
 *
 *   hog       blocks of STEPS without end
 *   barrier   all compute STEPS, then wait for all
 *   mutex     STEPS outside, STEPS/3 inside one lock
 *   pipeline  a ring of stages: each computes STEPS and wakes the next
 *   pinned    as hog; all threads on CPU 1
 *   herd      as hog, after a byte on stdin
 *   forks     children that compute STEPS and end, one after the other in each thread
 *
 * Steps done and rounds are counted in the file $COUNT, two words that others may map (watch.c). A step is one turn of
 * a loop that the compiler cannot shorten, so work is counted in instructions, whatever the clock says.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static long steps;
static int threads;
static const char *kind;
/* Without a file. */
static atomic_long own[2];
/* Steps, rounds. */
static atomic_long *counts = own;
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t *stages;

static void compute(long count)
{
    for (long step = 0; step < count; step++)
        __asm__ volatile("" ::: "memory");
    atomic_fetch_add_explicit(&counts[0], count, memory_order_relaxed);
}

static void *work(void *argument)
{
    long self = (long)argument;

    for (;;) {
        if (!strcmp(kind, "barrier")) {
            compute(steps);
            if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
                atomic_fetch_add(&counts[1], 1);
        } else if (!strcmp(kind, "mutex")) {
            compute(steps);
            pthread_mutex_lock(&lock);
            compute(steps / 3);
            pthread_mutex_unlock(&lock);
            atomic_fetch_add(&counts[1], 1);
        } else if (!strcmp(kind, "pipeline")) {
            sem_wait(&stages[self]);
            compute(steps);
            sem_post(&stages[(self + 1) % threads]);
            atomic_fetch_add(&counts[1], 1);
        } else if (!strcmp(kind, "forks")) {
            pid_t child = fork();

            if (!child) {
                for (long step = 0; step < steps; step++)
                    __asm__ volatile("" ::: "memory");
                _exit(0);
            }
            waitpid(child, NULL, 0);
            atomic_fetch_add(&counts[1], 1);
        } else {
            compute(steps);
        }
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count < 4)
        return fprintf(stderr, "load KIND THREADS STEPS\n"), 2;
    if (getenv("COUNT")) {
        int file = open(getenv("COUNT"), O_RDWR | O_CREAT | O_TRUNC, 0644);

        if (file < 0 || ftruncate(file, sizeof(own)))
            return perror(getenv("COUNT")), 1;
        counts = mmap(NULL, sizeof(own), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (counts == MAP_FAILED)
            return perror("mmap"), 1;
    }
    kind = words[1];
    threads = atoi(words[2]);
    steps = atol(words[3]);
    pthread_barrier_init(&barrier, NULL, threads);
    stages = calloc(threads, sizeof(*stages));
    for (int at = 0; at < threads; at++)
        /* Two of three stages have something to do at any time. */
        sem_init(&stages[at], 0, at % 3 != 2);
    if (!strcmp(kind, "pinned")) {
        cpu_set_t one;

        CPU_ZERO(&one);
        CPU_SET(1, &one);
        sched_setaffinity(0, sizeof(one), &one);
    }
    /* Not by getchar, which would take the bytes of others along. */
    if (!strcmp(kind, "herd") && read(0, &(char){ 0 }, 1) != 1)
        return 1;
    for (long at = 0; at < threads; at++) {
        pthread_t thread;

        if (pthread_create(&thread, NULL, work, (void *)at))
            return perror("pthread_create"), 1;
    }
    for (;;)
        pause();
}
