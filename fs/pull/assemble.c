#include "fs/pull/assemble.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/format/node_part.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_NS 500000000UL

struct assembly {
    struct ws_source_select *selection;
    struct ws_version *version;
    const atomic_int *priority;
    unsigned n;
    struct ws_version *parts[WS_MAX_NODE_PARTS]; /* counted, and kept from eviction */
    char from[WS_MAX_NODE_PARTS][300];
    struct ws_node_part_source merge_parts[WS_MAX_NODE_PARTS];
    struct ws_node_part_merge *merge;
    struct ws_region **regions; /* by file of the whole */
    unsigned char **dst;
};

/* --- the parts --- */

/* With store->lock. Counts and retains all parts, and starts their pulls. */
static int request_parts(struct assembly *a, struct ws_error *err)
{
    enum ws_priority priority = (enum ws_priority)atomic_load(a->priority);
    struct ws_version *v = a->version;
    unsigned n = v->in_parts;

    for (unsigned i = 0; i < n; i++) {
        struct ws_version *w = ws_node_parts_get(v, i, err);
        if (!w)
            return -ESTALE;
        atomic_fetch_add(&w->retained, 1);
        a->parts[a->n++] = w;
        snprintf(a->from[i], sizeof(a->from[i]), "%s",
                 v->model->nodes[i] ? v->model->nodes[i] : w->model->name);
    }
    if (n == 0)
        return ws_error_set(err, ESTALE, "%s/%lu is gone: %s", v->model->name, v->number,
                            v->model->missing[0] ? v->model->missing
                                                 : "no agent lists a part of it any more");
    for (unsigned i = 0; i < n; i++)
        if (a->parts[i]->store->puller->request(a->parts[i], WS_GOAL_ALL, priority) <
            0) /* its error says why */
            ws_log(WS_LOG_DEBUG, "store", "no pull started model=%s version=%lu", a->parts[i]->model->name,
                   v->number);
    return 0;
}

/* With store->lock. 0: part i is here; -EAGAIN: its pull runs; else why it failed. */
static int check_part(struct assembly *a, unsigned i, struct ws_error *err)
{
    struct ws_version *w = a->parts[i];
    int code = w->error_code ? w->error_code : ESTALE;

    if (ws_version_is_complete(w))
        return 0;
    if (w->pull) { /* how urgent it is may have risen */
        int rc = w->store->puller->request(w, WS_GOAL_ALL, (enum ws_priority)atomic_load(a->priority));
        return rc < 0 && !w->pull ? rc : -EAGAIN;
    }
    return ws_error_set(err, code, "part %u of %u of %s/%lu cannot be pulled from the agent %s: %s", i + 1,
                        a->n, a->version->model->name, w->number, a->from[i],
                        w->error ? w->error : "the agent has it no more");
}

static int wait_for_parts(struct assembly *a, struct ws_error *err)
{
    struct ws_store *s = a->version->store;
    int rc = -EAGAIN;

    pthread_mutex_lock(&s->lock);
    while (rc == -EAGAIN && !atomic_load(&a->selection->stop)) {
        const uint64_t until = ws_clock_ns() + STEP_NS;
        rc = 0;
        for (unsigned i = 0; i < a->n && (rc == 0 || rc == -EAGAIN); i++) {
            int one = check_part(a, i, err);
            rc = one ? one : rc;
        }
        if (rc == -EAGAIN)
            (void)ws_cond_wait_until(&s->changed, &s->lock, until);
    }
    pthread_mutex_unlock(&s->lock);
    atomic_store(&a->selection->progress_ns, ws_clock_ns());
    if (atomic_load(&a->selection->stop))
        return ws_source_select_canceled(a->selection, err);
    return rc;
}

/* --- the whole --- */

static int read_parts(struct assembly *a, struct ws_error *err)
{
    for (unsigned i = 0; i < a->n; i++) {
        struct ws_version *w = a->parts[i];
        const struct ws_manifest *m = atomic_load(&w->manifest);
        const unsigned char **files = calloc(m->n_files + 1, sizeof(*files));
        if (!files)
            return ws_error_set(err, ENOMEM, "out of memory for the parts of %s/%lu", m->model, m->version);
        for (size_t k = 0; k < m->n_files; k++) {
            struct ws_region *r = ws_content_region(w, k);
            files[k] = r ? ws_region_data(r) : NULL;
        }
        a->merge_parts[i] = (struct ws_node_part_source){.from = a->from[i], .manifest = m, .files = files};
    }
    return ws_node_part_merge_new(&a->merge, a->merge_parts, a->n, &a->selection->stop, err);
}

static int get_regions(struct assembly *a, struct ws_error *err)
{
    struct ws_version *v = a->version;
    struct ws_store *s = v->store;
    size_t n = ws_node_part_merge_n_files(a->merge);
    uint64_t bytes = 0;
    int rc;

    a->regions = calloc(n, sizeof(struct ws_region *));
    a->dst = calloc(n, sizeof(*a->dst));
    if (!a->regions || !a->dst)
        return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", v->model->name, v->number);
    for (size_t i = 0; i < n; i++)
        bytes += ws_node_part_merge_file(a->merge, i)->size_bytes;
    rc = ws_cache_budget_claim(v, bytes, &a->selection->stop, err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        uint64_t size = ws_node_part_merge_file(a->merge, i)->size_bytes;
        if (size == 0)
            continue;
        rc = ws_pool_get(s->pool, size, &a->regions[i], err);
        if (rc == 0)
            a->dst[i] = ws_region_data(a->regions[i]);
    }
    if (rc == 0) {
        v->took_from_pool = true;
        ws_cache_budget_trim_pool(s);
    }
    return rc;
}

