/* Version operations: what a command does with a version: pull it, wait for it, drop it, pin it. */
#include "fs/store/delta_cache.h"
#include "fs/store/model.h"
#include "fs/store/one_copy.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "fs/store/way_back.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LOOK_MS 50 /* between looks at the cancel flag */

struct sleeper {
    struct ws_waiter waiter;
    pthread_mutex_t lock;
    pthread_cond_t done;
    /* guarded by lock */
    bool over;
    int result;
};

static void wake(struct ws_waiter *w, int result)
{
    struct sleeper *s = (struct sleeper *)w; /* waiter is its first member */

    pthread_mutex_lock(&s->lock);
    s->over = true;
    s->result = result;
    pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
}

static void init_sleeper(struct sleeper *s)
{
    memset(s, 0, sizeof(*s));
    s->waiter.done = wake;
    pthread_mutex_init(&s->lock, NULL);
    ws_cond_init(&s->done);
}

/* Sleeps until the wait is over, or *cancel. */
static int sleep_on(struct sleeper *s, const atomic_bool *cancel)
{
    pthread_mutex_lock(&s->lock);
    while (!s->over) {
        const uint64_t until = ws_clock_ns() + LOOK_MS * WS_MS_NS;
        if (cancel && atomic_load(cancel)) {
            bool ours;
            pthread_mutex_unlock(&s->lock);
            ours = ws_waiter_cancel(&s->waiter);
            pthread_mutex_lock(&s->lock);
            if (ours) {
                s->result = -ECANCELED;
                break;
            }
            cancel = NULL; /* another thread is completing it */
            continue;
        }
        (void)ws_cond_wait_until(&s->done, &s->lock, until);
    }
    pthread_mutex_unlock(&s->lock);
    return s->result;
}

static int wait_for(struct ws_version *v, size_t file, enum ws_priority priority, int timeout_ms,
                    const atomic_bool *cancel)
{
    uint64_t deadline = timeout_ms < 0 ? WS_NEVER : ws_clock_ns() + (uint64_t)timeout_ms * WS_MS_NS;
    struct sleeper s;
    int rc;

    init_sleeper(&s);
    rc = ws_waiters_add(v, file, 0, 0, priority, deadline, &s.waiter);
    rc = rc == 1 ? 0 : sleep_on(&s, cancel);
    pthread_cond_destroy(&s.done);
    pthread_mutex_destroy(&s.lock);
    return rc;
}

int ws_version_explain(struct ws_version *v, int rc, int timeout_ms, struct ws_error *err)
{
    struct ws_store *s = v->store;
    char text[WS_ERROR_TEXT] = "";

    pthread_mutex_lock(&s->lock);
    if (v->error && v->error_code == -rc)
        snprintf(text, sizeof(text), "%s", v->error);
    pthread_mutex_unlock(&s->lock);
    if (text[0])
        return ws_error_set(err, -rc, "%s", text);
    if (rc == -ETIMEDOUT || rc == -EAGAIN)
        return ws_error_set(err, ETIMEDOUT, "%s/%lu did not arrive within %.1f s; the pull goes on",
                            v->model->name, v->number, (double)timeout_ms / 1000);
    if (rc == -ECANCELED)
        return ws_error_set(err, ECANCELED, "the wait for %s/%lu was interrupted", v->model->name, v->number);
    if (rc == -ESTALE)
        return ws_error_set(err, ESTALE, "%s/%lu is gone: no source has it any more", v->model->name,
                            v->number);
    return ws_error_set(err, -rc, "cannot pull %s/%lu: %s", v->model->name, v->number, strerror(-rc));
}

int ws_version_pull(struct ws_version *v, enum ws_priority priority, int timeout_ms,
                    const atomic_bool *cancel, struct ws_error *err)
{
    int rc = wait_for(v, WS_FILE_ALL, priority, timeout_ms, cancel);

    if (rc == -ETIMEDOUT) { /* the wait's end, or the pull's own failure, maybe a moment after it */
        pthread_mutex_lock(&v->store->lock);
        rc = v->state == WS_FAILED && v->error_code > 0 ? -v->error_code : -EAGAIN;
        pthread_mutex_unlock(&v->store->lock);
    }
    const int explained = rc < 0 ? ws_version_explain(v, rc, timeout_ms, err) : 0;
    return rc == -EAGAIN ? rc : explained;
}

