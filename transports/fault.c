/* fault: decorates another source with faults, from a seed (plan language in fault.h). */
#include "transports/fault.h"
#include "transports/base/clock.h"
#include "transports/transport.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct fault_source {
    struct ws_source head;
    struct ws_source *inner;
    unsigned seed, delay_ms, cut, flip, lie, fail; /* the last four in percent */
    unsigned rate;                                 /* MB/s over all lanes; 0: as fast as it goes */
    bool reorder;
    uint64_t stale_after; /* blocks; 0: never */
    _Atomic uint64_t random, blocks;
    _Atomic uint64_t free_ns; /* when the link will have sent all blocks so far */
};

struct fault_lane {
    struct ws_lane head;
    struct ws_lane *inner;
};

/* One fetch on its way through. */
struct passage {
    struct fault_source *source;
    const struct ws_fetch *request; /* the caller's */
    bool cut, stale;
};

/* splitmix64: one atomic step a draw, so that threads share one stream. */
static uint64_t draw(struct fault_source *s)
{
    uint64_t z = atomic_fetch_add(&s->random, 0x9E3779B97F4A7C15ULL) + 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

/* Waits as long as a link of that rate would take. */
static void pace(struct fault_source *s, uint64_t bytes)
{
    if (!s->rate)
        return;
    uint64_t now = ws_clock_ns(), take = bytes * 1000 / s->rate, from = atomic_load(&s->free_ns), until;
    do
        until = (from > now ? from : now) + take;
    while (!atomic_compare_exchange_weak(&s->free_ns, &from, until));
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000UL), .tv_nsec = (long)(until % 1000000000UL)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static bool happens(struct fault_source *s, unsigned percent)
{
    return percent > 0 && draw(s) % 100 < percent;
}

static int parse_plan(struct fault_source *s, const char *plan, size_t n, struct ws_error *err)
{
    const struct {
        const char *name;
        unsigned *value;
    } numbers[] = {{"seed=", &s->seed}, {"delay=", &s->delay_ms}, {"cut=", &s->cut},  {"flip=", &s->flip},
                   {"lie=", &s->lie},   {"fail=", &s->fail},      {"rate=", &s->rate}};
    for (const char *end = plan + n; plan < end;) {
        size_t word = strcspn(plan, ",:");
        bool known = word == 7 && strncmp(plan, "reorder", 7) == 0;
        if (known)
            s->reorder = true;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            size_t k = strlen(numbers[i].name);
            if (word > k && strncmp(plan, numbers[i].name, k) == 0) {
                *numbers[i].value = (unsigned)strtoul(plan + k, NULL, 10);
                known = true;
            }
        }
        if (word > 6 && strncmp(plan, "stale=", 6) == 0) {
            s->stale_after = strtoull(plan + 6, NULL, 10);
            known = true;
        }
        if (!known)
            return ws_error_set(err, EINVAL,
                                "'%.*s' is no fault; there are seed= delay= cut= flip= lie= fail= stale= "
                                "rate= and reorder",
                                (int)word, plan);
        plan += word + 1;
    }
    return 0;
}

static void fault_close(struct ws_source *source)
{
    struct fault_source *s = (struct fault_source *)source;
    ws_source_close(s->inner);
    free(s->head.url);
    free(s);
}

static int fault_open(const char *url, const struct ws_source_options *options, struct ws_source **out,
                      struct ws_error *err)
{
    const char *plan = url + strlen("fault:"), *colon = strchr(plan, ':');
    struct fault_source *s = calloc(1, sizeof(*s));
    if (!s || !(s->head.url = strdup(url))) {
        free(s);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    s->head.ops = &ws_fault_ops;
    int rc = colon ? parse_plan(s, plan, (size_t)(colon - plan), err)
                   : ws_error_set(err, EINVAL, "write fault:PLAN:URL");
    if (rc == 0)
        rc = ws_source_open(colon + 1, options, &s->inner, err);
    if (rc < 0) {
        fault_close(&s->head);
        return rc;
    }
    atomic_store(&s->random, s->seed);
    *out = &s->head;
    return 0;
}

static int control_fault(struct fault_source *s, struct ws_error *err)
{
    if (s->stale_after && atomic_load(&s->blocks) >= s->stale_after)
        return 0; /* of a stale source only the bytes are gone */
    return happens(s, s->fail) ? ws_error_set(err, ECONNRESET, "%s: a fault on purpose", s->head.url) : 0;
}

static int fault_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                        const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    struct fault_source *s = (struct fault_source *)source;
    int rc = control_fault(s, err);
    return rc ? rc : ws_source_models(s->inner, model, since, timeout_ms, cancel, out, err);
}

static int fault_manifest(struct ws_source *source, const char *model, uint64_t version, const char *lineage,
                          const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    struct fault_source *s = (struct fault_source *)source;
    int rc = control_fault(s, err);
    return rc ? rc : ws_source_manifest(s->inner, model, version, lineage, cancel, out, err);
}

static int fault_map(struct ws_source *source, const struct ws_manifest *m, struct ws_region **regions,
                     struct ws_error *err)
{
    struct fault_source *s = (struct fault_source *)source;
    int rc = control_fault(s, err);
    return rc ? rc : ws_source_map(s->inner, m, regions, err);
}

static void fault_unmap(struct ws_source *source, const char *model, uint64_t version, const char *lineage)
{
    ws_source_unmap(((struct fault_source *)source)->inner, model, version, lineage);
}

static int fault_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct fault_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    l->head.source = source;
    int rc = ws_lane_open(((struct fault_source *)source)->inner, &l->inner, err);
    if (rc < 0) {
        free(l);
        return rc;
    }
    *out = &l->head;
    return 0;
}

