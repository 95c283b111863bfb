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
 *   gaps      as hog; the second count is the longest block, us: a thread that waits in its block takes long for it
 *   sleeper   sleeps for 2 to 3 ms, then computes STEPS
 *   barriers  calls membarrier for all CPUs, without end
 *   workers   each 2 ms one thread wakes all others, each of which computes STEPS
 *
 * Steps done and rounds are counted in the file $COUNT, words that others may map (watch.c); sleepers, barriers and
 * workers leave the median and the 99th percentile of their delays in two more, us. A step is one turn of a loop that the
 * compiler cannot shorten, so work is counted in instructions, whatever the clock says. With $PIN all threads stay on
 * that CPU, with PIN=each the Nth on CPU N.
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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long steps;
static int threads;
static const char *kind;
/* Without a file. */
static atomic_long own[4];
/* Steps, rounds or the longest block, and delays. */
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

static long now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

#define DELAY_MAX 200000

/* A delay, among those of all threads. */
static void delayed(long us)
{
    static atomic_int times[DELAY_MAX + 1];
    long round = atomic_fetch_add(&counts[1], 1) + 1, sum = 0;
    int is_half = 0;

    atomic_fetch_add(&times[us < 0 ? 0 : us > DELAY_MAX ? DELAY_MAX : us], 1);
    if (round & 63)
        return;
    for (int at = 0; at <= DELAY_MAX; at++) {
        sum += times[at];
        if (!is_half && sum * 2 >= round) {
            atomic_store(&counts[2], at);
            is_half = 1;
        }
        if (sum * 100 >= round * 99) {
            atomic_store(&counts[3], at);
            return;
        }
    }
}

/* When the workers were woken, us. */
static atomic_long woken;

static void *work(void *argument)
{
    long self = (long)argument, last = 0;
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(self % sysconf(_SC_NPROCESSORS_ONLN), &one);
    if (getenv("PIN") && !strcmp(getenv("PIN"), "each"))
        sched_setaffinity(0, sizeof(one), &one);

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
        } else if (!strcmp(kind, "gaps")) {
            long now, most = atomic_load(&counts[1]);

            compute(steps);
            now = now_us();
            while (last && now - last > most && !atomic_compare_exchange_weak(&counts[1], &most, now - last))
                ;
            last = now;
        } else if (!strcmp(kind, "sleeper")) {
            long until = now_us() + 2000 + random() % 1000;
            struct timespec end = { until / 1000000, until % 1000000 * 1000 };

            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
            delayed(now_us() - until);
            compute(steps);
        } else if (!strcmp(kind, "workers") && !self) {
            usleep(2000);
            atomic_store(&woken, now_us());
            for (int at = 1; at < threads; at++)
                sem_post(&stages[at]);
        } else if (!strcmp(kind, "workers")) {
            sem_wait(&stages[self]);
            delayed(now_us() - atomic_load(&woken));
            compute(steps);
        } else if (!strcmp(kind, "barriers")) {
            last = now_us();
            /* MEMBARRIER_CMD_GLOBAL */
            if (syscall(SYS_membarrier, 1, 0, 0))
                exit(1);
            delayed(now_us() - last);
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
        sem_init(&stages[at], 0, at % 3 != 2 && strcmp(kind, "workers"));
    if (!strcmp(kind, "pinned") || (getenv("PIN") && strcmp(getenv("PIN"), "each"))) {
        cpu_set_t one;

        CPU_ZERO(&one);
        CPU_SET(getenv("PIN") ? atoi(getenv("PIN")) : 1, &one);
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
