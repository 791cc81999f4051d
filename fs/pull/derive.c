#include "fs/pull/derive.h"
#include "fs/pull/derived_files.h"
#include "fs/pull/version_memory.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_NS (100 * WS_MS_NS)

/* --- what it is made of --- */

/* Counts and retains it. */
static struct ws_version *get_source(struct ws_version *v, struct ws_error *err)
{
    struct ws_version *w;

    pthread_mutex_lock(&v->store->lock);
    w = ws_derived_source(v);
    if (w) {
        ws_version_get(w);
        atomic_fetch_add(&w->retained, 1);
    }
    pthread_mutex_unlock(&v->store->lock);
    if (!w)
        ws_error_set(err, ESTALE, "%s/%lu cannot be made: %s/%lu is neither here nor at a source any more",
                     v->model->name, v->number, v->model->derived->source, v->number);
    return w;
}

static void put_source(struct ws_version *w)
{
    ws_version_retain(w, -1);
    ws_version_put(w);
}

static int source_failed(const struct ws_version *v, const struct ws_version *w, int rc, struct ws_error *err)
{
    const char *why = w->error && w->error_code == -rc ? w->error
                      : !w->named                      ? "it was dropped meanwhile"
                                                       : strerror(-rc);

    return ws_error_set(err, -rc, "%s/%lu is made of %s/%lu, which cannot be pulled: %.700s", v->model->name,
                        v->number, w->model->name, w->number, why);
}

/* Has it come, all of it. */
static int pull_source(struct ws_source_select *sel, struct ws_version *w, const atomic_int *priority,
                       struct ws_error *err)
{
    const struct ws_puller *puller = w->store->puller;
    int rc = 0;

    pthread_mutex_lock(&w->store->lock);
    if (!ws_version_is_complete(w)) {
        if (!w->pull)
            atomic_store(&w->only_for_views, true);
        rc = puller->request(w, WS_GOAL_ALL, (enum ws_priority)atomic_load(priority));
    }
    while (rc == 0 && !ws_version_is_complete(w) && !atomic_load(&sel->stop)) {
        if (!w->pull) {
            rc = w->error_code ? -w->error_code : -ESTALE;
            break;
        }
        const uint64_t came = puller->progress_ns(w->pull);
        if (came > atomic_load(&sel->pace.last_ns))
            ws_pace_note(&sel->pace, came);
        (void)ws_cond_wait_until(&w->store->changed, &w->store->lock, ws_clock_ns() + STEP_NS);
        if (w->pull) /* how urgent it is may have risen */
            (void)puller->request(w, WS_GOAL_ALL, (enum ws_priority)atomic_load(priority));
    }
    if (rc < 0 && !ws_version_is_complete(w))
        rc = source_failed(sel->version, w, rc, err);
    else
        rc = 0;
    pthread_mutex_unlock(&w->store->lock);
    atomic_store(&sel->progress_ns, ws_clock_ns());
    return atomic_load(&sel->stop) ? ws_source_select_canceled(sel, err) : rc;
}

/* --- the view --- */

/* The version has both from now on. A manifest that a source gave before has to be this one. */
static int show(struct ws_version *v, struct ws_manifest *m, struct ws_region **regions,
                const struct ws_derived_delta *delta, struct ws_error *err)
{
    const size_t n = m->n_files;
    char digest[sizeof(m->digest)];
    const struct ws_manifest *known;
    int rc;

    memcpy(digest, m->digest, sizeof(digest));
    pthread_mutex_lock(&v->store->lock);
    v->created_ns = m->created_ns;
    if (v->named) {
        rc = ws_content_set_manifest(v, m, err);
    } else {
        rc = ws_error_set(err, ECANCELED, "%s/%lu was dropped", v->model->name, v->number);
        ws_manifest_free(m);
    }
    known = atomic_load(&v->manifest);
    if (rc == 0 && strcmp(known->digest, digest) != 0)
        rc = ws_error_set(err, EBADMSG,
                          "%s/%lu has the digest %s as it is made here, and a source has given it with %s: "
                          "compare what derives it there, and with which patterns",
                          v->model->name, v->number, digest, known->digest);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        atomic_store(&v->files[i].region, regions[i]);
        ws_content_arrived_all(v, i);
    }
    if (rc == 0) { /* who sees the manifest sees which delta leads to it */
        ws_derived_delta_list(delta);
        atomic_store(&v->way_chosen, true);
    }
    pthread_mutex_unlock(&v->store->lock);
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}

static int make(struct ws_source_select *sel, struct ws_version *w, struct ws_derived_delta **delta,
                struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_derived_files *f = NULL;
    struct ws_region **regions = NULL;
    size_t n = 0;
    int rc = ws_derived_files_new(&f, v->model->derived, w, err);

    if (rc == 0) {
        n = ws_derived_files_manifest(f)->n_files;
        regions = calloc(n + 1, sizeof(struct ws_region *));
        rc = regions ? ws_version_memory_take(sel, ws_derived_files_manifest(f), regions, err)
                     : ws_error_set(err, ENOMEM, "out of memory for %s/%lu", v->model->name, v->number);
    }
    if (rc == 0)
        rc = ws_derived_files_make(f, regions, &sel->stop, &sel->progress_ns, err);
    if (rc == 0) {
        *delta = ws_derived_delta_new(v, ws_derived_files_manifest(f));
        rc = show(v, ws_derived_files_take_manifest(f), regions, *delta, err);
    }
    if (rc < 0 && regions)
        ws_version_memory_return(v, regions, n);
    free(regions);
    ws_derived_files_free(f);
    return rc;
}

int ws_pull_derive(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS],
                   struct ws_derived_delta **delta, struct ws_error *err)
{
    struct ws_version *v = sel->version, *w = get_source(v, err);
    uint64_t began_ns;
    int rc;

    *delta = NULL;
    if (!w)
        return -ESTALE;
    rc = pull_source(sel, w, priority, err);
    snprintf(sel->part_why_not, sizeof(sel->part_why_not), "all: it is made here, of %.200s/%lu",
             w->model->name, w->number);
    began_ns = ws_clock_ns();
    if (rc == 0)
        rc = make(sel, w, delta, err);
    if (rc == 0)
        snprintf(how, WS_HOW_CHARS, "made of %.60s/%lu by %s in %.2f s", w->model->name, w->number,
                 v->model->derived->recipe->name, (double)(ws_clock_ns() - began_ns) / 1e9);
    put_source(w);
    return rc;
}
