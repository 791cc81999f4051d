/* The receiver's end of a broadcast: it requests a place in a round from the agent, takes part, and requests again
 * while blocks are missing.
 *
 *     POST /v1/{model}/{version}/broadcast[?run=R]
 *
 *     request                                             meaning
 *       {mount, uuid, nccl, digest,
 *        wants: "all" | [[file, first, n]..]}             requests a place
 *       {ticket}                                          requests it again
 *       {ticket, leave: true}                             gives it up
 *     reply
 *       {ticket, wait_ms}                                 not yet: repeat the request after that time
 *       {ticket, id, rank, n_ranks, bucket_bytes,
 *        stall_ms, blocks: [[file, first, n]..]}          the round begins
 *
 * The agent replies at once, so that no request holds up a thread of its server. 405: the agent broadcasts nothing,
 * or not to this mount, and why. 503: the agent does not know the ticket, or no longer. */
#include "transports/nccl/broadcast.h"
#include "transports/base/clock.h"
#include "transports/base/cpu_features.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/nccl/broadcast_plan.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_FRUITLESS 3 /* rounds that brought no block */
#define MAX_WAIT_MS   200
#define MAX_STALL_MS  600000
#define MAX_THREADS   4

struct receiver {
    struct ws_source *source;
    struct ws_broadcast_fetch *fetch;
    struct ws_workers *workers;
    char path[WS_API_PATH_BYTES], uuid[WS_DEVICE_UUID_BYTES];
    unsigned timeout_ms;
    uint64_t ticket;
    struct ws_broadcast_plan plan;
    struct ws_block_run *runs; /* the plan's */
    unsigned n_rounds, most;   /* that were whole; receivers of one */
    uint64_t bytes, ns;
};

int ws_broadcast_available(struct ws_error *why)
{
    int rc = ws_cuda_device.available(why);
    return rc == 0 ? ws_nccl_available(why) : rc;
}

int ws_broadcast_device(int device, char uuid[WS_DEVICE_UUID_BYTES], struct ws_error *err)
{
    struct ws_device_info info;
    int rc = ws_cuda_device.describe(device, &info, err);
    if (rc == 0)
        snprintf(uuid, WS_DEVICE_UUID_BYTES, "%s", info.uuid);
    return rc;
}

/* --- a place in a round --- */

static bool wants(void *arg, size_t file, size_t block)
{
    const struct ws_broadcast_fetch *f = arg;
    return f->wants(f->arg, file, block);
}

static size_t total_blocks(const struct ws_manifest *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_files; i++)
        n += m->files[i].n_blocks;
    return n;
}

static json_t *place_request(const struct receiver *r, const struct ws_block_run *runs, size_t n,
                             size_t n_wanted)
{
    const struct ws_manifest *m = r->fetch->manifest;
    json_t *list = n_wanted == total_blocks(m) ? json_string("all") : ws_block_runs_json(runs, n);
    return json_pack("{s:s,s:s,s:i,s:s,s:o}", "mount", r->source->mount_id ? r->source->mount_id : "", "uuid",
                     r->uuid, "nccl", ws_nccl_release(), "digest", m->digest, "wants", list);
}

static int post(struct receiver *r, json_t *body, json_t **reply, struct ws_error *err)
{
    int rc = body ? ws_source_call(r->source, "POST", r->path, body, reply, err)
                  : ws_error_set(err, ENOMEM, "no memory for a request to %s", r->source->url);
    json_decref(body);
    if (rc != -ENOENT)
        return rc;
    return ws_error_set(err, ENOTSUP, "%s broadcasts nothing: it has no such route, or not this version",
                        r->source->url);
}

/* Gives up the place. A round under way then ends for all members at once, instead of after the deadline. */
static void leave(struct receiver *r)
{
    json_t *reply = NULL;
    (void)post(r, json_pack("{s:I,s:b}", "ticket", (json_int_t)r->ticket, "leave", 1), &reply, NULL);
    json_decref(reply);
}

static uint64_t number(const json_t *o, const char *key, uint64_t most)
{
    uint64_t v;
    return ws_number_read(json_object_get(o, key), &v) == 0 && v <= most ? v : 0;
}

static int parse_place(struct receiver *r, const json_t *reply, struct ws_error *err)
{
    struct ws_broadcast_plan *p = &r->plan;
    *p = (struct ws_broadcast_plan){
        .manifest = r->fetch->manifest,
        .rank = (unsigned)number(reply, "rank", WS_MAX_MEMBERS - 1),
        .n_ranks = (unsigned)number(reply, "n_ranks", WS_MAX_MEMBERS),
        .bucket_bytes = number(reply, "bucket_bytes", WS_MAX_BUCKET_BYTES),
        .stall_ms = (unsigned)number(reply, "stall_ms", MAX_STALL_MS),
        .device = r->fetch->device,
        .cancel = r->fetch->cancel,
    };
    if (ws_nccl_id_parse(json_string_value(json_object_get(reply, "id")), p->id) < 0 || p->rank == 0 ||
        p->rank >= p->n_ranks || p->bucket_bytes < WS_BLOCK_BYTES || p->stall_ms == 0)
        return ws_error_set(err, EPROTO, "%s's reply is not a place in a broadcast", r->source->url);
    if (r->fetch->timeout_ms)
        p->stall_ms = r->fetch->timeout_ms;
    int rc =
        ws_block_runs_from_json(json_object_get(reply, "blocks"), p->manifest, &r->runs, &p->n_runs, err);
    p->runs = r->runs;
    return rc;
}

