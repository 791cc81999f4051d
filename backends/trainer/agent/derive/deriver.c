/* Deriver: makes quantised views. On a thread of its own it takes the newest version of each view's source, makes the
 * view's version of that number out of it, and hands it to the finisher, so that everything else sees a model like any
 * other: it has no ranks, and its slots are laid out and used again by the rules of core/slots.h.
 *
 * Versions that the thread has no time for are left out, and so is one whose source the trainer takes back meanwhile. A
 * version that cannot be made is not tried again; the next one is. What was announced under a number keeps its bytes:
 * the state remembers the last one's digest. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/restorer.h"
#include "backends/trainer/agent/derive/derivation.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Of one --derive. */
struct view {
    const struct ws_agent_view *terms;
    char source[WS_MAX_NAME + 1];
    struct ws_derived known[WS_MAX_SLOTS]; /* the thread's: what the view's slots were made of */
    size_t n_known;
    /* --- guarded by the agent's lock --- */
    struct ws_version_id tried; /* the source's version that was looked at last */
    char why[WS_ERROR_TEXT];    /* it could not be made; empty: it was, or none was tried */
    uint64_t made, failed, given_up, bytes_done, bytes_kept;
    double seconds; /* of those that were made */
};

/* The agent's. */
struct deriver {
    pthread_t thread;
    bool runs;
    struct ws_workers *workers;
    struct view *views;
    struct ws_derivation *current; /* guarded by the agent's lock */
};

static struct deriver *deriver_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_derive];
}

/* --- what is to be made; under lock --- */

static bool has_version(const struct ws_agent_model *m, const struct ws_version_id *id)
{
    for (unsigned i = 0; i < m->n_slots; i++)
        if (m->slots[i]->state == WS_SLOT_SERVED && m->slots[i]->version == id->version &&
            strcmp(m->slots[i]->lineage, id->lineage) == 0)
            return true;
    return false;
}

/* The log has each reason once, and the status the last one. */
static void fail(struct view *v, const struct ws_version_id *id, const char *why)
{
    const bool again = strcmp(v->why, why) == 0;
    v->failed++;
    snprintf(v->why, sizeof(v->why), "%s", why);
    ws_log(again ? WS_LOG_DEBUG : WS_LOG_WARN, "agent",
           "no view model=%s version=%" PRIu64 " run=%s: %s; %s itself is served as ever", v->terms->name,
           id->version, id->lineage, why, v->source);
}

/* Numbers of a lineage go up, and after a restart nobody knows the bytes of those before the last. */
static bool is_late(const struct ws_agent_model *m, const struct ws_version_id *id)
{
    return (m->has_published && strcmp(m->lineage, id->lineage) == 0 && id->version < m->newest) ||
           (strcmp(m->derived.lineage, id->lineage) == 0 && id->version < m->derived.version);
}

/* A version that is to be made of this view; false: there is none. */
static bool is_due(struct ws_agent *a, struct view *v, struct ws_derivation *out)
{
    struct ws_agent_model *source = ws_agent_model_find(a, v->source);
    char why[WS_ERROR_TEXT] = "";
    if (!source || !source->has_published)
        return false;
    const bool spans = source->slot_owner && source->slot_owner != source;
    const struct ws_slot *s = spans ? NULL : ws_derivation_find_newest(source);
    if (!s && !spans)
        return false;
    const struct ws_version_id id =
        s ? ws_version_id_make(s->version, s->lineage) : ws_version_id_make(source->newest, source->lineage);
    if (ws_version_id_equal(&v->tried, &id))
        return false;
    struct ws_agent_model *m = ws_agent_model_find_or_add(a, v->terms->name);
    if (m && (m->writing || m->preparing)) /* the finisher has the version before */
        return false;
    v->tried = id;
    if (m && has_version(m, &id)) { /* out of the archive */
        v->why[0] = 0;
        return false;
    }
    if (!m)
        snprintf(why, sizeof(why), "there is no room for another model; at most %d", WS_MAX_MODELS);
    else if (spans)
        snprintf(why, sizeof(why),
                 "the trainer of %s spans nodes, and this agent has only its node's part of each tensor; a "
                 "mount has them whole: wsync mount -o derive=%s",
                 v->source, v->terms->name);
    else if (is_late(m, &id))
        snprintf(why, sizeof(why),
                 "a later version, %" PRIu64 ", was announced already; the trainer's next one is made",
                 m->newest);
    if (why[0]) {
        fail(v, &id, why);
        return false;
    }
    assert(m); /* or why would say so */
    *out = (struct ws_derivation){.agent = a,
                                  .source = source,
                                  .view = m,
                                  .terms = v->terms,
                                  .id = id,
                                  .workers = deriver_of(a)->workers,
                                  .known = v->known,
                                  .n_known = v->n_known};
    return true;
}

