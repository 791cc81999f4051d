/* The store itself: its options, its threads and their end, sources that are added and removed, figures. */
#include "fs/store/cache_budget.h"
#include "fs/store/comparison.h"
#include "fs/store/derived.h"
#include "fs/store/events.h"
#include "fs/store/keeper.h"
#include "fs/store/learned.h"
#include "fs/store/listing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/parents.h"
#include "fs/store/poller.h"
#include "fs/store/reaper.h"
#include "fs/store/reporter.h"
#include "fs/store/state.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/cpu_features.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/secret.h"
#include "transports/memory/available.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_KEEP    2
#define DEFAULT_STREAMS 4
#define END_NS          WS_SECOND_NS /* for pulls to end; a call that cannot be interrupted may take longer */

/* --- options --- */

#define TOKEN 0

static char **option_strings(struct ws_source_options *o, unsigned i)
{
    const char **strings[] = {&o->token,     &o->token_file, &o->ca_file,
                              &o->cert_file, &o->key_file,   &o->mount_id};

    return i < sizeof(strings) / sizeof(strings[0]) ? (char **)strings[i] : NULL;
}

static void free_options(struct ws_store_options *o)
{
    for (unsigned i = 0; option_strings(&o->source, i); i++)
        if (i != TOKEN)
            free(*option_strings(&o->source, i));
    ws_secret_free(*option_strings(&o->source, TOKEN));
    if (o->trust) {
        struct ws_trust *own = (struct ws_trust *)(uintptr_t)o->trust; /* made by copy_options */
        ws_trust_reset(own);
        free(own);
    }
}

/* The store's own: threads of pulls may outlive the caller's. Memory that a source could still write is not taken
 * where versions must be signed. */
static int copy_trust(struct ws_store_options *o, struct ws_error *err)
{
    const struct ws_trust *from = o->trust;
    struct ws_trust *own;

    if (!from)
        return 0;
    o->trust = own = calloc(1, sizeof(*own));
    o->own_memory = true;
    return own && ws_trust_copy(from, own) == 0
               ? 0
               : ws_error_set(err, ENOMEM, "out of memory for the options of a store");
}

static int copy_options(struct ws_store_options *o, const struct ws_store_options *from, struct ws_error *err)
{
    int rc = 0;

    *o = *from;
    for (unsigned i = 0; option_strings(&o->source, i); i++) {
        char **string = option_strings(&o->source, i);
        if (*string && !(*string = i == TOKEN ? ws_secret_copy(*string) : strdup(*string)))
            rc = ws_error_set(err, ENOMEM, "out of memory for the options of a store");
    }
    if (copy_trust(o, err) < 0)
        rc = -ENOMEM;
    if (!o->cache_bytes)
        o->cache_bytes =
            ws_cache_budget_default(ws_memory_available(NULL) + (o->keeper ? o->keeper->left() : 0));
    if (!o->keep)
        o->keep = DEFAULT_KEEP;
    if (!o->streams)
        o->streams = DEFAULT_STREAMS;
    if (o->streams > WS_MAX_STREAMS)
        o->streams = WS_MAX_STREAMS;
    if (!o->threads)
        o->threads = ws_cpu_cores(0);
    if (!o->deadline_ms)
        o->deadline_ms = WS_READ_DEADLINE_MS;
    return rc;
}

