/* Encoder: makes deltas in the background. As soon as a version is published it takes the one before and this
 * one, and leases both slots meanwhile. The leases are revocable: a trainer that wants the older slot gets it
 * within a block's time, and the delta is given up. Deltas are kept within the delta cache, so that a mount
 * that missed some versions finds a chain. */
#include "backends/trainer/agent/delta/encoder.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/provisional.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/delta/encode.h"
#include "transports/delta/set.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define MIN_ROOM_BYTES (1UL << 30)
#define TAKEN_VERSIONS                                                                                       \
    8 /* a reader that took a delta of one of the last so many is expected to take the next one */

/* One delta to be made. */
struct job {
    STAILQ_ENTRY(job) entry;
    struct ws_agent_model *model;
    struct ws_delta *delta;
    struct ws_slot_lease *base, *target;
    struct ws_rank_deltas *rank_deltas;   /* what ranks found out themselves */
    struct ws_view_records *view_records; /* what was found out while a view was made */
    size_t n_from_ranks, n_from_view;     /* how many of their records were used */
    uint64_t most_bytes;                  /* beyond, the delta is given up */
    int level;
    atomic_bool stop;
};

/* The agent's. Guarded by its lock once the thread runs. */
struct encoder {
    pthread_t thread;
    struct ws_workers *workers;     /* NULL: no deltas are made */
    STAILQ_HEAD(jobs, job) waiting; /* first come first */
    struct job *current;            /* the thread's; NULL: none */
};

/* A model's. Under lock. */
struct deltas {
    struct ws_delta_set set;
    unsigned level; /* of compression, that was asked of the next delta */
    uint64_t n_made, n_given_up;
    uint64_t n_ended_taken; /* n_made and n_given_up together when a reader took one last; 0: none did */
    unsigned warned;        /* bits by enum given_up: what the log has said of the model */
};

static struct encoder *encoder_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_delta];
}

static struct deltas *deltas_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_delta];
}

uint64_t ws_encoder_cache_limit(const struct ws_agent *a)
{
    uint64_t bytes = 0;
    if (a->options.delta_cache_bytes != WS_DELTA_CACHE_BY_SIZE)
        return a->options.delta_cache_bytes;
    for (const struct ws_agent_model *m = a->models; m; m = m->next) {
        uint64_t largest = 0;
        for (unsigned i = 0; i < m->n_slots; i++)
            if (m->slots[i]->state == WS_SLOT_SERVED && m->slots[i]->manifest->total_bytes > largest)
                largest = m->slots[i]->manifest->total_bytes;
        bytes += largest / 10;
    }
    return bytes > MIN_ROOM_BYTES ? bytes : MIN_ROOM_BYTES;
}

static void on_revoked(void *arg)
{
    atomic_store(&((struct job *)arg)->stop, true);
}

static struct ws_delta_link link_between(const struct ws_slot *base, const struct ws_slot *target)
{
    struct ws_delta_link l = {.base = ws_version_id_make(base->version, base->lineage),
                              .target = ws_version_id_make(target->version, target->lineage)};
    memcpy(l.base_digest, base->manifest->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, target->manifest->digest, sizeof(l.target_digest));
    return l;
}

static void free_job(struct job *e)
{
    if (e->base)
        ws_slot_lease_free(e->base);
    if (e->target)
        ws_slot_lease_free(e->target);
    ws_delta_put(e->delta);
    ws_rank_deltas_free(e->rank_deltas);
    ws_view_records_free(e->view_records);
    free(e);
}

bool ws_encoder_terms(const struct ws_agent *a, const struct ws_agent_model *m, uint64_t version_bytes,
                      int *level, uint64_t *most_bytes)
{
    const uint64_t room = ws_encoder_cache_limit(a);
    *level = (int)deltas_of(m)->level;
    *most_bytes = room < version_bytes / 2 ? room : version_bytes / 2;
    return encoder_of(a)->workers && m->has_published;
}

bool ws_encoder_is_on(const struct ws_agent *a, const struct ws_agent_model *m)
{
    return encoder_of(a)->workers && m->has_published;
}

bool ws_encoder_is_taken(const struct ws_agent_model *m)
{
    const struct deltas *d = deltas_of(m);
    return d->n_ended_taken > 0 && d->n_made + d->n_given_up < d->n_ended_taken + TAKEN_VERSIONS;
}

