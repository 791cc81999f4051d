#include "backends/trainer/astraflow/blob_builder.h"
#include "backends/trainer/astraflow/lora_config.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/delta/listing.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define KEPT_S   30 /* the blob before the newest */
#define SLICE_MS 100

struct ws_blob_builder {
    const struct ws_latest_scope *topic;
    bool (*wanted)(void *arg, const struct ws_version_id *base);
    void *arg;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop, revoked; /* stop is also set under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    struct ws_blob *newest, *previous; /* NULL: none */
    uint64_t previous_expires_ns;      /* ws_clock_ns */
    struct ws_version_id tried;        /* what it leads to, or would */
    uint64_t n_requested, n_handled;
};

/* --- making one --- */

static void on_revoked(void *arg)
{
    atomic_store(&((struct ws_blob_builder *)arg)->revoked, true);
}

/* The agent's delta to that version, from the version before, with a reference; NULL: there is none, or
 * no receiver has its base. */
static struct ws_delta *find_delta(const struct ws_blob_builder *a, const struct ws_latest *to)
{
    const struct ws_catalog *c = &a->topic->catalog;
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    struct ws_delta *d = NULL;
    size_t n = 0;
    json_t *list = NULL;
    if (!c->ops->deltas ||
        c->ops->deltas(c->self, to->model, to->version.version, to->version.lineage, true, &list, NULL) < 0 ||
        ws_delta_listing_read(list, offers, &n) < 0)
        n = 0;
    json_decref(list);
    for (size_t i = 0; i < n && !d; i++) {
        if (ws_version_id_equal(&offers[i].link.target, &to->version) &&
            a->wanted(a->arg, &offers[i].link.base) &&
            c->ops->delta(c->self, to->model, to->version.version, to->version.lineage, &offers[i].link.base,
                          0, &d, NULL) < 0)
            d = NULL;
    }
    return d;
}

/* The agent's own encoder works on it: waits until it is whole. */
static bool becomes_whole(struct ws_blob_builder *a, struct ws_delta *d)
{
    while (!ws_delta_wait_ended(d, SLICE_MS))
        if (atomic_load(&a->stop))
            return false;
    return ws_delta_state(d) == WS_DELTA_WHOLE;
}

static struct ws_blob *make(struct ws_blob_builder *a, struct ws_delta *d)
{
    struct ws_latest what;
    struct ws_lease *lease = NULL;
    struct ws_flat_view *buffer = NULL;
    struct ws_blob *b = NULL;
    struct ws_error err = {0};
    atomic_store(&a->revoked, false);
    if (atomic_load(&a->stop))
        return NULL;
    int rc = ws_latest_acquire(a->topic, "astraflow: the delta to this version", on_revoked, a, &what, &lease,
                               &err);
    if (rc == 0 && !ws_version_id_equal(&what.version, &ws_delta_link(d)->target))
        rc = ws_error_set(&err, ESTALE, "a newer version was published meanwhile");
    if (rc == 0 && ws_lora_config_is_of(lease->manifest))
        rc = ws_error_set(&err, EOPNOTSUPP, "it is an adapter, which AstraFlow's receivers take whole");
    if (rc == 0)
        rc = ws_flat_view_new(&buffer, lease, NULL, &err);
    if (rc == 0)
        rc = ws_blob_new(&b, d, lease, buffer, &a->revoked, &err);
    ws_latest_release(a->topic, &lease);
    ws_flat_view_free(buffer);
    if (rc < 0 || !b) {
        ws_log(WS_LOG_INFO, "astraflow", "no delta to version=%" PRIu64 ": %s",
               ws_delta_link(d)->target.version, err.text);
        return NULL;
    }
    ws_log(WS_LOG_INFO, "astraflow",
           "delta base=%" PRIu64 " version=%" PRIu64 " bytes=%zu elements=%" PRIu64 " of=%u seconds=%.3f",
           b->base.version, b->target.version, b->n_bytes, b->count, b->element_bytes, b->seconds);
    return b;
}

/* --- the thread --- */

/* Under lock. */
static void retire_newest(struct ws_blob_builder *a)
{
    ws_blob_put(a->previous);
    a->previous = a->newest;
    a->previous_expires_ns = ws_clock_ns() + KEPT_S * WS_SECOND_NS;
    a->newest = NULL;
}

