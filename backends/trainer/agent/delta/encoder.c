/* Deltas: made in the background as soon as a version is published, of it and the one before, while both
 * slots are held. The holds are revocable: a trainer that wants the older slot gets it within a block's time,
 * and the delta is given up. What was made is kept within the delta cache, so that a mount that missed some
 * versions finds a chain. */
#include "backends/trainer/agent/delta/encoder.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/delta/encode.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MIN_ROOM_BYTES (1UL << 30)

struct ws_encoding {
    struct ws_encoding *next;
    struct ws_agent_model *model;
    struct ws_delta *delta;
    struct ws_slot_hold *base, *target;
    struct ws_rank_records *records; /* what ranks found out */
    size_t n_records;                /* how many of them were of use */
    uint64_t most;                   /* it is given up beyond */
    int level;
    atomic_bool stop;
};

uint64_t ws_agent_delta_room(const struct ws_agent *a)
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
    atomic_store(&((struct ws_encoding *)arg)->stop, true);
}

static struct ws_slot *slot_of(const struct ws_agent_model *m, uint64_t version, const char *run)
{
    for (unsigned i = 0; i < m->n_slots; i++)
        if (m->slots[i]->state == WS_SLOT_SERVED && m->slots[i]->version == version &&
            strcmp(m->slots[i]->run, run) == 0)
            return m->slots[i];
    return NULL;
}

static struct ws_delta_link link_of(const struct ws_slot *base, const struct ws_slot *target)
{
    struct ws_delta_link l = {.base = ws_mark_of(base->version, base->run),
                              .target = ws_mark_of(target->version, target->run)};
    memcpy(l.base_digest, base->manifest->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, target->manifest->digest, sizeof(l.target_digest));
    return l;
}

static void free_encoding(struct ws_encoding *e)
{
    if (e->base)
        ws_slot_drop(e->base);
    if (e->target)
        ws_slot_drop(e->target);
    ws_delta_put(e->delta);
    ws_rank_records_free(e->records);
    free(e);
}

/* Has the delta from the newest version to this one made. */
static void begin(struct ws_agent *a, struct ws_agent_model *ranks, struct ws_slot *target)
{
    struct ws_agent_model *m = ranks->owner;
    struct ws_slot *base = m->any ? slot_of(m, m->newest, m->run) : NULL;
    struct ws_encoding *e = a->encoders && base ? calloc(1, sizeof(*e)) : NULL, **last;
    struct ws_delta_link link;
    if (!e)
        return;
    link = link_of(base, target);
    e->model = m;
    e->most = ws_agent_delta_room(a);
    if (e->most > target->manifest->total_bytes / 2)
        e->most = target->manifest->total_bytes / 2;
    e->level = (int)m->level;
    m->level = 0; /* asked for again by who wants it still */
    e->base = ws_slot_take(base, "the delta to the next version", on_revoked, e);
    e->target = ws_slot_take(target, "the delta to this version", on_revoked, e);
    if (!e->base || !e->target || ws_delta_new(&e->delta, &link, target->manifest, NULL) < 0) {
        free_encoding(e);
        return;
    }
    ws_delta_set_add(&m->deltas, ws_delta_get(e->delta));
    e->records = target->records;
    target->records = NULL;
    for (last = &a->encodings; *last; last = &(*last)->next)
        ;
    *last = e;
}

/* Drops the oldest deltas of the model that has the most, until all fit. Under lock. */
static void trim(struct ws_agent *a)
{
    for (;;) {
        struct ws_agent_model *most = NULL;
        uint64_t total = 0, largest = 0;
        for (struct ws_agent_model *m = a->models; m; m = m->next) {
            uint64_t bytes = ws_delta_set_bytes(&m->deltas);
            total += bytes;
            if (bytes > largest) {
                largest = bytes;
                most = m;
            }
        }
        if (total <= ws_agent_delta_room(a) || !most)
            return;
        ws_delta_set_drop_oldest(&most->deltas);
    }
}

static struct ws_delta_side side_of(const struct ws_slot_hold *h, const unsigned char **files)
{
    for (size_t i = 0; i < h->base.manifest->n_files; i++)
        files[i] = h->base.regions[i] ? ws_region_data(h->base.regions[i]) : NULL;
    return (struct ws_delta_side){.manifest = h->base.manifest, .files = files};
}

/* Not under lock: the holds keep both sides. */
static void make(struct ws_agent *a, struct ws_encoding *e)
{
    const struct ws_manifest *base = e->base->base.manifest, *target = e->target->base.manifest;
    const unsigned char **files = calloc(base->n_files + target->n_files + 1, sizeof(*files));
    if (!files) {
        ws_delta_end(e->delta, WS_DELTA_GIVEN_UP);
        return;
    }
    struct ws_delta_side from = side_of(e->base, files), to = side_of(e->target, files + base->n_files);
    e->n_records = ws_rank_records_add(e->records, e->delta, base, target, e->level, e->most, a->encoders);
    ws_delta_make(e->delta, &from, &to, e->level, e->most, a->encoders, &e->stop);
    free(files);
}

/* Why a delta was given up. One that no cache could have kept is what a step of large changes looks like; one
 * that this cache did not keep costs the mounts whole pulls, and the operator can help it. */
