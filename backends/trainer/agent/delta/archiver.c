/* Archiver: writes what is published to the archive, in a folder or a bucket, from a thread of its own: every N-th version whole, an
 * anchor, and deltas between, each as soon as it is made.
 *
 * An anchor is read out of its slot block by block, under a lease that its revocation ends at once, whatever
 * the disk does at that moment: the trainer waits for the copy of one block at most. What was begun is then
 * removed, and the next version becomes the anchor. The same follows where the disk refuses anything. A version whose
 * delta was given up is written whole while a slot has it. One that was to be an anchor and was not still comes as a
 * delta, where that is made and its base is in the archive. */
#include "backends/trainer/agent/delta/archiver.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/dir/archive.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define DEFAULT_EVERY 10
#define DEFAULT_KEEP  3
#define LOOK_NS       (100 * WS_MS_NS) /* whether a version that waits for its signature is given up */
#define END_S         5 /* that an end waits for the store: what is cut then, the next start's recovery sees to */

/* One version to be written. */
struct job {
    STAILQ_ENTRY(job) entry;
    struct ws_agent *agent;
    struct ws_agent_model *model;
    struct ws_manifest *manifest; /* a copy, as is the json: the slot may go at any time */
    char *json;
    size_t json_bytes;
    struct ws_delta *delta; /* counted; NULL: written whole */
    pthread_mutex_t reading;
    struct ws_slot_lease *lease; /* changed under the agent's lock and reading; NULL: revoked */
    atomic_bool stop;
};

/* The agent's. Guarded by its lock once the thread runs. */
struct archiver {
    pthread_t thread;
    bool runs, has_ended;           /* the thread */
    struct ws_archive *archive;     /* NULL: nothing is archived */
    atomic_bool own_cut, *cut;      /* ends all calls of the store: its start's flag, or an own one */
    STAILQ_HEAD(jobs, job) waiting; /* first come first */
    struct job *current;            /* the thread's; NULL: none */
};

/* How far the archive of a model is. Under lock. */
struct progress {
    struct ws_version_id last_published; /* and meant for the archive; no run: nothing yet */
    struct ws_version_id anchor;         /* the last one that was to be written whole */
    unsigned n_since_anchor;             /* versions */
    bool anchor_due;                     /* a link is missing: the next version is written whole */
    uint64_t newest;                     /* that is on the disk */
    uint64_t n_anchors, n_deltas, n_given_up, n_failed;
};

static struct archiver *archiver_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_archive];
}

static struct progress *progress_of(const struct ws_agent_model *m)
{
    return m->feature_state[WS_FEATURE_archive];
}

/* --- the list; under lock --- */

static void free_job(struct job *j)
{
    if (j->lease)
        ws_slot_lease_free(j->lease);
    ws_delta_put(j->delta);
    ws_manifest_free(j->manifest);
    free(j->json);
    pthread_mutex_destroy(&j->reading);
    free(j);
}

/* NULL: no memory. */
static struct job *enqueue(struct ws_agent *a, struct ws_agent_model *m, const struct ws_manifest *manifest,
                           const char *json, size_t json_bytes)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return NULL;
    pthread_mutex_init(&j->reading, NULL);
    j->agent = a;
    j->model = m;
    j->json = malloc(json_bytes + 1);
    j->json_bytes = json_bytes;
    if (!j->json || ws_manifest_copy(manifest, &j->manifest) < 0) {
        free_job(j);
        return NULL;
    }
    memcpy(j->json, json, json_bytes);
    STAILQ_INSERT_TAIL(&archiver_of(a)->waiting, j, entry);
    pthread_cond_broadcast(&a->changed);
    return j;
}

/* The archive lacks a version: the next one is written whole, unless a later one is to be already. */
static void require_anchor(struct progress *st, const struct ws_manifest *lacking)
{
    if (strcmp(st->anchor.lineage, lacking->lineage) != 0 || st->anchor.version <= lacking->version)
        st->anchor_due = true;
}

static void on_revoked(void *arg)
{
    struct job *j = arg;
    atomic_store(&j->stop, true);
    require_anchor(progress_of(j->model), j->manifest);
    pthread_mutex_lock(&j->reading); /* one block's copy */
    ws_slot_lease_free(j->lease);
    j->lease = NULL;
    pthread_mutex_unlock(&j->reading);
}