/* Has the delta made that leads from the newest version to this one. What is compared already takes a moment only, and
 * comes before what others wait for anyway. */
static void enqueue(struct ws_agent *a, struct ws_agent_model *ranks, struct ws_slot *target)
{
    struct ws_agent_model *m = ranks->slot_owner;
    const struct ws_version_id newest = ws_version_id_make(m->newest, m->lineage);
    struct ws_slot *base = m->has_published ? ws_slots_find(m, &newest) : NULL;
    struct encoder *enc = encoder_of(a);
    struct deltas *deltas = deltas_of(m);
    struct job *e = base ? calloc(1, sizeof(*e)) : NULL;
    struct ws_delta_link link;
    if (!e || !ws_encoder_terms(a, m, target->manifest->total_bytes, &e->level, &e->most_bytes)) {
        free(e);
        return;
    }
    link = link_between(base, target);
    e->model = m;
    deltas->level = 0; /* a reader that still wants it asks again */
    e->base = ws_slot_lease_new(base, "the delta to the next version", on_revoked, e);
    e->target = ws_slot_lease_new(target, "the delta to this version", on_revoked, e);
    if (!e->base || !e->target || ws_delta_new(&e->delta, &link, target->manifest, NULL) < 0) {
        free_job(e);
        return;
    }
    ws_delta_set_add(&deltas->set, ws_delta_get(e->delta));
    e->rank_deltas = target->rank_deltas;
    target->rank_deltas = NULL;
    e->view_records = target->view_records;
    target->view_records = NULL;
    if (e->view_records)
        STAILQ_INSERT_HEAD(&enc->waiting, e, entry);
    else
        STAILQ_INSERT_TAIL(&enc->waiting, e, entry);
}

/* The model with the most bytes of deltas, of those with at least so many deltas; NULL: there is none. */
static struct ws_agent_model *find_most(const struct ws_agent *a, size_t n_deltas)
{
    struct ws_agent_model *most = NULL;
    uint64_t largest = 0;

    for (struct ws_agent_model *m = a->models; m; m = m->next) {
        const struct ws_delta_set *set = &deltas_of(m)->set;
        if (set->n >= n_deltas && ws_delta_set_bytes(set) > largest) {
            largest = ws_delta_set_bytes(set);
            most = m;
        }
    }
    return most;
}

/* Drops the oldest deltas until all fit, and a model's last one only when no model has another: mounts read it just
 * now, and would pull the version whole. Under lock. */
static bool trim_provisional(const struct ws_agent *a, bool all)
{
    bool any = false;
    for (struct ws_agent_model *m = a->models; m && !any; m = m->next)
        any = ws_provisional_trim(m, all);
    return any;
}

void ws_encoder_trim(struct ws_agent *a)
{
    for (;;) {
        uint64_t total = 0;
        for (const struct ws_agent_model *m = a->models; m; m = m->next)
            total += ws_delta_set_bytes(&deltas_of(m)->set) + ws_provisional_bytes(m);
        if (total <= ws_encoder_cache_limit(a))
            return;
        if (trim_provisional(a, false))
            continue;
        struct ws_agent_model *most = find_most(a, 2);
        if (!most && trim_provisional(a, true))
            continue;
        if (!most)
            most = find_most(a, 1);
        if (!most)
            return;
        ws_delta_set_drop_oldest(&deltas_of(most)->set);
    }
}

static struct ws_delta_side delta_side(const struct ws_slot_lease *h, const unsigned char **files)
{
    for (size_t i = 0; i < h->base.manifest->n_files; i++)
        files[i] = h->base.regions[i] ? ws_region_data(h->base.regions[i]) : NULL;
    return (struct ws_delta_side){.manifest = h->base.manifest, .files = files};
}

/* Not under lock: the leases keep both sides. */
static void make(struct job *e, struct ws_workers *workers)
{
    const struct ws_manifest *base = e->base->base.manifest, *target = e->target->base.manifest;
    const unsigned char **files = calloc(base->n_files + target->n_files + 1, sizeof(*files));
    if (!files) {
        ws_delta_end(e->delta, WS_DELTA_GIVEN_UP);
        return;
    }
    struct ws_delta_side from = delta_side(e->base, files), to = delta_side(e->target, files + base->n_files);
    e->n_from_ranks =
        ws_rank_deltas_add(e->rank_deltas, e->delta, base, target, e->level, e->most_bytes, workers);
    e->n_from_view = ws_view_records_give(e->view_records, e->delta);
    ws_delta_encode(e->delta, &from, &to, e->level, e->most_bytes, workers, &e->stop);
    free(files);
}