/* Gives the version its manifest and regions. Its bytes are complete before any thread sees the manifest. */
static int adopt_whole(struct assembly *a, struct ws_manifest *m, struct ws_error *err)
{
    struct ws_version *v = a->version;
    int rc;

    pthread_mutex_lock(&v->store->lock);
    if (strcmp(v->digest, m->digest) != 0 && v->digest[0]) {
        rc = ws_error_set(
            err, EBADMSG,
            "the parts of %s/%lu make the digest %s, but a source lists it whole with %s: two trainers "
            "may publish under one run id",
            v->model->name, v->number, m->digest, v->digest);
        ws_manifest_free(m);
    } else {
        v->created_ns = m->created_ns;
        rc = ws_content_set_manifest(v, m, err); /* frees it where one is here, from a source that had all */
    }
    pthread_mutex_unlock(&v->store->lock);
    if (rc < 0)
        return rc;
    m = atomic_load(&v->manifest);
    for (size_t i = 0; i < m->n_files; i++) {
        atomic_store(&v->files[i].region, a->regions[i]);
        a->regions[i] = NULL;
        ws_content_arrived_all(v, i);
    }
    ws_waiters_wake(v);
    return 0;
}

static int make_whole(struct assembly *a, struct ws_error *err)
{
    struct ws_version *v = a->version;
    struct ws_manifest *m = NULL;
    struct ws_workers *workers;
    int rc = read_parts(a, err);

    if (rc == 0)
        rc = get_regions(a, err);
    if (rc < 0)
        return rc;
    workers = ws_workers_new(v->store->options.threads, v->store->options.nice);
    rc = workers ? ws_node_part_merge_run(a->merge, v->model->name, a->dst, workers, &m, err)
                 : ws_error_set(err, ENOMEM, "out of memory for the threads of a merge");
    ws_workers_free(workers);
    return rc == 0 ? adopt_whole(a, m, err) : rc;
}

/* --- the end --- */

static void return_memory(struct assembly *a)
{
    struct ws_version *v = a->version;
    struct ws_store *s = v->store;

    for (size_t i = 0; a->regions && i < ws_node_part_merge_n_files(a->merge); i++)
        ws_pool_put(s->pool, a->regions[i]);
    pthread_mutex_lock(&s->lock);
    s->used_bytes -= v->own_bytes;
    if (!v->named)
        s->waiting_bytes -= v->own_bytes;
    v->own_bytes = 0;
    v->took_from_pool = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The next delta begins at the newest version of a part; older ones are retired. */
static void release_parts(struct assembly *a, bool good)
{
    struct ws_store *s = a->version->store;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < a->n; i++) {
        struct ws_model *m = a->parts[i]->model;
        atomic_fetch_sub(&a->parts[i]->retained, 1);
        for (struct ws_version *w = m->versions, *next; good && w; w = next) {
            next = w->next;
            if (w != a->parts[i] && ws_version_is_complete(w) && ws_version_is_newer(a->parts[i], w) &&
                !ws_version_is_protected(w))
                ws_version_retire(w, &events);
        }
        ws_model_reconcile(m, &events); /* a part in an agent's memory does not stay */
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    for (unsigned i = 0; i < a->n; i++)
        ws_version_put(a->parts[i]);
}

/* "2 parts: tcp full; tcp delta from 41 in place: 30 MB instead of 3.4 GB" */
static void describe_how(const struct assembly *a, char how[WS_HOW_CHARS])
{
    struct ws_store *s = a->version->store;
    size_t used = (size_t)snprintf(how, WS_HOW_CHARS, "%u parts", a->n);

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < a->n && used < WS_HOW_CHARS; i++)
        used += (size_t)snprintf(how + used, WS_HOW_CHARS - used, "%s%s", i ? "; " : ": ", a->parts[i]->how);
    if (a->n && a->parts[0]->why_not)
        snprintf(a->selection->part_why_not, sizeof(a->selection->part_why_not), "%s", a->parts[0]->why_not);
    if (a->n)
        atomic_store(&a->selection->used, a->parts[0]->strategy);
    pthread_mutex_unlock(&s->lock);
}

int ws_assemble_run(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS],
                    struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct assembly *a = calloc(1, sizeof(*a));
    int rc;

    if (!a)
        return ws_error_set(err, ENOMEM, "out of memory for the parts of %s/%lu", v->model->name, v->number);
    a->selection = sel;
    a->version = v;
    a->priority = priority;
    pthread_mutex_lock(&v->store->lock);
    rc = request_parts(a, err);
    pthread_mutex_unlock(&v->store->lock);
    if (rc == 0)
        rc = wait_for_parts(a, err);
    if (rc == 0)
        rc = make_whole(a, err);
    if (rc == 0)
        describe_how(a, how);
    else if (a->regions)
        return_memory(a);
    for (unsigned i = 0; i < a->n; i++) {
        atomic_fetch_add(&v->moved_bytes, rc == 0 ? atomic_load(&a->parts[i]->moved_bytes) : 0);
        free((void *)(uintptr_t)a->merge_parts[i].files);
    }
    release_parts(a, rc == 0);
    ws_node_part_merge_free(a->merge);
    free(a->regions);
    free(a->dst);
    free(a);
    return rc;
}
