/* The archive on the trainer's side: a thread writes what is published, every N-th version whole, deltas
 * between, as soon as each is made. A version that is written whole is read out of its slot block by block,
 * under a hold that its revocation ends at once, whatever the disk does at that moment: the trainer waits for
 * the copy of one block at most. What was begun is then removed, and the next version is written whole; so it
 * is after a delta that was given up, and after anything that a disk refuses. A version that was to be
 * written whole and was not still comes as a delta, where that is made and its base is there. */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/dir/archive.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_EVERY 10
#define DEFAULT_KEEP  3

struct ws_archiving {
    struct ws_archiving *next;
    struct ws_agent_model *model;
    struct ws_manifest *manifest; /* a copy, as is the json: the slot may go at any time */
    char *json;
    size_t json_bytes;
    struct ws_delta *delta; /* counted; NULL: written whole */
    pthread_mutex_t reading;
    struct ws_slot_hold *hold; /* changed under the agent's lock and reading; NULL: revoked */
    atomic_bool stop;
};

/* --- the list; under lock --- */

static void free_archiving(struct ws_archiving *j)
{
    if (j->hold)
        ws_slot_drop(j->hold);
    ws_delta_put(j->delta);
    ws_manifest_free(j->manifest);
    free(j->json);
    pthread_mutex_destroy(&j->reading);
    free(j);
}

/* NULL: no memory. */
static struct ws_archiving *add(struct ws_agent *a, struct ws_agent_model *m,
                                const struct ws_manifest *manifest, const char *json, size_t json_bytes)
{
    struct ws_archiving *j = calloc(1, sizeof(*j)), **last;
    if (!j)
        return NULL;
    pthread_mutex_init(&j->reading, NULL);
    j->model = m;
    j->json = malloc(json_bytes + 1);
    j->json_bytes = json_bytes;
    if (!j->json || ws_manifest_copy(manifest, &j->manifest) < 0) {
        free_archiving(j);
        return NULL;
    }
    memcpy(j->json, json, json_bytes);
    for (last = &a->archivings; *last; last = &(*last)->next)
        ;
    *last = j;
    pthread_cond_broadcast(&a->changed);
    return j;
}

/* A version is lacking: the next one is written whole, unless a later one already is to be. */
static void ask_anchor(struct ws_archive_state *st, const struct ws_manifest *lacking)
{
    if (strcmp(st->anchor.run, lacking->run) != 0 || st->anchor.version <= lacking->version)
        st->anchor_due = true;
}

static void on_revoked(void *arg)
{
    struct ws_archiving *j = arg;
    atomic_store(&j->stop, true);
    ask_anchor(&j->model->archive, j->manifest);
    pthread_mutex_lock(&j->reading); /* one block's copy */
    ws_slot_drop(j->hold);
    j->hold = NULL;
    pthread_mutex_unlock(&j->reading);
}

static void add_whole(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    struct ws_archiving *j = add(a, m, s->manifest, s->json, s->json_bytes);
    if (j)
        j->hold = ws_slot_take(s, "the archive", on_revoked, j);
    if (j && !j->hold)
        atomic_store(&j->stop, true);
    m->archive.since = 0;
    m->archive.anchor = ws_mark_of(s->version, s->run);
    m->archive.anchor_due = !j || !j->hold;
}

static void published(struct ws_agent *a, struct ws_agent_model *ranks, struct ws_slot *s)
{
    struct ws_agent_model *m = ranks->owner;
    struct ws_archive_state *st = &m->archive;
    if (!a->archive)
        return;
    bool follows = strcmp(st->last.run, s->run) == 0;
    st->last = ws_mark_of(s->version, s->run);
    if (!follows || st->anchor_due || ++st->since >= a->options.archive_every)
        add_whole(a, m, s);
}

static uint64_t waiting_bytes(const struct ws_agent *a)
{
    uint64_t bytes = 0;
    for (const struct ws_archiving *j = a->archivings; j; j = j->next) {
        struct ws_delta_figures f = {0};
        if (j->delta)
            ws_delta_figures(j->delta, &f);
        bytes += f.bytes;
    }
    return bytes;
}