void ws_version_start(struct ws_version *v, enum ws_priority priority)
{
    struct ws_store *s = v->store;

    atomic_store(&v->only_for_views, false);
    pthread_mutex_lock(&s->lock);
    /* Best effort: the version's error says already why no pull can start. */
    if (s->puller->request(v, WS_GOAL_ALL, priority) < 0)
        ws_log(WS_LOG_DEBUG, "store", "no pull started model=%s version=%lu", v->model->name, v->number);
    pthread_mutex_unlock(&s->lock);
}

const struct ws_manifest *ws_version_manifest(struct ws_version *v, struct ws_error *err)
{
    if (!ws_version_has_manifest(v)) {
        int rc = wait_for(v, WS_FILE_MANIFEST, WS_PRIORITY_READER, WS_REPLY_TIMEOUT_MS, NULL);
        if (rc < 0) {
            ws_version_explain(v, rc, WS_REPLY_TIMEOUT_MS, err);
            return NULL;
        }
    }
    return atomic_load(&v->manifest);
}

const struct ws_manifest *ws_version_files(struct ws_version *v)
{
    return atomic_load_explicit(&v->manifest, memory_order_acquire);
}

int ws_version_drop(struct ws_version *v, struct ws_error *err)
{
    struct ws_store *s = v->store;
    struct ws_store_events events;
    int rc = 0;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (!v->named)
        rc = ws_error_set(err, ENOENT, "%s/%lu is dropped already", v->model->name, v->number);
    else if (v == v->model->current)
        rc = ws_error_set(err, EBUSY,
                          "%s/%lu is what the engines serve: load another version before it is dropped",
                          v->model->name, v->number);
    else if (v->n_switches > 0)
        rc = ws_error_set(err, EBUSY,
                          "engines are being switched to %s/%lu, or still have it as an adapter "
                          "(adapters=MODEL:K): wait for "
                          "the switch's end, write cancel to its ctl, or load newer ones",
                          v->model->name, v->number);
    else if (v->pinned)
        rc = ws_error_set(err, EBUSY, "%s/%lu is pinned: echo \"unpin %lu\" > /wsync/%s/ctl first",
                          v->model->name, v->number, v->number, v->model->name);
    else if (v->own_bytes > 0 && v->model->current && ws_one_copy_applies(v))
        rc = ws_error_set(err, EBUSY,
                          "%s/%lu is what is in memory, where there is one copy (copies), and %lu, which the "
                          "engines serve, is "
                          "made of it: echo %lu > /wsync/%s/version first",
                          v->model->name, v->number, v->model->current->number, v->model->current->number,
                          v->model->name);
    else if (v->own_bytes == 0 && ws_way_back_leads_to(v)) {
        ws_way_back_clear(v->model);
        ws_model_reconcile(v->model, &events);
    } else if (ws_version_has_bytes(v) || v->pull || v->state == WS_FAILED)
        ws_version_retire(v, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    return rc;
}

int ws_version_begin_switch(struct ws_version *v, struct ws_error *err)
{
    struct ws_store *s = v->store;
    pthread_mutex_lock(&s->lock);
    const bool named = v->named;
    v->n_switches += named;
    pthread_mutex_unlock(&s->lock);
    if (!named)
        return ws_error_set(err, ESTALE, "%s/%lu was dropped meanwhile", v->model->name, v->number);
    ws_version_retain(v, 1);
    return 0;
}

void ws_version_end_switch(struct ws_version *v)
{
    struct ws_store *s = v->store;
    pthread_mutex_lock(&s->lock);
    v->n_switches--;
    ws_model_trim_deltas(v->model);
    pthread_mutex_unlock(&s->lock);
    ws_version_retain(v, -1);
}

int ws_version_pin(struct ws_version *v, bool pin, struct ws_error *err)
{
    struct ws_store *s = v->store;
    struct ws_store_events events;
    int rc = 0;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (!v->named) {
        rc = ws_error_set(err, ENOENT, "%s/%lu is dropped already", v->model->name, v->number);
    } else {
        v->pinned = pin;
        ws_model_reconcile(v->model, &events);
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    return rc;
}
