#include "fs/pull/delta_bases.h"
#include "fs/pull/delta_chain.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/delta/patcher.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BASES                                                                                            \
    (2 * WS_MAX_DELTA_ENTRIES / WS_MAX_DELTA_CHAIN) /* twice as many, as some are evicted too soon */
#define STEP_NS 500000000UL

/* --- which base is next; with store->lock --- */

/* The version that a delta begins at, if it is known here. */
static struct ws_version *find_known_base(struct ws_model *m, const struct ws_delta_link *l)
{
    struct ws_version *w = ws_version_lookup(m, l->base.version, l->base.lineage);

    return w && w->digest[0] && strcmp(w->digest, l->base_digest) != 0 ? NULL : w;
}

static bool can_be_patched(const struct ws_version *w)
{
    return ws_version_is_complete(w) && (w->own_bytes > 0 || ws_part_view(w));
}

/* *base: counted; NULL with 0: none is needed any more. */
static int next_base(struct ws_version *v, const struct ws_delta_chain *chain, struct ws_version **base,
                     struct ws_error *err)
{
    struct ws_version *way[WS_MAX_DELTA_ENTRIES]; /* back from v; NULL: not known here */
    struct ws_version_id at = ws_version_id(v);
    char digest[33];
    struct ws_delta_step link;
    size_t n = 0;

    *base = NULL;
    memcpy(digest, v->digest, sizeof(digest));
    while (n < WS_MAX_DELTA_ENTRIES && ws_delta_chain_find(v->model, chain, &at, digest, &link)) {
        struct ws_version *w = way[n++] = find_known_base(v->model, &link.entry.link);
        if (w && w != v && (can_be_patched(w) || w == ws_one_copy_untouched(v))) {
            for (size_t i = n > WS_MAX_DELTA_CHAIN ? n - 1 - WS_MAX_DELTA_CHAIN : n; i + 1 < n && !*base; i++)
                *base = way[i];
            if (n <= WS_MAX_DELTA_CHAIN || *base)
                break;
        } else if (w && w != v && w->sources && ws_version_comes_whole(w, 0)) {
            *base = w;
            break;
        }
        at = link.entry.link.base;
        memcpy(digest, link.entry.link.base_digest, sizeof(digest));
    }
    if (*base)
        ws_version_get(*base);
    else if (n == 0)
        return ws_error_set(err, ENODATA,
                            "%s/%lu is at its sources only as a delta, and none leads to it there",
                            v->model->name, v->number);
    else if (!way[n - 1] || !(can_be_patched(way[n - 1]) || way[n - 1] == ws_one_copy_untouched(v)))
        return ws_error_set(
            err, ENODATA,
            "%s/%lu is at its sources only as a delta on %lu, and neither they nor this mount "
            "have that whole",
            v->model->name, v->number, at.version);
    return 0;
}

/* --- its pull --- */

/* Part of a version: that is pulled, with all its parts. */
static int pull_base(struct ws_source_select *sel, struct ws_version *base, enum ws_priority priority,
                     char why[WS_ERROR_TEXT / 2], struct ws_error *err)
{
    struct ws_store *s = base->store;
    const struct ws_version *v = sel->version;
    struct ws_version *pulled = base;
    int rc;

    ws_log(WS_LOG_INFO, "store", "delta base is pulled first model=%s version=%lu for=%lu", v->model->name,
           base->number, v->number);
    snprintf(why, WS_ERROR_TEXT / 2, "it was dropped meanwhile");
    pthread_mutex_lock(&s->lock);
    if (ws_model_is_hidden(base->model) && ws_node_parts_whole(base))
        pulled = ws_node_parts_whole(base);
    ws_version_get(pulled);
    pulled->n_base_for++;
    rc = s->puller->request(pulled, WS_GOAL_ALL, priority);
    while (rc == 0 && pulled->pull && !ws_version_is_complete(pulled) && !atomic_load(&sel->stop)) {
        const uint64_t until = ws_clock_ns() + STEP_NS;
        (void)ws_cond_wait_until(&s->changed, &s->lock, until);
    }
    pulled->n_base_for--;
    if (ws_version_is_complete(base))
        rc = 0;
    else if (pulled->error_code)
        rc = -pulled->error_code;
    else if (rc == 0)
        rc = -EAGAIN;
    if (pulled->error)
        snprintf(why, WS_ERROR_TEXT / 2, "%s", pulled->error);
    ws_version_put_locked(pulled);
    pthread_mutex_unlock(&s->lock);
    atomic_store(&sel->progress_ns, ws_clock_ns());
    return atomic_load(&sel->stop) ? ws_source_select_canceled(sel, err) : rc;
}

int ws_delta_bases_pull_first(struct ws_source_select *sel, struct ws_version *base,
                              enum ws_priority priority, struct ws_error *err)
{
    char why[WS_ERROR_TEXT / 2];
    const int rc = pull_base(sel, base, priority, why, err);

    return rc < 0 && rc != -ECANCELED ? ws_error_set(err, -rc, "%s", why) : rc;
}

struct query {
    const struct ws_version *version;
    struct ws_delta_chain *chain;
};

static int use_chain(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct query *q = arg;
    const struct ws_version_id id = ws_version_id(q->version);

    return ws_source_deltas(attempt->poller->source, ws_model_source_name(q->version->model), &id,
                            &attempt->leave, q->chain->entries, &q->chain->n, err);
}

static int pull_one(struct ws_source_select *sel, enum ws_priority priority, bool *done, struct ws_error *err)
{
    struct ws_version *v = sel->version, *base = NULL;
    struct ws_delta_chain *chain = calloc(1, sizeof(*chain));
    struct ws_source_attempt attempt = {.any_strategy = true};
    struct query q = {.version = v, .chain = chain};
    int rc = chain ? ws_source_select_try(sel, &attempt, use_chain, &q, err)
                   : ws_error_set(err, ENOMEM, "out of memory for a list of deltas");

    if (rc == 0) {
        pthread_mutex_lock(&v->store->lock);
        rc = next_base(v, chain, &base, err);
        pthread_mutex_unlock(&v->store->lock);
    }
    free(chain);
    *done = !base;
    if (base) {
        char why[WS_ERROR_TEXT / 2];
        rc = pull_base(sel, base, priority, why, err);
        if (rc < 0 && rc != -ECANCELED)
            ws_error_set(err, -rc,
                         "%s/%lu is at its sources only as a delta, and the pull of its base %lu failed: %s",
                         v->model->name, v->number, base->number, why);
        ws_version_put(base);
    }
    return rc;
}

int ws_delta_bases_pull(struct ws_source_select *sel, const atomic_int *priority, struct ws_error *err)
{
    struct ws_store *s = sel->version->store;
    int rc = 0;

    for (int n = 0; rc == 0 && n < MAX_BASES; n++) {
        bool done;
        pthread_mutex_lock(&s->lock);
        done = ws_source_select_comes_whole(sel);
        pthread_mutex_unlock(&s->lock);
        if (!done)
            rc = pull_one(sel, (enum ws_priority)atomic_load(priority), &done, err);
        if (done)
            return rc;
    }
    return rc;
}