static void encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                    const struct ws_hold *target)
{
    struct ws_archive_state *st = &m->archive;
    struct ws_archiving *j = NULL;
    struct ws_delta_figures f;
    if (!a->archive)
        return;
    ws_delta_figures(d, &f);
    /* Deltas that wait for a slow disk are bounded like those that are kept for mounts. */
    if (f.state == WS_DELTA_WHOLE && waiting_bytes(a) + f.bytes <= ws_agent_delta_room(a))
        j = add(a, m, target->manifest, target->manifest_json, target->manifest_json_bytes);
    if (j)
        j->delta = ws_delta_get(d);
    if (j || st->since == 0) /* where its version was to be whole it is not needed */
        return;
    st->given_up++;
    st->anchor_due = true;
    ws_log(WS_LOG_INFO, "agent",
           "not archived model=%s version=%" PRIu64 ": %s; the next version is written whole", m->name,
           target->manifest->version,
           f.state == WS_DELTA_WHOLE ? "the archive's disk is slower than the trainer"
                                     : "there is no delta to it");
}

/* --- writing; not under lock --- */

static int copy_block(void *arg, size_t file, size_t block, unsigned char *dst, struct ws_error *err)
{
    struct ws_archiving *j = arg;
    int rc = 0;
    pthread_mutex_lock(&j->reading);
    if (j->hold)
        ws_copy(dst, ws_region_data(j->hold->base.regions[file]) + block * WS_BLOCK_BYTES,
                ws_block_len(&j->manifest->files[file], block));
    else
        rc = ws_error_set(err, ECANCELED, "its slot was wanted");
    pthread_mutex_unlock(&j->reading);
    return rc;
}

/* *depth: of deltas on its anchor. */
static int write_it(struct ws_agent *a, struct ws_archiving *j, unsigned *depth, struct ws_error *err)
{
    const struct ws_archive_version v = {j->manifest, j->json, j->json_bytes};
    const struct ws_archive_work work = {.block = copy_block, .arg = j, .stop = &j->stop};
    int rc = 0;
    if (ws_archive_has(a->archive, j->manifest, depth))
        return -EEXIST;
    if (j->delta)
        return ws_archive_add_delta(a->archive, &v, j->delta, &work, err);
    rc = ws_archive_add(a->archive, &v, &work, err);
    if (rc == 0 && ws_archive_keep(a->archive, j->model->name, a->options.archive_keep, err) < 0)
        ws_log(WS_LOG_WARN, "agent", "what the archive need not keep is still there model=%s: %s",
               j->model->name, err->text);
    return rc;
}

/* Its slot was wanted; its base was not written; it cannot be a delta. */
static bool is_no_trouble(int rc)
{
    return rc == -ECANCELED || rc == -ENOENT || rc == -EINVAL || rc == -E2BIG;
}

/* Under lock. */
static void note(struct ws_agent *a, struct ws_archiving *j, int rc, unsigned depth)
{
    struct ws_archive_state *st = &j->model->archive;
    if (rc == -EEXIST) {
        if (!j->delta) /* the agent was started anew and the version published again */
            st->since = depth < a->options.archive_every ? depth : a->options.archive_every;
    } else if (rc == 0) {
        *(j->delta ? &st->deltas : &st->anchors) += 1;
    } else {
        *(is_no_trouble(rc) ? &st->given_up : &st->failed) += 1;
        ask_anchor(st, j->manifest);
    }
    if ((rc == 0 || rc == -EEXIST) && strcmp(j->manifest->run, st->last.run) == 0)
        st->newest = j->manifest->version;
}