static void add_whole(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    struct progress *st = progress_of(m);
    struct job *j = enqueue(a, m, s->manifest, s->json, s->json_bytes);
    if (j)
        j->lease = ws_slot_lease_new(s, "the archive", on_revoked, j);
    if (j && !j->lease)
        atomic_store(&j->stop, true);
    if (strcmp(st->anchor.lineage, s->lineage) == 0 && st->anchor.version > s->version)
        return; /* a later one is whole, too */
    st->n_since_anchor = 0;
    st->anchor = ws_version_id_make(s->version, s->lineage);
    st->anchor_due = !j || !j->lease;
}

void ws_archiver_restored(struct ws_agent_model *m, const struct ws_version_id *version,
                          const struct ws_version_id *anchor, unsigned depth)
{
    struct progress *st = progress_of(m);
    if (st->last_published.lineage[0])
        return; /* the trainer was quicker */
    st->last_published = *version;
    st->anchor = *anchor;
    st->n_since_anchor = depth;
    st->newest = version->version;
}

static void published(struct ws_agent *a, struct ws_agent_model *ranks, struct ws_slot *s)
{
    struct ws_agent_model *m = ranks->slot_owner;
    struct progress *st = progress_of(m);
    if (!archiver_of(a)->archive)
        return;
    bool follows = strcmp(st->last_published.lineage, s->lineage) == 0;
    st->last_published = ws_version_id_make(s->version, s->lineage);
    if (!follows || st->anchor_due || !a->options.delta_cache_bytes || /* then there are no deltas */
        ++st->n_since_anchor >= a->options.archive_every)
        add_whole(a, m, s);
}

static uint64_t waiting_bytes(const struct ws_agent *a)
{
    uint64_t bytes = 0;
    for (const struct job *j = STAILQ_FIRST(&archiver_of(a)->waiting); j; j = STAILQ_NEXT(j, entry)) {
        struct ws_delta_stats f = {0};
        if (j->delta)
            ws_delta_stats(j->delta, &f);
        bytes += f.bytes;
    }
    return bytes;
}

static void encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                    const struct ws_lease *target)
{
    struct progress *st = progress_of(m);
    struct job *j = NULL;
    struct ws_delta_stats f;
    if (!archiver_of(a)->archive)
        return;
    ws_delta_stats(d, &f);
    /* Deltas that wait for a slow disk are bounded like those that are kept for mounts. */
    if (f.state == WS_DELTA_WHOLE && waiting_bytes(a) + f.bytes <= ws_encoder_cache_limit(a))
        j = enqueue(a, m, target->manifest, target->manifest_json, target->manifest_json_bytes);
    if (j)
        j->delta = ws_delta_get(d);
    const struct ws_version_id id = ws_version_id_make(target->manifest->version, target->manifest->lineage);
    if (j || ws_version_id_equal(&st->anchor, &id)) /* where its version was to be whole it is not needed */
        return;
    /* Where each step changes most of a model, as of an adapter, no version has a delta. */
    struct ws_slot *s = f.state == WS_DELTA_GIVEN_UP ? ws_slots_find(m, &id) : NULL;
    if (s) {
        add_whole(a, m, s);
        return;
    }
    st->n_given_up++;
    st->anchor_due = true;
    ws_log(WS_LOG_INFO, "agent",
           "not archived model=%s version=%" PRIu64 ": %s; the next version is written whole", m->name,
           target->manifest->version,
           f.state == WS_DELTA_WHOLE ? "the archive is slower than the trainer" : "there is no delta to it");
}

/* --- writing; not under lock --- */

static int copy_block(void *arg, size_t file, size_t block, unsigned char *dst, struct ws_error *err)
{
    struct job *j = arg;
    int rc = 0;
    pthread_mutex_lock(&j->reading);
    if (j->lease)
        ws_copy(dst, ws_region_data(j->lease->base.regions[file]) + block * WS_BLOCK_BYTES,
                ws_manifest_block_bytes(&j->manifest->files[file], block));
    else
        rc = ws_error_set(err, ECANCELED, "its slot was wanted");
    pthread_mutex_unlock(&j->reading);
    return rc;
}

/* Waits until the version is signed, where this agent signs: a version without its signature is no use to a mount that
 * wants one. Only an anchor's takes time. */
