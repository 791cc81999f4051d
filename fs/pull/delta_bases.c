#include "fs/pull/delta_bases.h"
#include "fs/pull/delta_chain.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/delta/patcher.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STONES (2 * WS_MAX_OFFERS / WS_MAX_CHAIN) /* with some that are evicted too soon */
#define STEP_NS     500000000UL

/* --- which one is next; with store->lock --- */

/* The version that a link begins at, if it is known. */
static struct ws_version *base_of(struct ws_model *m, const struct ws_delta_link *l)
{
    struct ws_version *w = ws_version_named(m, l->base.version, l->base.run);

    return w && w->digest[0] && strcmp(w->digest, l->base_digest) != 0 ? NULL : w;
}

static bool can_be_patched(const struct ws_version *w)
{
    return ws_version_is_complete(w) && w->own_bytes > 0;
}

/* *stone: counted; NULL with 0: none is needed (any more). */
static int next_stone(struct ws_version *v, const struct ws_links *k, struct ws_version **stone,
                      struct ws_error *err)
{
    struct ws_version *way[WS_MAX_OFFERS]; /* back from v; NULL: not known here */
    struct ws_mark at = ws_version_mark(v);
    char digest[33];
    struct ws_link link;
    size_t n = 0;

    *stone = NULL;
    memcpy(digest, v->digest, sizeof(digest));
    while (n < WS_MAX_OFFERS && ws_links_find(v->model, k, &at, digest, &link)) {
        struct ws_version *w = way[n++] = base_of(v->model, &link.offer.link);
        if (w && w != v && can_be_patched(w)) {
            for (size_t i = n > WS_MAX_CHAIN ? n - 1 - WS_MAX_CHAIN : n; i + 1 < n && !*stone; i++)
                *stone = way[i];
            if (n <= WS_MAX_CHAIN || *stone)
                break;
        } else if (w && w != v && w->sources && ws_version_comes_whole(w)) {
            *stone = w;
            break;
        }
        at = link.offer.link.base;
        memcpy(digest, link.offer.link.base_digest, sizeof(digest));
    }
    if (*stone)
        ws_version_get(*stone);
    else if (n == 0)
        return ws_error_set(err, ENODATA,
                            "%s/%lu is at its sources only as a delta, and none leads to it there",
                            v->model->name, v->number);
    else if (!way[n - 1] || !can_be_patched(way[n - 1]))
        return ws_error_set(
            err, ENODATA,
            "%s/%lu is at its sources only as a delta on %lu, and neither they nor this mount "
            "have that whole",
            v->model->name, v->number, at.version);
    return 0;
}

/* --- bringing it --- */

static int bring(struct ws_route *r, struct ws_version *stone, enum ws_priority priority,
                 struct ws_error *err)
{
    struct ws_store *s = stone->store;
    const struct ws_version *v = r->version;
    char why[WS_ERROR_TEXT / 2] = "it was dropped meanwhile";
    int rc;

    ws_log(WS_LOG_INFO, "store", "brought first model=%s version=%lu for=%lu", v->model->name, stone->number,
           v->number);
    pthread_mutex_lock(&s->lock);
    rc = s->puller->ask(stone, WS_GOAL_ALL, priority);
    while (rc == 0 && stone->pull && !ws_version_is_complete(stone) && !atomic_load(&r->stop)) {
        const uint64_t until = ws_clock_ns() + STEP_NS;
        (void)ws_cond_wait_until(&s->changed, &s->lock, until);
    }
    if (ws_version_is_complete(stone))
        rc = 0;
    else if (stone->error_code)
        rc = -stone->error_code;
    else if (rc == 0)
        rc = -EAGAIN;
    if (stone->error)
        snprintf(why, sizeof(why), "%s", stone->error);
    pthread_mutex_unlock(&s->lock);
    atomic_store(&r->progress_ns, ws_clock_ns());
    if (atomic_load(&r->stop))
        return ws_error_set(err, ECANCELED, "the pull of %s/%lu was stopped", v->model->name, v->number);
    if (rc < 0)
        return ws_error_set(err, -rc,
                            "%s/%lu is at its sources only as a delta, and %lu, which it is made of, "
                            "cannot be had: %s",
                            v->model->name, v->number, stone->number, why);
    return 0;
}

/* The list of deltas, from whichever source can say it. */
static int ask(struct ws_route *r, struct ws_links *k, struct ws_error *err)
{
    const struct ws_version *v = r->version;
    struct ws_mark mark = ws_version_mark(v);
    struct ws_leg leg = {.control = true};

    for (;;) {
        int rc = ws_route_take(r, &leg, err);
        if (rc < 0)
            return rc;
        rc = ws_source_deltas(leg.watch->source, v->model->name, &mark, &leg.leave, k->offers, &k->n, err);
        if (rc == 0) {
            ws_route_progress(r, &leg);
            ws_route_end(&leg);
            return 0;
        }
        rc = ws_route_failed(r, &leg, rc, err);
        if (rc < 0)
            return rc;
    }
}

static int lay_one(struct ws_route *r, enum ws_priority priority, bool *done, struct ws_error *err)
{
    struct ws_version *v = r->version, *stone = NULL;
    struct ws_links *k = calloc(1, sizeof(*k));
    int rc = k ? ask(r, k, err) : ws_error_set(err, ENOMEM, "out of memory for a list of deltas");

    if (rc == 0) {
        pthread_mutex_lock(&v->store->lock);
        rc = next_stone(v, k, &stone, err);
        pthread_mutex_unlock(&v->store->lock);
    }
    free(k);
    *done = !stone;
    if (stone) {
        rc = bring(r, stone, priority, err);
        ws_version_put(stone);
    }
    return rc;
}

int ws_stones_lay(struct ws_route *r, const atomic_int *priority, struct ws_error *err)
{
    struct ws_store *s = r->version->store;
    int rc = 0;

    for (int n = 0; rc == 0 && n < MOST_STONES; n++) {
        bool done;
        pthread_mutex_lock(&s->lock);
        done = ws_version_comes_whole(r->version);
        pthread_mutex_unlock(&s->lock);
        if (!done)
            rc = lay_one(r, (enum ws_priority)atomic_load(priority), &done, err);
        if (done)
            return rc;
    }
    return rc;
}
