/*
 * What did programs have in a window of time, all of it read at once?
 *
 *   watch MS CPUS CGROUP...
 *
 * A CGROUP is one below /cgroup whose program `load` counts in /tmp/count.CGROUP, with '/' written as '.'. Written are
 * shell variables, those with N for each program in their order:
 *
 *   cores_N rounds_N steps_N  CPU time, rounds and steps, each per time: cores, per second, per us
 *   speed_N                   steps per us of CPU time
 *   forced_N moves_N          switches that the thread did not ask for, and changes of CPU, per second
 *   switches wakes idle       of the machine per second: context switches, interrupts by which a CPU is told something
 *                             by another; idle CPUs
 *
 * It runs before every other thread (SCHED_FIFO), so between two of its readings nobody else is, and the window is as
 * long as the clock says. What takes long to read (forced, moves) is read outside the window.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PROGRAMS_MAX 80

struct program {
    const char *name;
    atomic_long *counts;
    long steps[2], rounds[2], used_us[2], forced[2], moves[2];
};

static struct program programs[PROGRAMS_MAX];
static int number;
static long at_ns[2], switches[2], wakes[2], idle[2];

static long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static char *text_of(const char *path)
{
    static char text[1 << 16];
    int file = open(path, O_RDONLY);
    size_t length = 0;
    ssize_t more;

    while (file >= 0 && length < sizeof(text) - 1 && (more = read(file, text + length, sizeof(text) - 1 - length)) > 0)
        length += more;
    text[length] = 0;
    if (file >= 0)
        close(file);
    return text;
}

/* The number after `word`; 0 without it. */
static long after(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    if (!at)
        return 0;
    at += strlen(word);
    at += strspn(at, " :\t");
    return atol(at);
}

static void look(int which)
{
    char path[300];

    at_ns[which] = now_ns();
    for (struct program *f = programs; f < programs + number; f++) {
        f->steps[which] = f->counts ? atomic_load(&f->counts[0]) : 0;
        f->rounds[which] = f->counts ? atomic_load(&f->counts[1]) : 0;
        snprintf(path, sizeof(path), "/cgroup/%s/cpu.stat", f->name);
        f->used_us[which] = after(text_of(path), "usage_usec");
    }
}

/* Threads of a program, and of the machine: what the kernel counts of them. */
static void count(int which, int cpus)
{
    /* Rescheduling, function calls (a wake-up that is handed over), IRQ work. */
    static const char *const kinds[] = { "RES:", "CAL:", "IWI:" };
    char path[600], *at;

    for (struct program *f = programs; f < programs + number; f++) {
        char *threads, *rest;

        snprintf(path, sizeof(path), "/cgroup/%s/cgroup.threads", f->name);
        threads = strdup(text_of(path));
        rest = threads;
        f->forced[which] = f->moves[which] = 0;
        while ((at = strsep(&rest, "\n")))
            if (*at) {
                char *text;

                snprintf(path, sizeof(path), "/proc/%s/sched", at);
                text = text_of(path);
                f->forced[which] += after(text, "nr_involuntary_switches");
                f->moves[which] += after(text, "se.nr_migrations");
            }
        free(threads);
    }
    at = text_of("/proc/stat");
    switches[which] = after(at, "\nctxt");
    idle[which] = 0;
    sscanf(at, "cpu %*d %*d %*d %ld", &idle[which]);
    wakes[which] = 0;
    at = text_of("/proc/interrupts");
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++) {
        char *line = strstr(at, kinds[kind]);

        for (int cpu = 0; line && cpu < cpus; cpu++)
            wakes[which] += strtol(cpu ? line : line + strlen(kinds[kind]), &line, 10);
    }
}

int main(int words, char **word)
{
    struct sched_param first = { .sched_priority = 50 };
    int cpus = words > 2 ? atoi(word[2]) : 0;
    double ns;
    struct timespec end;

    if (words < 4 || words - 3 > PROGRAMS_MAX)
        return fprintf(stderr, "watch MS CPUS CGROUP..., at most %d\n", PROGRAMS_MAX), 2;
    for (; number < words - 3; number++) {
        char path[300];
        int file;
        void *memory;

        programs[number].name = word[number + 3];
        snprintf(path, sizeof(path), "/tmp/count.%s", word[number + 3]);
        for (char *at = path + 11; *at; at++)
            *at = *at == '/' ? '.' : *at;
        file = open(path, O_RDONLY);
        memory = mmap(NULL, 2 * sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        programs[number].counts = file < 0 || memory == MAP_FAILED ? NULL : memory;
    }
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        return perror("sched_setscheduler"), 1;
    count(0, cpus);
    look(0);
    ns = at_ns[0] + atol(word[1]) * 1e6;
    end.tv_sec = (long)(ns / 1e9);
    end.tv_nsec = (long)(ns - end.tv_sec * 1e9);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
    look(1);
    count(1, cpus);
    ns = at_ns[1] - at_ns[0];
    for (int at = 0; at < number; at++) {
        struct program *f = &programs[at];
        double us = f->used_us[1] - f->used_us[0], steps = f->steps[1] - f->steps[0];

        printf("cores_%d=%.3f rounds_%d=%.0f steps_%d=%.3f speed_%d=%.3f forced_%d=%.0f moves_%d=%.0f\n", at,
               us * 1e3 / ns, at, (f->rounds[1] - f->rounds[0]) * 1e9 / ns, at, steps * 1e3 / ns, at,
               us > 0 ? steps / us : 0, at, (f->forced[1] - f->forced[0]) * 1e9 / ns, at,
               (f->moves[1] - f->moves[0]) * 1e9 / ns);
    }
    printf("switches=%.0f wakes=%.0f idle=%.3f\n", (switches[1] - switches[0]) * 1e9 / ns,
           (wakes[1] - wakes[0]) * 1e9 / ns, (idle[1] - idle[0]) * 1e9 / ns / sysconf(_SC_CLK_TCK));
    return 0;
}