static int get_signature(void *arg, char **text, struct ws_error *err)
{
    struct job *j = arg;
    struct ws_agent *a = j->agent;
    const struct ws_version_id target = ws_version_id_make(j->manifest->version, j->manifest->lineage);
    const struct ws_version_id *base = j->delta ? &ws_delta_link(j->delta)->base : NULL;
    int rc;
    pthread_mutex_lock(&a->lock);
    while ((rc = ws_features_signature(a, j->model, &target, base, text)) == -EAGAIN &&
           !atomic_load(&j->stop) && !atomic_load(&a->stop))
        (void)ws_agent_wait(a, ws_clock_ns() + LOOK_NS);
    pthread_mutex_unlock(&a->lock);
    if (rc == -ENOENT)
        return 0;
    if (rc == -EAGAIN || rc == -ESTALE)
        return ws_error_set(err, ECANCELED, "its slot was wanted before it was signed");
    return rc < 0 ? ws_error_set(err, -rc, "no memory for a signature") : 0;
}

/* *depth: how many deltas lead to it from its anchor. -EEXIST: the archive has it already. */
static int write_version(struct ws_agent *a, struct job *j, unsigned *depth, struct ws_error *err)
{
    const struct ws_archive_version v = {j->manifest, j->json, j->json_bytes};
    const struct ws_archive_hooks work = {
        .block = copy_block, .signature = get_signature, .arg = j, .stop = &j->stop};
    struct ws_archive *to = archiver_of(a)->archive;
    int rc = 0;
    if (ws_archive_has(to, j->manifest, depth))
        return -EEXIST;
    if (j->delta)
        return ws_archive_add_delta(to, &v, j->delta, &work, err);
    rc = ws_archive_add(to, &v, &work, err);
    if (rc == 0 && ws_archive_prune(to, j->model->name, a->options.archive_keep, err) < 0)
        ws_log(WS_LOG_WARN, "agent", "what the archive need not keep is still there model=%s: %s",
               j->model->name, err->text);
    return rc;
}

/* The slot was wanted, the base was not written, or this version cannot be a delta. */
static bool is_expected(int rc)
{
    return rc == -ECANCELED || rc == -ENOENT || rc == -EINVAL || rc == -E2BIG;
}

/* Under lock. */
static void record_result(struct ws_agent *a, struct job *j, int rc, unsigned depth)
{
    struct progress *st = progress_of(j->model);
    if (rc == -EEXIST) {
        if (!j->delta) /* a restarted agent published the version again */
            st->n_since_anchor = depth < a->options.archive_every ? depth : a->options.archive_every;
    } else if (rc == 0) {
        *(j->delta ? &st->n_deltas : &st->n_anchors) += 1;
    } else {
        *(is_expected(rc) ? &st->n_given_up : &st->n_failed) += 1;
        require_anchor(st, j->manifest);
    }
    if ((rc == 0 || rc == -EEXIST) && strcmp(j->manifest->lineage, st->last_published.lineage) == 0)
        st->newest = j->manifest->version;
}