static void fault_lane_close(struct ws_lane *lane)
{
    struct fault_lane *l = (struct fault_lane *)lane;
    ws_lane_close(l->inner);
    free(l);
}

static int pass_block(void *arg, size_t block, uint64_t hash)
{
    struct passage *p = arg;
    struct fault_source *s = p->source;
    const struct ws_manifest_file *f = &p->request->manifest->files[p->request->file];
    if (s->stale_after && atomic_fetch_add(&s->blocks, 1) >= s->stale_after) {
        p->stale = true;
        return 1;
    }
    if (happens(s, s->flip)) { /* one bit is wrong, and the hash is that of the wrong bytes */
        uint64_t r = draw(s);
        ws_fetch_dst(p->request, block)[r % ws_manifest_block_bytes(f, block)] ^=
            (unsigned char)(1U << (r >> 60 & 7));
        hash ^= r | 1;
    } else if (happens(s, s->lie)) {
        hash = ~hash;
    }
    pace(s, ws_manifest_block_bytes(f, block));
    int stop = p->request->block(p->request->arg, block, hash);
    if (!stop && happens(s, s->cut)) {
        p->cut = true;
        stop = 1;
    }
    return stop;
}

static int fetch_part(struct fault_lane *l, struct passage *p, size_t first, size_t n, struct ws_error *err)
{
    struct ws_fetch f = *p->request;
    f.first = first;
    f.n = n;
    f.block = pass_block;
    f.arg = p;
    f.store = NULL; /* bytes that are to be changed come to dst */
    f.grows = NULL; /* and are not shown before */
    int rc = ws_lane_fetch(l->inner, &f, err);
    if (p->stale)
        return ws_error_set(err, ESTALE, "%s: gone, on purpose", l->head.source->url);
    if (p->cut)
        return ws_error_set(err, ECONNRESET, "%s: cut on purpose", l->head.source->url);
    return rc;
}

static int fault_fetch(struct ws_lane *lane, const struct ws_fetch *request, struct ws_error *err)
{
    struct fault_lane *l = (struct fault_lane *)lane;
    struct fault_source *s = (struct fault_source *)lane->source;
    struct passage p = {.source = s, .request = request};
    if (s->delay_ms)
        (void)poll(NULL, 0, (int)s->delay_ms);
    if (happens(s, s->cut))
        return ws_error_set(err, ECONNRESET, "%s: cut on purpose", s->head.url);
    if (!s->reorder)
        return fetch_part(l, &p, request->first, request->n, err);
    int rc = 0;
    size_t start = draw(s) % request->n; /* each block once, backwards from a random one */
    for (size_t i = 0; rc == 0 && i < request->n; i++)
        rc = fetch_part(l, &p, request->first + (start + request->n - i) % request->n, 1, err);
    return rc;
}

static int fault_deltas(struct ws_source *source, const char *model, const struct ws_version_id *version,
                        const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES], size_t *n,
                        struct ws_error *err)
{
    struct fault_source *s = (struct fault_source *)source;
    int rc = control_fault(s, err);
    return rc ? rc : ws_source_deltas(s->inner, model, version, cancel, out, n, err);
}

/* A delta on its way through. */
struct delta_passage {
    struct fault_source *source;
    const struct ws_delta_fetch *request; /* the caller's */
    bool cut;
};

static int pass_admit(void *arg, uint64_t bytes, struct ws_error *err)
{
    const struct ws_delta_stream_sink *t = &((struct delta_passage *)arg)->request->sink;
    return t->admit(t->arg, bytes, err);
}

static int pass_record(void *arg, struct ws_delta_record *r)
{
    struct delta_passage *p = arg;
    struct fault_source *s = p->source;
    if (happens(s, s->flip)) /* as of a sender whose bytes were wrong before it hashed them */
        r->data[draw(s) % r->bytes] ^= (unsigned char)(1U << draw(s) % 8);
    if (happens(s, s->lie)) { /* the record is missing, and the delta says that it is whole */
        free(r);
        return 0;
    }
    pace(s, r->bytes);
    int stop = p->request->sink.record(p->request->sink.arg, r);
    p->cut = p->cut || (!stop && happens(s, s->cut));
    return stop || p->cut;
}

static int fault_delta(struct ws_lane *lane, const struct ws_delta_fetch *request, struct ws_error *err)
{
    struct fault_lane *l = (struct fault_lane *)lane;
    struct fault_source *s = (struct fault_source *)lane->source;
    struct delta_passage p = {.source = s, .request = request};
    struct ws_delta_fetch f = *request;
    f.sink = (struct ws_delta_stream_sink){
        .admit = request->sink.admit ? pass_admit : NULL, .record = pass_record, .arg = &p};
    if (s->delay_ms)
        (void)poll(NULL, 0, (int)s->delay_ms);
    int rc = ws_lane_delta(l->inner, &f, err);
    return p.cut ? ws_error_set(err, ECONNRESET, "%s: cut on purpose", s->head.url) : rc;
}

static int fault_call(struct ws_source *source, const char *method, const char *path, const json_t *body,
                      json_t **reply, struct ws_error *err)
{
    struct fault_source *s = (struct fault_source *)source;
    int rc = control_fault(s, err);
    return rc ? rc : ws_source_call(s->inner, method, path, body, reply, err);
}

const struct ws_transport_ops ws_fault_ops = {
    .name = "fault",
    .schemes = (const char *const[]){"fault:", NULL},
    .open = fault_open,
    .close = fault_close,
    .models = fault_models,
    .manifest = fault_manifest,
    .map = fault_map,
    .unmap = fault_unmap,
    .lane_open = fault_lane_open,
    .lane_close = fault_lane_close,
    .fetch = fault_fetch,
    .deltas = fault_deltas,
    .delta = fault_delta,
    .call = fault_call,
};
