/*
 * A filter for nbdkit: requests share the plugin below by weight of their export.
 *
 *     cc -shared -fPIC filter.c $(pkg-config --cflags --libs mqfq) -o nbdkit-mqfq-filter.so
 *     nbdkit --filter=./nbdkit-mqfq-filter.so memory 1G mqfq-weights=alice=300,bob=100
 *
 * An export that is not named has the weight 100, together with all such ones. At most mqfq-permits requests are in the
 * plugin at once; without that key the number is found, up to 1024. A connection asks for as many as it has threads:
 * `--threads`, 16 unless set. Costs are bytes, at least 4096.
 */
#define NBDKIT_API_VERSION 2
#include <errno.h>
#include <inttypes.h>
#include <mqfq.h>
#include <nbdkit-filter.h>
#include <stdlib.h>
#include <string.h>

#define TENANTS 64
#define COST_LEAST 4096

static struct tenant {
    char *export;
    uint32_t weight;
    mqfq_tenant tenant;
} tenants[TENANTS] = {{NULL, 100, {0, 0}}}; /* the first: exports that are not named */
static size_t count = 1;
static mqfq_options options;
static mqfq_scheduler *scheduler;

static int refuse(const char *call, int code) {
    nbdkit_error("mqfq: %s: %s", call, mqfq_strerror(code));
    return -1;
}

/* "alice=300,bob=100" */
static int parse_weights(const char *text) {
    while (*text) {
        size_t length = strcspn(text, ",");
        char *pair = strndup(text, length), *equals = pair ? strrchr(pair, '=') : NULL;
        if (!equals || count == TENANTS) {
            nbdkit_error(equals ? "mqfq-weights: more than 63 exports" : "mqfq-weights: EXPORT=WEIGHT,... is expected");
            free(pair);
            return -1;
        }
        *equals = 0;
        tenants[count].export = pair;
        if (nbdkit_parse_uint32_t("mqfq-weights", equals + 1, &tenants[count].weight) == -1) {
            free(pair);
            return -1;
        }
        count++;
        text += length + (text[length] == ',');
    }
    return 0;
}

static int config(nbdkit_next_config *next, nbdkit_backend *below, const char *key, const char *value) {
    if (strcmp(key, "mqfq-weights") == 0)
        return parse_weights(value);
    if (strcmp(key, "mqfq-permits") == 0)
        return nbdkit_parse_uint32_t(key, value, &options.permits);
    return next(below, key, value);
}

static int get_ready(int thread_model) {
    (void)thread_model;
    /* The search begins at the number of threads of four connections: a plugin may serve any number at once, and the
     * search finds a smaller one within seconds. */
    if (options.permits == 0)
        options = (mqfq_options){.permits = 64, .find_permits = 1024};
    int code = mqfq_scheduler_new(&options, &scheduler);
    if (code < 0)
        return refuse("mqfq-permits", code);
    for (size_t i = 0; i < count; i++)
        if ((code = mqfq_tenant_add(scheduler, tenants[i].weight, &tenants[i].tenant)) < 0)
            return refuse("mqfq-weights", code);
    return 0;
}

static void unload(void) {
    for (size_t i = 0; i < count; i++) {
        mqfq_counters of;
        if (scheduler && mqfq_tenant_counters(scheduler, tenants[i].tenant, &of) == 0)
            nbdkit_debug("mqfq: %s: %" PRIu64 " requests, %" PRIu64 " bytes", tenants[i].export ? tenants[i].export : "others",
                         of.served, of.served_cost);
        free(tenants[i].export);
    }
    if (scheduler)
        mqfq_scheduler_free(scheduler);
}

static void *open_export(nbdkit_next_open *next, nbdkit_context *context, int readonly, const char *name, int is_tls) {
    (void)is_tls;
    if (next(context, readonly, name) == -1)
        return NULL;
    for (size_t i = 1; i < count; i++)
        if (strcmp(tenants[i].export, name) == 0)
            return &tenants[i];
    return &tenants[0];
}

/* Runs a call of the plugin with a permit. */
#define SHARED(cost, call)                                                                                            \
    do {                                                                                                               \
        uint64_t bytes = (cost) < COST_LEAST ? COST_LEAST : (cost);                                                    \
        mqfq_permit permit;                                                                                            \
        int code = mqfq_acquire(scheduler, ((struct tenant *)handle)->tenant, bytes, UINT64_MAX, &permit);             \
        if (code < 0) {                                                                                                \
            *err = EIO;                                                                                                \
            return refuse("a request", code);                                                                          \
        }                                                                                                              \
        int result = (call);                                                                                           \
        mqfq_finish(scheduler, permit, bytes);                                                                         \
        return result;                                                                                                 \
    } while (0)

static int read_(nbdkit_next *next, void *handle, void *buf, uint32_t n, uint64_t at, uint32_t flags, int *err) {
    SHARED(n, next->pread(next, buf, n, at, flags, err));
}

static int write_(nbdkit_next *next, void *handle, const void *buf, uint32_t n, uint64_t at, uint32_t flags, int *err) {
    SHARED(n, next->pwrite(next, buf, n, at, flags, err));
}

static int flush(nbdkit_next *next, void *handle, uint32_t flags, int *err) {
    SHARED(0, next->flush(next, flags, err));
}

static int trim(nbdkit_next *next, void *handle, uint32_t n, uint64_t at, uint32_t flags, int *err) {
    SHARED(0, next->trim(next, n, at, flags, err));
}

static int zero(nbdkit_next *next, void *handle, uint32_t n, uint64_t at, uint32_t flags, int *err) {
    SHARED(0, next->zero(next, n, at, flags, err));
}

static int cache(nbdkit_next *next, void *handle, uint32_t n, uint64_t at, uint32_t flags, int *err) {
    SHARED(n, next->cache(next, n, at, flags, err));
}

static struct nbdkit_filter filter = {
    .name = "mqfq",
    .longname = "nbdkit mqfq filter",
    .description = "shares the plugin between exports by weight",
    .config = config,
    .config_help = "mqfq-weights=EXPORT=WEIGHT,...  weights, 1 to 10000.\n"
                   "mqfq-permits=N                  requests in the plugin at once, 1 to 65535; found.",
    .get_ready = get_ready,
    .unload = unload,
    .open = open_export,
    .pread = read_,
    .pwrite = write_,
    .flush = flush,
    .trim = trim,
    .zero = zero,
    .cache = cache,
};

NBDKIT_REGISTER_FILTER(filter)