static void archive(struct ws_agent *a, struct job *j)
{
    const uint64_t began = ws_clock_ns();
    const struct ws_manifest *m = j->manifest;
    struct ws_delta_stats f = {.bytes = m->total_bytes};
    struct ws_error err = {0};
    unsigned depth = 0;
    int rc = write_version(a, j, &depth, &err);
    if (j->delta)
        ws_delta_stats(j->delta, &f);
    if (rc == 0)
        ws_log(WS_LOG_INFO, "agent",
               "archived %s model=%s version=%" PRIu64 " bytes=%" PRIu64 " seconds=%.3f",
               j->delta ? "delta" : "whole", m->model, m->version, f.bytes,
               (double)(ws_clock_ns() - began) / 1e9);
    else if (is_expected(rc))
        ws_log(WS_LOG_INFO, "agent",
               "not archived model=%s version=%" PRIu64 ": %s; the next version is written whole", m->model,
               m->version, rc == -ECANCELED ? "its slot was wanted" : err.text);
    else if (rc != -EEXIST)
        ws_log(WS_LOG_WARN, "agent",
               "cannot archive model=%s version=%" PRIu64
               " errno=%s: %s; it is tried again with the next version",
               m->model, m->version, ws_errno_name(-rc), err.text);
    pthread_mutex_lock(&a->lock);
    record_result(a, j, rc, depth);
    archiver_of(a)->current = NULL;
    free_job(j);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void *archiver_main(void *arg)
{
    struct ws_agent *a = arg;
    struct archiver *ar = archiver_of(a);
    ws_thread_nice(a->options.nice);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct job *j = STAILQ_FIRST(&ar->waiting);
        if (!j) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&ar->waiting, entry);
        ar->current = j;
        pthread_mutex_unlock(&a->lock);
        archive(a, j);
        pthread_mutex_lock(&a->lock);
    }
    for (struct job *j; (j = STAILQ_FIRST(&ar->waiting));) {
        STAILQ_REMOVE_HEAD(&ar->waiting, entry);
        ws_log(WS_LOG_INFO, "agent", "not archived model=%s version=%" PRIu64 ": the agent is stopping",
               j->model->name, j->manifest->version);
        free_job(j);
    }
    struct ws_archive *archive = ar->archive;
    ar->archive = NULL; /* what is published from now on is not archived */
    pthread_mutex_unlock(&a->lock);
    ws_archive_close(archive); /* gives it back, which the store has to answer */
    pthread_mutex_lock(&a->lock);
    ar->has_ended = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- start and stop --- */

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct archiver *ar = archiver_of(a);
    struct ws_archive *archive = NULL;
    STAILQ_INIT(&ar->waiting);
    if (!a->options.archive)
        return 0;
    if (a->options.archive_every == 0)
        a->options.archive_every = DEFAULT_EVERY;
    if (a->options.archive_keep == 0)
        a->options.archive_keep = DEFAULT_KEEP;
    struct ws_agent_start *start = a->options.start;
    ar->cut = start ? &start->stop : &ar->own_cut;
    const struct ws_archive_store_options options = {.insecure = a->options.archive_insecure,
                                                     .stop = ar->cut};
    if (start)
        atomic_store(&start->waits_for, a->options.archive);
    int rc = ws_archive_open(&archive, a->options.archive, &options, err);
    if (start)
        atomic_store(&start->waits_for, NULL);
    if (rc < 0)
        return rc;
    ar->archive = archive;
    if (ws_thread_start(&ar->thread, archiver_main, a) < 0) {
        ws_archive_close(archive);
        ar->archive = NULL;
        return ws_error_set(err, EAGAIN, "cannot start the archive's thread");
    }
    ar->runs = true;
    return 0;
}

static void stop(struct ws_agent *a)
{
    struct archiver *ar = archiver_of(a);
    if (!ar->runs)
        return;
    pthread_mutex_lock(&a->lock);
    if (ar->current)
        atomic_store(&ar->current->stop, true);
    pthread_cond_broadcast(&a->changed);
    const uint64_t end = ws_clock_ns() + END_S * 1000 * WS_MS_NS;
    while (!ar->has_ended && ws_cond_wait_until(&a->changed, &a->lock, end) == 0)
        ;
    if (!ar->has_ended) {
        ws_log(WS_LOG_WARN, "agent", "the archive %s has not answered for %d s: the agent ends without it",
               a->options.archive, END_S);
        atomic_store(ar->cut, true);
    }
    pthread_mutex_unlock(&a->lock);
    pthread_join(ar->thread, NULL);
}

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    if (!archiver_of(a)->archive)
        return;
    fprintf(f, "# HELP wsync_agent_archived_total Versions for the archive, by result.\n"
               "# TYPE wsync_agent_archived_total counter\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next) {
        const struct progress *s = progress_of(m);
        fprintf(f,
                "wsync_agent_archived_total{model=\"%s\",result=\"whole\"} %" PRIu64
                "\nwsync_agent_archived_total{model=\"%s\",result=\"delta\"} %" PRIu64
                "\nwsync_agent_archived_total{model=\"%s\",result=\"given-up\"} %" PRIu64
                "\nwsync_agent_archived_total{model=\"%s\",result=\"failed\"} %" PRIu64 "\n",
                m->name, s->n_anchors, m->name, s->n_deltas, m->name, s->n_given_up, m->name, s->n_failed);
    }
    fprintf(f, "# HELP wsync_agent_archived_version The newest version in the archive.\n"
               "# TYPE wsync_agent_archived_version gauge\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f, "wsync_agent_archived_version{model=\"%s\"} %" PRIu64 "\n", m->name,
                progress_of(m)->newest);
}

const struct ws_agent_feature ws_feature_archive = {
    .agent_bytes = sizeof(struct archiver),
    .model_bytes = sizeof(struct progress),
    .start = start,
    .stop = stop,
    .published = published,
    .encoded = encoded,
    .metrics = put_metrics,
};