static void archive(struct ws_agent *a, struct ws_archiving *j)
{
    const uint64_t began = ws_clock_ns();
    const struct ws_manifest *m = j->manifest;
    struct ws_delta_figures f = {.bytes = m->total_bytes};
    struct ws_error err = {0};
    unsigned depth = 0;
    int rc = write_it(a, j, &depth, &err);
    if (j->delta)
        ws_delta_figures(j->delta, &f);
    if (rc == 0)
        ws_log(WS_LOG_INFO, "agent",
               "archived %s model=%s version=%" PRIu64 " bytes=%" PRIu64 " seconds=%.3f",
               j->delta ? "delta" : "whole", m->model, m->version, f.bytes,
               (double)(ws_clock_ns() - began) / 1e9);
    else if (is_no_trouble(rc))
        ws_log(WS_LOG_INFO, "agent",
               "not archived model=%s version=%" PRIu64 ": %s; the next version is written whole", m->model,
               m->version, rc == -ECANCELED ? "its slot was wanted" : err.text);
    else if (rc != -EEXIST)
        ws_log(WS_LOG_WARN, "agent",
               "cannot archive model=%s version=%" PRIu64
               " errno=%s: %s; it is tried again with the next version",
               m->model, m->version, ws_errno_name(-rc), err.text);
    pthread_mutex_lock(&a->lock);
    note(a, j, rc, depth);
    a->archiving = NULL;
    free_archiving(j);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void *archiver(void *arg)
{
    struct ws_agent *a = arg;
    ws_thread_nice(a->options.nice);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct ws_archiving *j = a->archivings;
        if (!j) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        a->archivings = j->next;
        a->archiving = j;
        pthread_mutex_unlock(&a->lock);
        archive(a, j);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* --- start and stop --- */

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct ws_archive *archive = NULL;
    if (!a->options.archive)
        return 0;
    if (a->options.archive_every == 0)
        a->options.archive_every = DEFAULT_EVERY;
    if (a->options.archive_keep == 0)
        a->options.archive_keep = DEFAULT_KEEP;
    int rc = ws_archive_open(&archive, a->options.archive, err);
    if (rc < 0)
        return rc;
    a->archive = archive;
    if (ws_thread_start(&a->archiver, archiver, a) < 0) {
        ws_archive_close(archive);
        a->archive = NULL;
        return ws_error_set(err, EAGAIN, "cannot start the archive's thread");
    }
    return 0;
}

static void stop(struct ws_agent *a)
{
    if (!a->archive)
        return;
    pthread_mutex_lock(&a->lock);
    if (a->archiving)
        atomic_store(&a->archiving->stop, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->archiver, NULL);
    pthread_mutex_lock(&a->lock);
    for (struct ws_archiving *j = a->archivings, *next; j; j = next) {
        next = j->next;
        ws_log(WS_LOG_INFO, "agent", "not archived model=%s version=%" PRIu64 ": the agent is stopping",
               j->model->name, j->manifest->version);
        free_archiving(j);
    }
    a->archivings = NULL;
    struct ws_archive *archive = a->archive;
    a->archive = NULL; /* what is published from now on is not archived */
    pthread_mutex_unlock(&a->lock);
    ws_archive_close(archive);
}

static void put_metrics(const struct ws_agent *a, FILE *f)
{
    if (!a->archive)
        return;
    fprintf(f, "# TYPE wsync_agent_archived_total counter\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next) {
        const struct ws_archive_state *s = &m->archive;
        fprintf(f,
                "wsync_agent_archived_total{model=\"%s\",result=\"whole\"} %" PRIu64
                "\nwsync_agent_archived_total{model=\"%s\",result=\"delta\"} %" PRIu64
                "\nwsync_agent_archived_total{model=\"%s\",result=\"given-up\"} %" PRIu64
                "\nwsync_agent_archived_total{model=\"%s\",result=\"failed\"} %" PRIu64 "\n",
                m->name, s->anchors, m->name, s->deltas, m->name, s->given_up, m->name, s->failed);
    }
    fprintf(f, "# TYPE wsync_agent_archived_version gauge\n");
    for (const struct ws_agent_model *m = a->models; m; m = m->next)
        fprintf(f, "wsync_agent_archived_version{model=\"%s\"} %" PRIu64 "\n", m->name, m->archive.newest);
}

const struct ws_agent_feature ws_feature_archive = {
    .start = start,
    .stop = stop,
    .published = published,
    .encoded = encoded,
    .metrics = put_metrics,
};