static bool is_canceled(const struct ws_broadcast_fetch *f)
{
    return f->cancel && atomic_load(f->cancel);
}

/* Repeats the request until a round begins. */
static int request_place(struct receiver *r, json_t *body, struct ws_error *err)
{
    uint64_t end = ws_clock_ns() + (uint64_t)r->timeout_ms * WS_MS_NS;
    for (;;) {
        json_t *reply = NULL;
        int rc = post(r, body, &reply, err);
        if (rc < 0)
            return rc;
        uint64_t wait_ms = number(reply, "wait_ms", MAX_WAIT_MS);
        r->ticket = number(reply, "ticket", INT64_MAX);
        if (!wait_ms)
            rc = parse_place(r, reply, err);
        json_decref(reply);
        if (!wait_ms)
            return rc;
        if (is_canceled(r->fetch))
            rc = ws_error_set(err, ECANCELED, "the transfer was stopped");
        else if (ws_clock_ns() > end)
            rc = ws_error_set(err, ETIMEDOUT, "%s had no place in a broadcast within %u ms", r->source->url,
                              r->timeout_ms);
        if (rc < 0) {
            leave(r);
            return rc;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)wait_ms * 1000000L}, NULL);
        body = json_pack("{s:I}", "ticket", (json_int_t)r->ticket);
    }
}

/* --- rounds --- */

/* *again: the failure was the round's, and another one may do better. */
static int take_part(struct receiver *r, json_t *body, bool *again, struct ws_error *err)
{
    const struct ws_broadcast_fetch *f = r->fetch;
    const struct ws_broadcast_sink sink = {f->data, f->wants, f->block, f->arg};
    uint64_t bytes = 0, ns = 0;
    int rc = request_place(r, body, err);
    *again = rc == -EAGAIN;
    if (rc < 0)
        return rc;
    rc = ws_broadcast_receive(&r->plan, &sink, r->workers, &bytes, &ns, err);
    *again = rc == 0 || rc == -ETIMEDOUT || rc == -ECONNABORTED ||
             (rc == -EIO && ws_broadcast_device(f->device, r->uuid, NULL) == 0);
    if (rc < 0)
        leave(r);
    if (bytes) {
        r->n_rounds++;
        r->bytes += bytes;
        r->ns += ns;
        r->most = r->plan.n_ranks - 1 > r->most ? r->plan.n_ranks - 1 : r->most;
    }
    free(r->runs);
    r->runs = NULL;
    return rc;
}

static int run_rounds(struct receiver *r, struct ws_error *err)
{
    const struct ws_manifest *m = r->fetch->manifest;
    size_t before = SIZE_MAX, fruitless = 0;
    bool again;
    int last = 0;
    for (;;) {
        struct ws_block_run *runs;
        size_t n, wanted = 0;
        int rc = ws_block_runs_new(m, wants, r->fetch, &runs, &n, err);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < n; i++)
            wanted += runs[i].n;
        fruitless = wanted < before ? 0 : fruitless + 1;
        before = wanted;
        json_t *body = n && fruitless < MAX_FRUITLESS ? place_request(r, runs, n, wanted) : NULL;
        free(runs);
        if (n == 0)
            return 0;
        if (fruitless == MAX_FRUITLESS) /* err: why the last one failed */
            return last < 0 ? last
                            : ws_error_set(err, EIO, "%zu blocks of %s/%" PRIu64 " came damaged, %d times",
                                           wanted, m->model, m->version, MAX_FRUITLESS);
        last = take_part(r, body, &again, err);
        if (!again)
            return last;
        if (last < 0)
            ws_log(WS_LOG_INFO, "broadcast", "a round ended early model=%s version=%" PRIu64 ": %s", m->model,
                   m->version, err->text);
    }
}

static void describe(const struct receiver *r)
{
    struct ws_broadcast_fetch *f = r->fetch;
    double speed = r->ns ? (double)r->bytes / (double)r->ns : 0;
    f->how[0] = 0;
    if (r->n_rounds)
        snprintf(f->how, sizeof(f->how), "broadcast to %u at %.1f GB/s in %u round%s", r->most, speed,
                 r->n_rounds, r->n_rounds == 1 ? "" : "s");
}

int ws_broadcast_fetch(struct ws_source *s, struct ws_broadcast_fetch *f, struct ws_error *err)
{
    struct receiver r = {.source = s, .fetch = f, .timeout_ms = f->timeout_ms ? f->timeout_ms : WS_STALL_MS};
    struct ws_error own = {0}; /* its text is read */
    f->how[0] = 0;
    int rc = ws_broadcast_available(&own);
    if (rc == 0)
        rc = ws_broadcast_device(f->device, r.uuid, &own);
    if (rc == 0) {
        ws_api_version_path(r.path, "broadcast", f->manifest->model, f->manifest->version, NULL,
                            f->manifest->lineage);
        r.workers = ws_workers_new(ws_cpu_cores(MAX_THREADS), 0);
        rc = r.workers ? run_rounds(&r, &own) : ws_error_set(&own, ENOMEM, "no memory for threads");
        ws_workers_free(r.workers);
        describe(&r);
    }
    return rc < 0 ? ws_error_set(err, -rc, "%s", own.text) : 0;
}