static struct view *next_view(struct ws_agent *a, struct ws_derivation *out)
{
    struct deriver *d = deriver_of(a);
    if (!ws_restorer_has_ended(a))
        return NULL;
    for (size_t i = 0; i < a->options.n_views; i++)
        if (is_due(a, &d->views[i], out))
            return &d->views[i];
    return NULL;
}

/* --- publishing --- */

static int find_digest(const struct ws_slot *s, char digest[33], struct ws_error *err)
{
    struct ws_manifest *m = NULL;
    if (ws_manifest_copy(s->manifest, &m) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a manifest");
    ws_manifest_seal(m);
    memcpy(digest, m->digest, sizeof(m->digest));
    ws_manifest_free(m);
    return 0;
}

/* Under lock: the finisher announces it, or the state file says that it may have. */
static int hand_over(struct ws_derivation *d, const char *digest, struct ws_error *err)
{
    struct ws_agent_model *m = d->view;
    struct ws_slot *s = d->slot;
    if (ws_version_id_equal(&m->derived, &d->id) && strcmp(m->derived_digest, digest) != 0)
        return ws_error_set(
            err, EEXIST,
            "%s/%" PRIu64 " was announced with the digest %s before this agent started, and would have "
            "%s now: another release made it, or other --derive-ignore; the trainer's next version is "
            "made",
            m->name, d->id.version, m->derived_digest, digest);
    m->derived = d->id;
    memcpy(m->derived_digest, digest, sizeof(m->derived_digest));
    m->writing = s;
    m->writing_version = d->id.version;
    s->state = WS_SLOT_HASHING;
    pthread_cond_broadcast(&d->agent->changed);
    while (m->writing == s && !atomic_load(&d->agent->stop))
        pthread_cond_wait(&d->agent->changed, &d->agent->lock);
    if (m->writing == s)
        return ws_error_set(err, ECANCELED, "the agent is stopping");
    return ws_version_id_equal(&m->given_up, &d->id) ? ws_error_set(err, EIO, "%s", m->why) : 0;
}

/* What the view's slots hold is remembered, and no more. */
static void remember(struct view *v, const struct ws_agent_model *m, struct ws_derived *made)
{
    size_t kept = 0;
    for (size_t i = 0; i < v->n_known; i++) {
        bool held = false;
        for (unsigned k = 0; k < m->n_slots; k++)
            held = held || ws_version_id_equal(&m->slots[k]->content, &v->known[i].id);
        if (held && kept + 1 < WS_MAX_SLOTS)
            v->known[kept++] = v->known[i];
        else
            ws_derived_reset(&v->known[i]);
    }
    v->known[kept++] = *made;
    v->n_known = kept;
    *made = (struct ws_derived){0};
}

static void conclude(struct view *v, struct ws_derivation *d, int rc, uint64_t began,
                     const struct ws_error *err)
{
    const double seconds = (double)(ws_clock_ns() - began) / 1e9;
    if (rc == -ESTALE) {
        v->given_up++;
        ws_log(WS_LOG_INFO, "agent", "view given up model=%s version=%" PRIu64 " seconds=%.3f: %s",
               d->view->name, d->id.version, seconds, err->text);
    } else if (rc == 0) {
        v->made++;
        v->seconds += seconds;
        v->bytes_done += d->bytes_done;
        v->bytes_kept += d->bytes_kept;
        v->why[0] = 0;
        remember(v, d->view, &d->made);
        ws_log(WS_LOG_INFO, "agent",
               "view made model=%s version=%" PRIu64 " run=%s quantised_bytes=%" PRIu64 " kept_bytes=%" PRIu64
               " seconds=%.3f",
               d->view->name, d->id.version, d->id.lineage, d->bytes_done, d->bytes_kept, seconds);
    } else if (rc != -ECANCELED && rc != -ESHUTDOWN) {
        fail(v, &d->id, err->text);
    }
}

/* Under lock, which it leaves meanwhile. */
static void derive(struct ws_agent *a, struct view *v, struct ws_derivation *d)
{
    struct ws_error err = {0};
    const uint64_t began = ws_clock_ns();
    char digest[33] = "";
    d->view->slot_owner = d->view;
    d->view->preparing = true;
    d->view->writing_version = d->id.version;
    deriver_of(a)->current = d;
    pthread_mutex_unlock(&a->lock);
    int rc = ws_derivation_run(d, &err);
    if (rc == 0)
        rc = find_digest(d->slot, digest, &err);
    pthread_mutex_lock(&a->lock);
    deriver_of(a)->current = NULL;
    d->view->preparing = false;
    if (rc == 0)
        rc = hand_over(d, digest, &err);
    if (rc < 0 && d->slot && d->slot->state == WS_SLOT_WRITING) { /* nobody else has it */
        ws_slot_clear(d->slot);
        d->slot->state = WS_SLOT_FREE;
    }
    conclude(v, d, rc, began, &err);
    ws_derived_reset(&d->made);
    pthread_cond_broadcast(&a->changed);
}

static void *deriver_main(void *arg)
{
    struct ws_agent *a = arg;
    struct ws_derivation d;
    ws_thread_nice(a->options.nice);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct view *v = next_view(a, &d);
        if (v)
            derive(a, v, &d);
        else
            pthread_cond_wait(&a->changed, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- start and stop --- */

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct deriver *d = deriver_of(a);
    const size_t n = a->options.n_views;
    if (n == 0)
        return 0;
    if (a->options.primary)
        return ws_error_set(
            err, EINVAL,
            "--derive cannot be given with --primary: the trainer spans nodes, and this agent has only "
            "its node's part of each tensor; a mount has them whole: wsync mount -o derive=%s",
            a->options.views[0].name);
    d->views = calloc(n, sizeof(*d->views));
    d->workers = ws_workers_new(a->options.n_threads, a->options.nice);
    if (!d->views || !d->workers)
        return ws_error_set(err, ENOMEM, "no memory for views");
    for (size_t i = 0; i < n; i++) {
        d->views[i].terms = &a->options.views[i];
        (void)ws_name_is_view(a->options.views[i].name, d->views[i].source, NULL);
    }
    d->runs = ws_thread_start(&d->thread, deriver_main, a) == 0;
    return d->runs ? 0 : ws_error_set(err, EAGAIN, "cannot start the agent's threads");
}

static void stop(struct ws_agent *a)
{
    struct deriver *d = deriver_of(a);
    if (!d->runs)
        return;
    pthread_mutex_lock(&a->lock);
    if (d->current)
        atomic_store(&d->current->stop, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(d->thread, NULL);
    d->runs = false;
}

static void end(struct ws_agent *a)
{
    struct deriver *d = deriver_of(a);
    for (size_t i = 0; d->views && i < a->options.n_views; i++)
        for (size_t k = 0; k < d->views[i].n_known; k++)
            ws_derived_reset(&d->views[i].known[k]);
    free(d->views);
    ws_workers_free(d->workers);
}

/* --- what is shown; under lock --- */

static const struct view *find_view(const struct ws_agent *a, const char *name)
{
    const struct deriver *d = deriver_of(a);
    for (size_t i = 0; d->views && i < a->options.n_views; i++)
        if (strcmp(d->views[i].terms->name, name) == 0)
            return &d->views[i];
    return NULL;
}

static void put_model_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    const struct view *v = find_view(a, m->name);
    if (v)
        json_object_set_new(out, "view",
                            json_pack("{s:s,s:s,s:I,s:I,s:I,s:f,s:s}", "source", v->source, "recipe",
                                      v->terms->recipe->name, "made", (json_int_t)v->made, "failed",
                                      (json_int_t)v->failed, "given_up", (json_int_t)v->given_up, "seconds",
                                      v->seconds, "why", v->why));
}

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    const struct deriver *d = deriver_of(a);
    if (!d->views)
        return;
    fprintf(f, "# HELP wsync_agent_views_total Versions of views, by result.\n"
               "# TYPE wsync_agent_views_total counter\n");
    for (size_t i = 0; i < a->options.n_views; i++) {
        const struct view *v = &d->views[i];
        const char *name = v->terms->name;
        fprintf(f,
                "wsync_agent_views_total{model=\"%s\",result=\"made\"} %" PRIu64 "\n"
                "wsync_agent_views_total{model=\"%s\",result=\"failed\"} %" PRIu64 "\n"
                "wsync_agent_views_total{model=\"%s\",result=\"given-up\"} %" PRIu64 "\n",
                name, v->made, name, v->failed, name, v->given_up);
    }
    fprintf(f, "# HELP wsync_agent_view_seconds_total Time that was spent on views.\n"
               "# TYPE wsync_agent_view_seconds_total counter\n");
    for (size_t i = 0; i < a->options.n_views; i++)
        fprintf(f, "wsync_agent_view_seconds_total{model=\"%s\"} %.6f\n", d->views[i].terms->name,
                d->views[i].seconds);
    fprintf(f, "# HELP wsync_agent_view_bytes_total Bytes of the sources of views, by what became of them.\n"
               "# TYPE wsync_agent_view_bytes_total counter\n");
    for (size_t i = 0; i < a->options.n_views; i++) {
        const struct view *v = &d->views[i];
        fprintf(f,
                "wsync_agent_view_bytes_total{model=\"%s\",how=\"quantised\"} %" PRIu64 "\n"
                "wsync_agent_view_bytes_total{model=\"%s\",how=\"kept\"} %" PRIu64 "\n",
                v->terms->name, v->bytes_done, v->terms->name, v->bytes_kept);
    }
}

const struct ws_agent_feature ws_feature_derive = {
    .agent_bytes = sizeof(struct deriver),
    .start = start,
    .stop = stop,
    .end = end,
    .model_status = put_model_status,
    .metrics = put_metrics,
};