enum given_up { SLOT_WANTED, TOO_LARGE, NO_ROOM, NO_MEMORY };

/* Why a delta was given up. A step with large changes makes a delta that no cache would keep. One that only
 * this cache is too small for costs the mounts whole pulls, and the operator can help that: it is told once of a model,
 * and so is what every step has. */
static void log_given_up(struct ws_agent *a, const struct job *e, const struct ws_delta_stats *f)
{
    static const struct {
        enum ws_log_level level;
        const char *text;
    } reasons[] = {
        [SLOT_WANTED] = {WS_LOG_INFO, "its slot was wanted for the next version"},
        [TOO_LARGE] = {WS_LOG_INFO, "it would be half as large as the version or more"},
        [NO_ROOM] = {WS_LOG_WARN, "it is larger than the room for deltas; mounts pull such versions whole; "
                                  "--delta-cache=SIZE makes room"},
        [NO_MEMORY] = {WS_LOG_WARN,
                       "there was no memory for it; mounts pull such versions whole; a smaller --memory=SIZE "
                       "leaves some"},
    };
    const struct ws_delta_link *l = ws_delta_link(e->delta);
    const uint64_t version_bytes = e->target->base.manifest->total_bytes;
    const bool over = f->bytes > e->most_bytes;
    const enum given_up why = atomic_load(&e->stop)                        ? SLOT_WANTED
                              : over && e->most_bytes == version_bytes / 2 ? TOO_LARGE
                              : over                                       ? NO_ROOM
                                                                           : NO_MEMORY;
    struct deltas *deltas = deltas_of(e->model);
    pthread_mutex_lock(&a->lock);
    const bool said = deltas->warned & 1U << why;
    deltas->warned |= 1U << why;
    pthread_mutex_unlock(&a->lock);
    ws_log(said ? WS_LOG_DEBUG : reasons[why].level, "agent",
           "no delta model=%s base=%" PRIu64 " version=%" PRIu64 " bytes=%" PRIu64 " version_bytes=%" PRIu64
           " room=%" PRIu64 ": %s",
           e->model->name, l->base.version, l->target.version, f->bytes, version_bytes, e->most_bytes,
           reasons[why].text);
}

static void encode(struct ws_agent *a, struct job *e)
{
    struct ws_delta_stats f;
    const uint64_t began = ws_clock_ns();
    const struct ws_delta_link *l = ws_delta_link(e->delta);
    make(e, encoder_of(a)->workers);
    ws_delta_stats(e->delta, &f);
    if (f.state != WS_DELTA_WHOLE)
        log_given_up(a, e, &f);
    else
        ws_features_delta_made(a, e->model, e->delta, &e->base->base, &e->target->base);
    if (f.state == WS_DELTA_WHOLE)
        ws_log(WS_LOG_INFO, "agent",
               "delta whole model=%s base=%" PRIu64 " version=%" PRIu64 " bytes=%" PRIu64 " changed=%" PRIu64
               " seconds=%.3f from_ranks=%zu from_view=%zu",
               e->model->name, l->base.version, l->target.version, f.bytes, f.n_changed,
               (double)(ws_clock_ns() - began) / 1e9, e->n_from_ranks, e->n_from_view);
    pthread_mutex_lock(&a->lock);
    struct deltas *deltas = deltas_of(e->model);
    *(f.state == WS_DELTA_WHOLE ? &deltas->n_made : &deltas->n_given_up) += 1;
    ws_features_encoded(a, e->model, e->delta, &e->target->base);
    encoder_of(a)->current = NULL;
    free_job(e);
    ws_encoder_trim(a);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void *encoder_main(void *arg)
{
    struct ws_agent *a = arg;
    struct encoder *enc = encoder_of(a);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct job *e = STAILQ_FIRST(&enc->waiting);
        if (!e) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&enc->waiting, entry);
        enc->current = e;
        pthread_mutex_unlock(&a->lock);
        encode(a, e);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- start and stop --- */

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct encoder *enc = encoder_of(a);
    STAILQ_INIT(&enc->waiting);
    if (!a->options.delta_cache_bytes)
        return 0;
    enc->workers = ws_workers_new(a->options.n_threads, a->options.nice);
    if (!enc->workers || ws_thread_start(&enc->thread, encoder_main, a) < 0) {
        ws_workers_free(enc->workers);
        enc->workers = NULL;
        return ws_error_set(err, EAGAIN, "cannot start the agent's threads");
    }
    return 0;
}