/* Makes the blob to the newest version, unless that was tried. Gives the lock up. */
static void build_next(struct ws_blob_builder *a)
{
    struct ws_version_id tried = a->tried;
    struct ws_latest to;
    struct ws_blob *b = NULL;
    pthread_mutex_unlock(&a->lock);
    bool found = ws_latest_find(a->topic, &to, NULL) == 0;
    pthread_mutex_lock(&a->lock);
    if (found && a->newest && !ws_version_id_equal(&a->newest->target, &to.version))
        retire_newest(a);
    pthread_mutex_unlock(&a->lock);
    struct ws_delta *d = found && !ws_version_id_equal(&to.version, &tried) ? find_delta(a, &to) : NULL;
    if (d && becomes_whole(a, d))
        b = make(a, d);
    ws_delta_put(d);
    pthread_mutex_lock(&a->lock);
    if (d)
        a->tried = to.version; /* if no receiver wanted it, one may later */
    assert(!b || !a->newest);  /* it was set aside, or nothing was tried */
    if (b)
        a->newest = b;
}

static void *run(void *arg)
{
    struct ws_blob_builder *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        uint64_t asked = a->n_requested;
        if (asked != a->n_handled) {
            build_next(a);
            a->n_handled = asked;
            pthread_cond_broadcast(&a->changed);
        } else if (!a->previous) {
            pthread_cond_wait(&a->changed, &a->lock);
        } else if (ws_cond_wait_until(&a->changed, &a->lock, a->previous_expires_ns) == ETIMEDOUT) {
            ws_blob_put(a->previous);
            a->previous = NULL;
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

int ws_blob_builder_new(struct ws_blob_builder **out, const struct ws_latest_scope *topic,
                        bool (*wanted)(void *arg, const struct ws_version_id *base), void *arg,
                        struct ws_error *err)
{
    struct ws_blob_builder *a = calloc(1, sizeof(*a));
    if (!a)
        return ws_error_set(err, ENOMEM, "no memory for deltas");
    a->topic = topic;
    a->wanted = wanted;
    a->arg = arg;
    pthread_mutex_init(&a->lock, NULL);
    ws_cond_init(&a->changed);
    a->has_thread = ws_thread_start(&a->thread, run, a) == 0;
    if (!a->has_thread) {
        ws_blob_builder_free(a);
        return ws_error_set(err, EAGAIN, "cannot start a thread");
    }
    *out = a;
    return 0;
}

void ws_blob_builder_wake(struct ws_blob_builder *a)
{
    pthread_mutex_lock(&a->lock);
    a->n_requested++;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

struct ws_blob *ws_blob_builder_get_to(struct ws_blob_builder *a, const struct ws_version_id *target,
                                       unsigned wait_ms)
{
    const uint64_t end = ws_clock_ns() + wait_ms * WS_MS_NS;
    struct ws_blob *b = NULL;
    pthread_mutex_lock(&a->lock);
    uint64_t asked = ++a->n_requested;
    pthread_cond_broadcast(&a->changed);
    while (!b && !atomic_load(&a->stop)) {
        if (a->newest && ws_version_id_equal(&a->newest->target, target))
            b = ws_blob_get(a->newest);
        else if (a->n_handled >= asked || ws_cond_wait_until(&a->changed, &a->lock, end) == ETIMEDOUT)
            break;
    }
    pthread_mutex_unlock(&a->lock);
    return b;
}

struct ws_blob *ws_blob_builder_get_from(struct ws_blob_builder *a, const struct ws_version_id *base)
{
    struct ws_blob *b = NULL;
    pthread_mutex_lock(&a->lock);
    if (a->newest && ws_version_id_equal(&a->newest->base, base))
        b = ws_blob_get(a->newest);
    else if (a->previous && ws_version_id_equal(&a->previous->base, base) &&
             !(a->newest && a->newest->base.version == base->version))
        b = ws_blob_get(a->previous);
    pthread_mutex_unlock(&a->lock);
    return b;
}

void ws_blob_builder_stop(struct ws_blob_builder *a)
{
    pthread_mutex_lock(&a->lock);
    atomic_store(&a->stop, true);
    atomic_store(&a->revoked, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    a->has_thread = false;
}

void ws_blob_builder_free(struct ws_blob_builder *a)
{
    if (!a)
        return;
    ws_blob_builder_stop(a);
    ws_blob_put(a->newest);
    ws_blob_put(a->previous);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