static void say_given_up(const struct ws_encoding *e, const struct ws_delta_figures *f)
{
    const struct ws_delta_link *l = ws_delta_link(e->delta);
    const uint64_t version_bytes = e->target->base.manifest->total_bytes;
    const char *why = "there was no memory for it; mounts pull this version whole";
    enum ws_log_level level = WS_LOG_WARN;
    if (atomic_load(&e->stop)) {
        why = "its slot was wanted for the next version";
        level = WS_LOG_INFO;
    } else if (f->bytes > e->most && e->most == version_bytes / 2) {
        why = "it would be half as large as the version or more";
        level = WS_LOG_INFO;
    } else if (f->bytes > e->most) {
        why = "it is larger than the room for deltas; mounts pull this version whole; --delta-cache=SIZE "
              "makes room";
    }
    ws_log(level, "agent",
           "no delta model=%s base=%" PRIu64 " version=%" PRIu64 " bytes=%" PRIu64 " version_bytes=%" PRIu64
           " room=%" PRIu64 ": %s",
           e->model->name, l->base.version, l->target.version, f->bytes, version_bytes, e->most, why);
}

static void encode(struct ws_agent *a, struct ws_encoding *e)
{
    struct ws_delta_figures f;
    const uint64_t began = ws_clock_ns();
    const struct ws_delta_link *l = ws_delta_link(e->delta);
    make(a, e);
    ws_delta_figures(e->delta, &f);
    if (f.state != WS_DELTA_WHOLE)
        say_given_up(e, &f);
    else
        ws_log(WS_LOG_INFO, "agent",
               "delta whole model=%s base=%" PRIu64 " version=%" PRIu64 " bytes=%" PRIu64 " changed=%" PRIu64
               " seconds=%.3f from_ranks=%zu",
               e->model->name, l->base.version, l->target.version, f.bytes, f.n_changed,
               (double)(ws_clock_ns() - began) / 1e9, e->n_records);
    pthread_mutex_lock(&a->lock);
    if (f.state == WS_DELTA_WHOLE)
        e->model->deltas_made++;
    else
        e->model->deltas_given_up++;
    ws_features_encoded(a, e->model, e->delta, &e->target->base);
    a->encoding = NULL;
    free_encoding(e);
    trim(a);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void *encoder(void *arg)
{
    struct ws_agent *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct ws_encoding *e = a->encodings;
        if (!e) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        a->encodings = e->next;
        a->encoding = e;
        pthread_mutex_unlock(&a->lock);
        encode(a, e);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int start(struct ws_agent *a, struct ws_error *err)
{
    if (!a->options.delta_cache_bytes)
        return 0;
    a->encoders = ws_workers_new(a->options.n_threads, a->options.nice);
    if (!a->encoders || ws_thread_start(&a->encoder, encoder, a) < 0) {
        ws_workers_free(a->encoders);
        a->encoders = NULL;
        return ws_error_set(err, EAGAIN, "cannot start the agent's threads");
    }
    return 0;
}

static void stop(struct ws_agent *a)
{
    if (!a->encoders)
        return;
    pthread_mutex_lock(&a->lock);
    if (a->encoding)
        atomic_store(&a->encoding->stop, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->encoder, NULL);
    pthread_mutex_lock(&a->lock); /* of the holds */
    for (struct ws_encoding *e = a->encodings, *next; e; e = next) {
        next = e->next;
        ws_delta_end(e->delta, WS_DELTA_GIVEN_UP);
        free_encoding(e);
    }
    a->encodings = NULL;
    struct ws_workers *encoders = a->encoders;
    a->encoders = NULL; /* what is published from now on is not encoded */
    pthread_mutex_unlock(&a->lock);
    ws_workers_free(encoders);
}

static void free_deltas(struct ws_agent_model *m)
{
    ws_delta_set_clear(&m->deltas);
}

/* --- the catalog's part --- */

int ws_agent_deltas(void *self, const char *model, uint64_t version, const char *run, bool look, json_t **out,
                    struct ws_error *err)
{
    struct ws_agent *a = self;
    (void)look;
    *out = NULL;
    pthread_mutex_lock(&a->lock);
    const struct ws_agent_model *m = ws_agent_find(a, model);
    if (m) {
        const struct ws_mark target = ws_mark_of(version, run ? run : m->run);
        *out = ws_delta_set_leading_to(&m->deltas, &target);
    }
    pthread_mutex_unlock(&a->lock);
    if (!*out)
        *out = json_array();
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of deltas");
}

int ws_agent_delta(void *self, const char *model, uint64_t version, const char *run,
                   const struct ws_mark *base, unsigned level, struct ws_delta **out, struct ws_error *err)
{
    struct ws_agent *a = self;
    struct ws_delta *d = NULL;
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_find(a, model);
    if (m) {
        const struct ws_mark target = ws_mark_of(version, run ? run : m->run);
        const struct ws_mark from = ws_mark_of(base->version, base->run[0] ? base->run : target.run);
        d = ws_delta_set_find(&m->deltas, &from, &target);
        if (level > m->level)
            m->level = level;
    }
    if (d)
        *out = ws_delta_get(d);
    pthread_mutex_unlock(&a->lock);
    return d ? 0
             : ws_error_set(err, ENOENT, "there is no delta from %" PRIu64 " to %s/%" PRIu64 " here",
                            base->version, model, version);
}

/* --- what is shown --- */

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    fprintf(f, "# TYPE wsync_agent_delta_bytes gauge\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f, "wsync_agent_delta_bytes{model=\"%s\"} %" PRIu64 "\n", m->name,
                ws_delta_set_bytes(&m->deltas));
    fprintf(f, "# TYPE wsync_agent_deltas_total counter\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f,
                "wsync_agent_deltas_total{model=\"%s\",result=\"whole\"} %" PRIu64
                "\nwsync_agent_deltas_total{model=\"%s\",result=\"given-up\"} %" PRIu64 "\n",
                m->name, m->deltas_made, m->name, m->deltas_given_up);
}

const struct ws_agent_feature ws_feature_delta = {
    .start = start,
    .stop = stop,
    .free = free_deltas,
    .published = begin,
    .metrics = put_metrics,
};
