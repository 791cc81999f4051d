/* Sender: gathers the mounts that ask for a version, and sends it to all of them at once out of its slot, from
 * a thread of its own, one round at a time. A mount that asks while a round is under way is in the next one. A
 * round ends when the slot of its version is wanted. The requests: transports/nccl/broadcast.c. */
#include "backends/trainer/agent/broadcast/sender.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/leases.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET_BYTES (16UL << 20)
#define MAX_THREADS  4

/* --- rounds --- */

struct round {
    struct ws_lease *lease;
    struct ws_broadcast_plan plan;
    struct ws_block_run *runs;
    const unsigned char **data;
    bool **wanted; /* a flag a block, one array a file */
};

static bool is_wanted(void *arg, size_t file, size_t block)
{
    return ((struct round *)arg)->wanted[file][block];
}

/* Notes what one member wants. Its blocks are of the version with that digest, as the round's. */
static void add_wants(struct round *r, const struct ws_sender_joiner *j)
{
    const struct ws_manifest *m = r->lease->manifest;
    for (size_t f = 0; !j->wants && f < m->n_files; f++)
        memset(r->wanted[f], true, m->files[f].n_blocks);
    for (size_t i = 0; j->wants && i < j->n_wants; i++)
        memset(&r->wanted[j->wants[i].file][j->wants[i].first], true, j->wants[i].n);
}

static int allocate_round(struct round *r, struct ws_error *err)
{
    const struct ws_manifest *m = r->lease->manifest;
    bool lacks;
    r->data = calloc(m->n_files + 1, sizeof(*r->data));
    r->wanted = calloc(m->n_files + 1, sizeof(*r->wanted));
    lacks = !r->data || !r->wanted;
    for (size_t f = 0; !lacks && f < m->n_files; f++) {
        r->data[f] = r->lease->regions[f] ? ws_region_data(r->lease->regions[f]) : NULL;
        r->wanted[f] = calloc(m->files[f].n_blocks + 1, sizeof(bool));
        lacks = !r->wanted[f];
    }
    return lacks ? ws_error_set(err, ENOMEM, "no memory for a round") : 0;
}

static void clear_round(struct ws_agent *a, struct round *r)
{
    for (size_t f = 0; r->wanted && f < r->lease->manifest->n_files; f++)
        free(r->wanted[f]);
    free(r->wanted);
    free(r->data);
    free(r->runs);
    if (r->lease)
        ws_agent_lease_release(a, r->lease);
}

static json_t *invitation_json(const struct ws_broadcast_plan *p)
{
    char id[WS_NCCL_ID_TEXT];
    ws_nccl_id_format(p->id, id);
    return json_pack("{s:s,s:i,s:I,s:i,s:o}", "id", id, "n_ranks", (int)p->n_ranks, "bucket_bytes",
                     (json_int_t)p->bucket_bytes, "stall_ms", (int)p->stall_ms, "blocks",
                     ws_block_runs_json(p->runs, p->n_runs));
}