void ws_store_pause(struct ws_store *s, const atomic_bool *stop, const bool *wakes, unsigned ms,
                    unsigned *seed)
{
    const uint64_t ns = (uint64_t)ms * 750000UL + (uint64_t)rand_r(seed) % ((uint64_t)ms * 500000UL);
    const uint64_t until = ws_clock_ns() + ns;

    pthread_mutex_lock(&s->lock);
    while (!atomic_load(stop) && !(wakes && *wakes) &&
           ws_cond_wait_until(&s->changed, &s->lock, until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->lock);
}

/* --- life --- */

void ws_store_put(struct ws_store *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    ws_pool_free(s->pool);
    ws_parents_free(s);
    ws_derived_free(s);
    ws_needs_free(s);
    ws_learned_free_all(s);
    for (size_t i = 0; i < WS_MAX_MODELS; i++)
        free(s->removed[i]);
    free_options(&s->options);
    ws_transport_prefs_clear(s);
    pthread_cond_destroy(&s->reaper_changed);
    pthread_cond_destroy(&s->deadline_changed);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void set_threads_stop(struct ws_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->threads_stop = true;
    pthread_cond_broadcast(&s->deadline_changed);
    pthread_cond_broadcast(&s->reaper_changed);
    pthread_mutex_unlock(&s->lock);
}

static int start_threads(struct ws_store *s, struct ws_error *err)
{
    int rc = ws_waiters_start(s, err);

    if (rc < 0)
        return rc;
    rc = ws_reaper_start(s, err);
    if (rc == 0)
        return 0;
    set_threads_stop(s);
    ws_waiters_stop(s);
    return rc;
}

int ws_store_new(struct ws_store **out, const struct ws_puller *puller,
                 const struct ws_store_options *options, struct ws_error *err)
{
    struct ws_store *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return ws_error_set(err, ENOMEM, "out of memory for a store");
    assert(puller->request && puller->stop && puller->leave && puller->wants_all && puller->progress_ns);
    s->puller = puller;
    atomic_init(&s->refs, 1);
    pthread_mutex_init(&s->lock, NULL);
    ws_cond_init(&s->changed);
    ws_cond_init(&s->deadline_changed);
    ws_cond_init(&s->reaper_changed);
    s->next_deadline_ns = WS_NEVER;
    s->last_dead = &s->dead;
    s->last_id = options->ids.last ? options->ids.last : &s->own_last_id;
    s->speeds = options->speeds;
    rc = copy_options(&s->options, options, err);
    ws_keeper_begin(s);
    if (rc == 0 && getrandom(&s->id, sizeof(s->id), 0) != (ssize_t)sizeof(s->id))
        rc = ws_error_set(err, errno, "no random number for a store: %s", strerror(errno));
    s->id >>= 1; /* JSON ends at 2^63 - 1 */
    if (rc == 0)
        rc = ws_pool_new(&s->pool, s->options.cache_bytes, s->options.threads, err);
    if (rc == 0)
        rc = start_threads(s, err);
    if (rc < 0) {
        ws_store_put(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* Takes all pollers, or those of sources for `model` alone, out of the store; the caller joins them. */
static unsigned unlist_pollers(struct ws_store *s, const char *model, struct ws_poller *out[WS_MAX_SOURCES],
                               struct ws_store_events *ev)
{
    unsigned n = 0;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = s->pollers[i];
        if (p && (!model || (p->model && strcmp(p->model, model) == 0))) {
            out[n++] = p;
            ws_poller_unlist(p, ev);
        }
    }
    return n;
}

/* Pulls look at their stop flag often; only a request for a manifest cannot be interrupted. A pull that takes
 * longer than a second ends by itself later: it holds references to all that it needs. */
static void stop_pulls(struct ws_store *s)
{
    const uint64_t until = ws_clock_ns() + END_NS;

    for (unsigned i = 0; i < WS_ID_BUCKETS; i++) {
        for (struct ws_version *v = s->ids[i]; v; v = v->next_id) {
            if (v->pull)
                s->puller->stop(v->pull);
        }
    }
    for (struct ws_model *m = s->models; s->puller->end_coming && m; m = m->next)
        s->puller->end_coming(m, NULL);
    while (s->n_pulls > 0 && ws_cond_wait_until(&s->changed, &s->lock, until) != ETIMEDOUT)
        ;
    if (s->n_pulls > 0)
        ws_log(WS_LOG_WARN, "store", "a source does not answer: a pull ends later pulls=%u", s->n_pulls);
}

void ws_store_stop(struct ws_store *s)
{
    struct ws_poller *pollers[WS_MAX_SOURCES];
    struct ws_store_events events;
    unsigned n;

    if (atomic_load(&s->stop))
        return;
    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->n_listeners, 0);
    atomic_store(&s->stop, true);
    n = unlist_pollers(s, NULL, pollers, &events);
    ws_comparisons_stop(s, NULL);
    stop_pulls(s);
    while (s->models)
        ws_model_unlist(s->models, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    ws_parents_stop(s); /* before the pollers, which it adds and removes: none come any more */
    for (unsigned i = 0; i < n; i++)
        ws_poller_join(pollers[i]);
    set_threads_stop(s);
    ws_waiters_stop(s);
    ws_reporter_stop(s);
}

void ws_store_free(struct ws_store *s)
{
    if (!s)
        return;
    ws_store_stop(s);
    ws_reaper_stop(s);
    ws_store_put(s);
}

/* --- sources --- */

static void forget_removed(struct ws_store *s, const char *model)
{
    for (size_t i = 0; i < WS_MAX_MODELS; i++) {
        if (s->removed[i] && strcmp(s->removed[i], model) == 0) {
            free(s->removed[i]);
            s->removed[i] = NULL;
        }
    }
}

static void remember_removed(struct ws_store *s, const char *model)
{
    forget_removed(s, model);
    for (size_t i = 0; i < WS_MAX_MODELS; i++) {
        if (!s->removed[i]) {
            s->removed[i] = strdup(model);
            return;
        }
    }
}

int ws_store_add(struct ws_store *s, const char *url, const char *model, const char *below,
                 struct ws_error *err)
{
    return ws_store_add_with(s, url, model, below, NULL, NULL, err);
}

int ws_store_add_with(struct ws_store *s, const char *url, const char *model, const char *below,
                      const char *token, const char *token_file, struct ws_error *err)
{
    struct ws_store_events events;
    int rc;

    if (model && !ws_name_is_model(model))
        return ws_error_set(err, EINVAL, "'%.100s' cannot be a model: %s", model, WS_MODEL_NAME_RULE);
    rc = ws_poller_start(s, url, model, below, token, token_file, err);
    if (rc < 0 || !model)
        return rc;
    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    forget_removed(s, model);
    (void)ws_model_add(s, model, &events);
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    return 0;
}

int ws_store_remove(struct ws_store *s, const char *model, struct ws_error *err)
{
    struct ws_poller *pollers[WS_MAX_SOURCES];
    struct ws_store_events events;
    struct ws_model *m;
    unsigned n = 0;
    int rc = 0;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    m = ws_model_lookup(s, model);
    if (!m) {
        rc = ws_error_set(err, ENOENT, "there is no model %s", model);
    } else {
        remember_removed(s, model);
        n = unlist_pollers(s, model, pollers, &events);
        ws_node_parts_unlist(m, &events);
        ws_model_unlist(m, &events);
        ws_derived_follow(m, &events);
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    for (unsigned i = 0; i < n; i++)
        ws_poller_join(pollers[i]);
    return rc;
}

static bool is_same_url(const char *a, const char *b)
{
    size_t n = strlen(a), k = strlen(b);

    while (n > 0 && a[n - 1] == '/')
        n--;
    while (k > 0 && b[k - 1] == '/')
        k--;
    return n == k && memcmp(a, b, n) == 0;
}

void ws_store_remove_source(struct ws_store *s, const char *model, const char *url)
{
    struct ws_poller *pollers[WS_MAX_SOURCES];
    struct ws_store_events events;
    unsigned n = 0;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = s->pollers[i];
        if (p && !p->is_hint && p->model && strcmp(p->model, model) == 0 &&
            is_same_url(p->source->url, url)) {
            pollers[n++] = p;
            ws_poller_unlist(p, &events);
        }
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    for (unsigned i = 0; i < n; i++)
        ws_poller_join(pollers[i]);
}

bool ws_store_wait_first(struct ws_store *s, unsigned timeout_ms)
{
    const uint64_t until = ws_clock_ns() + (uint64_t)timeout_ms * WS_MS_NS;
    bool all = false, late = false;

    pthread_mutex_lock(&s->lock);
    while (!all && !late) {
        all = ws_pollers_have_answered(s);
        if (!all)
            late = ws_cond_wait_until(&s->changed, &s->lock, until) == ETIMEDOUT;
    }
    pthread_mutex_unlock(&s->lock);
    return all;
}

const char *ws_store_certificate(const struct ws_store *s)
{
    return s->options.source.cert_file;
}

size_t ws_store_sources(struct ws_store *s, struct ws_source_info *out, size_t max)
{
    const struct ws_poller *list[WS_MAX_SOURCES] = {NULL};
    size_t n = 0;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        size_t at = n;
        if (!s->pollers[i])
            continue;
        for (; at > 0 && list[at - 1]->order > s->pollers[i]->order; at--)
            list[at] = list[at - 1];
        list[at] = s->pollers[i];
        n++;
    }
    n = n < max ? n : max;
    for (size_t i = 0; i < n; i++) {
        const struct ws_poller *p = list[i];
        memset(&out[i], 0, sizeof(out[i]));
        snprintf(out[i].url, sizeof(out[i].url), "%s", p->source->url);
        snprintf(out[i].transport, sizeof(out[i].transport), "%s", ws_source_transport(p->source));
        snprintf(out[i].error, sizeof(out[i].error), "%s", p->error);
        out[i].up = p->up;
        out[i].rtt_us = atomic_load(&p->source->rtt_us);
        out[i].seconds_since_contact = p->contact_ns ? (double)(ws_clock_ns() - p->contact_ns) / 1e9 : -1;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* --- listeners and figures --- */

void ws_store_listen(struct ws_store *s, ws_store_listener *listener, void *arg)
{
    unsigned n = atomic_load(&s->n_listeners);

    assert(n < WS_MAX_LISTENERS);
    s->listeners[n].listener = listener;
    s->listeners[n].arg = arg;
    atomic_store(&s->n_listeners, n + 1);
}

void ws_store_set_readers(struct ws_store *s, const struct ws_store_readers *readers)
{
    s->readers = *readers;
}

const char *ws_copies_name(enum ws_copies copies)
{
    static const char *const names[] = {
        [WS_COPIES_TWO] = "2", [WS_COPIES_ONE] = "1", [WS_COPIES_AUTO] = "auto"};

    return names[copies];
}

void ws_store_set_reclaim(struct ws_store *s, void (*reclaim)(void *arg, struct ws_version *v), void *arg)
{
    s->reclaim_arg = arg;
    s->reclaim = reclaim;
}

void ws_store_stats(struct ws_store *s, struct ws_store_stats *out)
{
    struct ws_pool_stats pool;

    memset(out, 0, sizeof(*out));
    ws_pool_stats(s->pool, &pool);
    out->cache_bytes = s->options.cache_bytes;
    out->moved_bytes = atomic_load(&s->moved_bytes);
    out->link_bytes_s = (uint64_t)atomic_load(&s->speeds.link);
    out->on_demand_bytes = atomic_load(&s->on_demand_bytes);
    out->bad_blocks = atomic_load(&s->bad_blocks);
    out->retries = atomic_load(&s->retries);
    pthread_mutex_lock(&s->lock);
    out->used_bytes = s->used_bytes + pool.waiting_bytes;
    out->waiting_bytes = s->waiting_bytes + pool.waiting_bytes;
    out->pulls_ok = s->pulls_ok;
    out->pulls_failed = s->pulls_failed;
    pthread_mutex_unlock(&s->lock);
}