static void stop(struct ws_agent *a)
{
    struct encoder *enc = encoder_of(a);
    if (!enc->workers)
        return;
    pthread_mutex_lock(&a->lock);
    if (enc->current)
        atomic_store(&enc->current->stop, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(enc->thread, NULL);
    pthread_mutex_lock(&a->lock); /* of the leases */
    for (struct job *e; (e = STAILQ_FIRST(&enc->waiting));) {
        STAILQ_REMOVE_HEAD(&enc->waiting, entry);
        ws_delta_end(e->delta, WS_DELTA_GIVEN_UP);
        free_job(e);
    }
    struct ws_workers *workers = enc->workers;
    enc->workers = NULL; /* what is published from now on is not encoded */
    pthread_mutex_unlock(&a->lock);
    ws_workers_free(workers);
}

static void free_deltas(struct ws_agent_model *m)
{
    ws_delta_set_clear(&deltas_of(m)->set);
}

/* --- what readers ask --- */

json_t *ws_encoder_chain_json(const struct ws_agent_model *m, const struct ws_version_id *target)
{
    return ws_delta_set_chain_json(&deltas_of(m)->set, target);
}

int ws_encoder_deltas(void *self, const char *model, uint64_t version, const char *lineage, bool look,
                      json_t **out, struct ws_error *err)
{
    struct ws_agent *a = self;
    (void)look;
    *out = NULL;
    pthread_mutex_lock(&a->lock);
    const struct ws_agent_model *m = ws_agent_model_find(a, model);
    if (m) {
        const struct ws_version_id target = ws_version_id_make(version, lineage ? lineage : m->lineage);
        *out = ws_encoder_chain_json(m, &target);
    }
    pthread_mutex_unlock(&a->lock);
    if (!*out)
        *out = json_array();
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of deltas");
}

int ws_encoder_delta(void *self, const char *model, uint64_t version, const char *lineage,
                     const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                     struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_delta *d = NULL;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, model);
    if (m) {
        const struct ws_version_id target = ws_version_id_make(version, lineage ? lineage : m->lineage);
        const struct ws_version_id from =
            ws_version_id_make(base->version, base->lineage[0] ? base->lineage : target.lineage);
        d = ws_delta_set_find(&deltas_of(m)->set, &from, &target);
        if (!d)
            d = ws_provisional_find(m, &from, &target);
        if (level > deltas_of(m)->level)
            deltas_of(m)->level = level;
    }
    if (d) {
        *out = ws_delta_get(d);
        deltas_of(m)->n_ended_taken = deltas_of(m)->n_made + deltas_of(m)->n_given_up + 1;
    }
    pthread_mutex_unlock(&a->lock);
    return d ? 0
             : ws_error_set(err, ENOENT, "there is no delta from %" PRIu64 " to %s/%" PRIu64 " here",
                            base->version, model, version);
}

/* --- what is shown --- */

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    fprintf(f, "# HELP wsync_agent_delta_bytes Memory of deltas, in bytes.\n"
               "# TYPE wsync_agent_delta_bytes gauge\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f, "wsync_agent_delta_bytes{model=\"%s\"} %" PRIu64 "\n", m->name,
                ws_delta_set_bytes(&deltas_of(m)->set));
    fprintf(f, "# HELP wsync_agent_deltas_total Deltas, by result.\n"
               "# TYPE wsync_agent_deltas_total counter\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f,
                "wsync_agent_deltas_total{model=\"%s\",result=\"whole\"} %" PRIu64
                "\nwsync_agent_deltas_total{model=\"%s\",result=\"given-up\"} %" PRIu64 "\n",
                m->name, deltas_of(m)->n_made, m->name, deltas_of(m)->n_given_up);
}

const struct ws_agent_feature ws_feature_delta = {
    .agent_bytes = sizeof(struct encoder),
    .model_bytes = sizeof(struct deltas),
    .start = start,
    .stop = stop,
    .free = free_deltas,
    .published = enqueue,
    .metrics = put_metrics,
};