static void end_round(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

/* Only this thread changes the list of members, so it may be read without the lock. */
static int plan_round(struct ws_agent *a, struct ws_sender *b, struct round *r, struct ws_error *err)
{
    const struct ws_sender_joiner *first = b->members;
    unsigned n = 1;
    int rc = ws_agent_lease_acquire(a, first->model, first->version.version, first->version.lineage,
                                    "broadcast", end_round, &b->end_round, &r->lease, err);
    if (rc == 0)
        rc = allocate_round(r, err);
    if (rc == 0 && strcmp(r->lease->manifest->digest, first->digest) != 0)
        rc = ws_error_set(err, ESTALE, "%s/%" PRIu64 " is another one by now", first->model,
                          first->version.version);
    for (const struct ws_sender_joiner *j = first; rc == 0 && j; j = j->next, n++)
        add_wants(r, j);
    if (rc == 0)
        rc = ws_block_runs_new(r->lease->manifest, is_wanted, r, &r->runs, &r->plan.n_runs, err);
    if (rc == 0 && r->plan.n_runs == 0)
        rc = ws_error_set(err, EINVAL, "no member of the broadcast wants a block");
    if (rc == 0)
        rc = ws_nccl_id_new(b->device, r->plan.id, err);
    if (rc < 0)
        return rc;
    r->plan.manifest = r->lease->manifest;
    r->plan.runs = r->runs;
    r->plan.n_ranks = n;
    r->plan.bucket_bytes = BUCKET_BYTES;
    r->plan.stall_ms = WS_STALL_MS;
    r->plan.device = b->device;
    r->plan.stop = &b->end_round;
    r->plan.cancel = &a->stop;
    json_t *invitation = invitation_json(&r->plan);
    pthread_mutex_lock(&a->lock);
    b->invitation = invitation;
    pthread_mutex_unlock(&a->lock);
    return invitation ? 0 : ws_error_set(err, ENOMEM, "no memory for a round");
}

static void log_round(const struct ws_sender_joiner *first, const struct round *r, int rc, uint64_t bytes,
                      uint64_t ns, const struct ws_error *err)
{
    double speed = ns ? (double)bytes / (double)ns : 0;
    if (rc == 0)
        ws_log(WS_LOG_INFO, "agent",
               "broadcast model=%s version=%" PRIu64 " to=%u bytes=%" PRIu64 " ms=%.1f GB/s=%.2f",
               first->model, first->version.version, r->plan.n_ranks - 1, bytes, (double)ns / 1e6, speed);
    else
        ws_log(WS_LOG_WARN, "agent",
               "broadcast given up model=%s version=%" PRIu64 " to=%u bytes=%" PRIu64 " ms=%.1f: %s",
               first->model, first->version.version, r->plan.n_ranks ? r->plan.n_ranks - 1 : 0, bytes,
               (double)ns / 1e6, err->text);
}

/* b->members are its receivers. Not under lock. */
static void run_round(struct ws_agent *a, struct ws_sender *b)
{
    struct round r = {0};
    struct ws_error err = {0};
    uint64_t bytes = 0, ns = 0;
    int rc = plan_round(a, b, &r, &err);
    if (rc == 0)
        rc = ws_broadcast_send(&r.plan, r.data, b->workers, &bytes, &ns, &err);
    log_round(b->members, &r, rc, bytes, ns, &err);
    clear_round(a, &r);
    struct ws_error why = {0};
    char uuid[WS_DEVICE_UUID_BYTES]; /* b's is read under the lock */
    bool lost = rc < 0 && ws_broadcast_device(b->device, uuid, &why) < 0;
    if (lost)
        ws_log(WS_LOG_ERROR, "agent", "nothing is broadcast any more: %s", why.text);
    pthread_mutex_lock(&a->lock);
    if (lost)
        snprintf(b->broken, sizeof(b->broken), "%s", why.text);
    b->n_completed += rc == 0;
    b->n_failed += rc < 0;
    b->sent_bytes += bytes;
    b->bytes_per_second = ns ? (uint64_t)((double)bytes / (double)ns * 1e9) : 0;
    json_decref(b->invitation);
    b->invitation = NULL;
    ws_sender_joiners_free(&b->members);
    pthread_mutex_unlock(&a->lock);
}

static void *broadcaster(void *arg)
{
    struct ws_agent *a = arg;
    struct ws_sender *b = a->feature_state[WS_FEATURE_broadcast];
    ws_thread_nice(a->options.nice);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        ws_sender_expire(b, ws_clock_ns());
        const struct ws_sender_joiner *first = b->waiting;
        uint64_t end = first ? first->since_ns + b->gather_ms * WS_MS_NS : 0;
        if (!first) {
            pthread_cond_wait(&a->changed, &a->lock);
        } else if (ws_clock_ns() < end && !ws_sender_all_joined(a, b)) {
            (void)ws_agent_wait(a, end);
        } else {
            atomic_store(&b->end_round, false);
            ws_sender_select_members(b);
            pthread_mutex_unlock(&a->lock);
            run_round(a, b);
            pthread_mutex_lock(&a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- views; under lock --- */

static void put_status(const struct ws_agent *a, json_t *out)
{
    const struct ws_sender *b = ws_sender_of(a);
    unsigned waiting = 0, members = 0;
    char release[WS_NCCL_RELEASE_TEXT];
    if (!b)
        return;
    for (const struct ws_sender_joiner *j = b->waiting; j; j = j->next)
        waiting++;
    for (const struct ws_sender_joiner *j = b->members; j; j = j->next)
        members++;
    ws_nccl_release_format(ws_nccl_release(), release);
    json_object_set_new(out, "broadcast",
                        json_pack("{s:i,s:s,s:s,s:i,s:i,s:I,s:I,s:I,s:I}", "device", b->device, "uuid",
                                  b->uuid, "nccl", release, "waiting", (int)waiting, "receiving",
                                  (int)members, "rounds", (json_int_t)b->n_completed, "failed",
                                  (json_int_t)b->n_failed, "bytes", (json_int_t)b->sent_bytes,
                                  "bytes_per_second", (json_int_t)b->bytes_per_second));
}

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    const struct ws_sender *b = ws_sender_of(a);
    if (!b)
        return;
    fprintf(f,
            "# HELP wsync_agent_broadcasts_total Rounds of broadcasts, by result.\n"
            "# TYPE wsync_agent_broadcasts_total counter\n"
            "wsync_agent_broadcasts_total{result=\"whole\"} %" PRIu64
            "\nwsync_agent_broadcasts_total{result=\"given-up\"} %" PRIu64 "\n"
            "# HELP wsync_agent_broadcast_bytes_total Bytes that were broadcast.\n"
            "# TYPE wsync_agent_broadcast_bytes_total counter\nwsync_agent_broadcast_bytes_total %" PRIu64
            "\n"
            "# HELP wsync_agent_broadcast_bytes_per_second The speed of the last round.\n"
            "# TYPE wsync_agent_broadcast_bytes_per_second gauge\n"
            "wsync_agent_broadcast_bytes_per_second %" PRIu64 "\n",
            b->n_completed, b->n_failed, b->sent_bytes, b->bytes_per_second);
}

/* --- start and stop --- */

static int open_device(struct ws_sender *b, const char *name, struct ws_error *err)
{
    uint64_t device = 0;
    if (strcmp(name, "auto") != 0 && (ws_text_u64(name, &device) < 0 || device > INT32_MAX))
        return ws_error_set(err, EINVAL, "--broadcast is a device's number, auto or off, not '%s'", name);
    b->device = (int)device;
    int rc = ws_broadcast_available(err);
    return rc == 0 ? ws_broadcast_device(b->device, b->uuid, err) : rc;
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct ws_sender *b = a->feature_state[WS_FEATURE_broadcast];
    const unsigned n = a->options.n_threads < MAX_THREADS ? a->options.n_threads : MAX_THREADS;
    const char *name = a->options.broadcast;
    struct ws_error why = {0};
    if (!name)
        return 0;
    int rc = open_device(b, name, &why);
    if (rc < 0 && strcmp(name, "auto") == 0) {
        ws_log(WS_LOG_INFO, "agent", "nothing is broadcast: %s", why.text);
        return 0;
    }
    b->gather_ms = a->options.gather_ms ? a->options.gather_ms : WS_GATHER_MS;
    if (rc == 0 && !(b->workers = ws_workers_new(n, a->options.nice)))
        rc = ws_error_set(&why, ENOMEM, "no memory for threads");
    if (rc == 0 && ws_thread_start(&b->thread, broadcaster, a) < 0)
        rc = ws_error_set(&why, EAGAIN, "cannot start the thread that broadcasts");
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot broadcast from device %s: %s", name, why.text);
    b->runs = true;
    ws_log(WS_LOG_INFO, "agent", "broadcasting device=%d uuid=%s", b->device, b->uuid);
    return 0;
}

static void stop(struct ws_agent *a)
{
    const struct ws_sender *b = ws_sender_of(a);
    if (b)
        pthread_join(b->thread, NULL);
}

/* A request may have looked at it until now. */
static void end(struct ws_agent *a)
{
    struct ws_sender *b = a->feature_state[WS_FEATURE_broadcast];
    ws_sender_joiners_free(&b->waiting);
    ws_workers_free(b->workers);
}

static const struct ws_api_route routes[] = {
    WS_API_ROUTE_BODY("POST", "/v1/{model}/{version}/broadcast", REPORT, WS_MAX_PLACE_BYTES), {0}};

const struct ws_agent_feature ws_feature_broadcast = {
    .agent_bytes = sizeof(struct ws_sender),
    .start = start,
    .stop = stop,
    .end = end,
    .status = put_status,
    .metrics = put_metrics,
    .routes = routes,
    .route = ws_sender_route,
};
