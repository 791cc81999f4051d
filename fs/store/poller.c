/* A source is asked for its state, not for changes, so the next answer makes good for a lost one. A source
 * that cannot be reached is asked again after 0.1 to 5 s. What it offered stays known, because a trainer that
 * restarts has not withdrawn anything. */
#include "fs/store/poller.h"
#include "fs/store/derived.h"
#include "fs/store/listing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/transport_prefs.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/transport.h"
#include "transports/ucx/ucx.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HUNG_NS          (60 * WS_SECOND_NS)
#define FIRST_PAUSE_MS   100
#define QUIET_PAUSE_MS   1000 /* where polls are answered at once, as by a web server with files */
#define LONGEST_PAUSE_MS 5000
/* parents.c watches them: they may wait for blocks as long as they answer otherwise. */
#define HINT_STALL_MS    (WS_ARRIVAL_MS + 10000) /* a parent answers before that why it does not come */

bool ws_pollers_have_answered(const struct ws_store *s)
{
    bool all = true;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        all = all && (!s->pollers[i] || s->pollers[i]->answered);
    return all;
}

static void record_result(struct ws_poller *p, int rc, const struct ws_error *err)
{
    struct ws_store *s = p->store;
    struct ws_inquiry *chain;
    bool was_up, is_up, first;

    pthread_mutex_lock(&s->lock);
    was_up = p->is_said_up;
    first = !p->answered;
    is_up = p->up && rc == 0; /* by its list, unless the watcher of parents has found it dead since */
    p->up = p->is_said_up = is_up;
    p->answered = true;
    if (rc == 0) {
        p->contact_ns = ws_clock_ns();
        p->error[0] = '\0';
    } else {
        snprintf(p->error, sizeof(p->error), "%s", err->text);
        p->reported = false;
    }
    pthread_cond_broadcast(&s->changed);
    chain = first ? ws_inquiries_collect(s) : NULL;
    pthread_mutex_unlock(&s->lock);
    ws_inquiries_complete(chain);
    if (is_up && (first || !was_up))
        ws_log(WS_LOG_INFO, "store", "source answers url=%s", p->source->url);
    else if (rc < 0 && (first || was_up))
        ws_log(WS_LOG_WARN, "store", "source does not answer, retrying url=%s error=\"%s\"", p->source->url,
               err->text);
}

/* One long poll; *since is the state that is known. *news: there is a new one. */
static int poll_once(struct ws_poller *p, uint64_t *since, bool *news)
{
    struct ws_error err = {0};
    json_t *listing = NULL;
    uint64_t seq = 0;
    const uint64_t asked_ns = ws_clock_ns();
    int rc = ws_source_models(p->source, p->model, *since, WS_POLL_MS, &p->stop, &listing, &err);

    *news = false;
    if (atomic_load(&p->stop)) {
        json_decref(listing);
        return -ECANCELED;
    }
    if (rc == -ENOENT && p->model) {
        /* It answers, and does not know the model yet. */
        ws_listing_clear(p, asked_ns);
        record_result(p, 0, &err);
        *since = 0;
        return -ENOENT;
    }
    if (rc == 0)
        rc = ws_listing_apply(p, listing, asked_ns, &seq, &err);
    json_decref(listing);
    record_result(p, rc, &err);
    *news = rc == 0 && seq != *since;
    *since = rc == 0 ? seq : 0;
    return rc;
}

static void *poller_main(void *arg)
{
    struct ws_poller *p = arg;
    uint64_t since = 0;
    unsigned wait_ms = FIRST_PAUSE_MS, seed = (unsigned)(ws_clock_ns() ^ p->order);

    ws_thread_nice(p->store->options.nice);
    while (!atomic_load(&p->stop)) {
        uint64_t began = ws_clock_ns();
        bool news;
        int rc = poll_once(p, &since, &news);
        if (rc == 0 && (news || ws_clock_ns() - began > FIRST_PAUSE_MS * WS_MS_NS)) {
            wait_ms = FIRST_PAUSE_MS;
            continue;
        }
        /* It failed, or answered at once without news: the next poll has to wait. */
        ws_store_pause(p->store, &p->stop, NULL, wait_ms, &seed);
        const unsigned longest = rc < 0 ? LONGEST_PAUSE_MS : QUIET_PAUSE_MS;
        wait_ms = wait_ms * 2 < longest ? wait_ms * 2 : longest;
    }
    ws_poller_put(p);
    return NULL;
}

void ws_poller_note_signature(struct ws_poller *p, int rc)
{
    if (rc == 0 || rc == -ETIMEDOUT)
        atomic_store(&p->hung_ns, rc == 0 ? 0 : ws_clock_ns());
}

bool ws_poller_hung_lately(const struct ws_poller *p)
{
    const uint64_t when = atomic_load(&p->hung_ns);
    return when != 0 && ws_clock_ns() - when < HUNG_NS;
}

struct ws_poller *ws_poller_get(struct ws_poller *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void ws_poller_put(struct ws_poller *p)
{
    if (atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    ws_source_close(p->ucx);
    ws_source_close(p->source);
    free(p->model);
    json_decref(p->listing);
    free(p);
}

/* A free index, whose bit no version has. They are given out in turn, so that a pull does not mistake a new
 * source for one that has refused it. */
static int take_index(struct ws_store *s, struct ws_poller *p)
{
    for (unsigned k = 0; k < WS_MAX_SOURCES; k++) {
        unsigned i = (unsigned)((s->next_order + k) % WS_MAX_SOURCES);
        if (s->pollers[i])
            continue;
        p->index = i;
        p->order = s->next_order++;
        s->pollers[i] = p;
        return 0;
    }
    return -E2BIG;
}

/* Beside an http source, where the mount was told to. Without it weights come by tcp. */
static void open_ucx(struct ws_poller *p, const struct ws_source_options *options)
{
    struct ws_error why = {0};

    if (p->store->options.ucx && !p->is_hint && p->strategy == WS_WAY_TCP &&
        ws_ucx_source_beside(p->source, options, &p->ucx, &why) < 0)
        ws_log(WS_LOG_WARN, "store", "weights come by tcp, not by ucx url=%s error=\"%s\"", p->source->url,
               why.text);
}

static int start(struct ws_store *s, const char *url, const char *model,
                 const struct ws_source_options *options, bool is_hint, unsigned *out, struct ws_error *err)
{
    struct ws_poller *p = calloc(1, sizeof(*p));
    int rc;

    if (!p || (model && !(p->model = strdup(model)))) {
        free(p);
        return ws_error_set(err, ENOMEM, "out of memory for the source %s", url);
    }
    p->store = s;
    atomic_init(&p->refs, 2); /* the store's and the thread's */
    p->is_hint = is_hint;
    rc = ws_source_open(url, options, &p->source, err);
    if (rc < 0) {
        free(p->model);
        free(p);
        return rc;
    }
    p->strategy = ws_way_from_url(url);
    open_ucx(p, options);
    pthread_mutex_lock(&s->lock);
    rc = atomic_load(&s->stop) ? -ECANCELED : take_index(s, p);
    if (rc == -ECANCELED)
        rc = ws_error_set(err, ECANCELED, "the mount ends");
    else if (rc < 0)
        rc =
            ws_error_set(err, E2BIG, "cannot add the source %s: a mount has %d at most", url, WS_MAX_SOURCES);
    else if ((rc = ws_thread_start(&p->thread, poller_main, p)) < 0) {
        s->pollers[p->index] = NULL;
        rc = ws_error_set(err, -rc, "cannot start a thread for the source %s: %s", url, strerror(-rc));
    } else {
        *out = p->index;
    }
    pthread_mutex_unlock(&s->lock);
    if (rc < 0) {
        atomic_store(&p->refs, 1);
        ws_poller_put(p);
    }
    return rc;
}

int ws_poller_start(struct ws_store *s, const char *url, const char *model, const char *below,
                    const char *token, const char *token_file, struct ws_error *err)
{
    struct ws_source_options options = s->options.source;
    unsigned index;

    options.below = below;
    options.token_file = token ? token_file : options.token_file;
    options.token = token ? token : options.token;
    options.stop = &s->stop;
    return start(s, url, model, &options, false, &index, err);
}

int ws_poller_start_hint(struct ws_store *s, const char *url, const char *model, const char *token,
                         const char *token_file, unsigned *out, struct ws_error *err)
{
    struct ws_source_options options = s->options.source;

    options.token = token;
    options.token_file = token_file;
    options.stall_ms = HINT_STALL_MS;
    options.stop = &s->stop;
    return start(s, url, model, &options, true, out, err);
}

void ws_poller_unlist(struct ws_poller *p, struct ws_store_events *ev)
{
    struct ws_store *s = p->store;

    atomic_store(&p->stop, true);
    s->pollers[p->index] = NULL;
    for (struct ws_model *m = s->models; m; m = m->next) {
        ws_listing_forget(m, p->index);
        if (s->puller->end_coming)
            s->puller->end_coming(m, p);
    }
    for (struct ws_model *m = s->models; m; m = m->next) {
        m->reported[p->index] = false;
        ws_node_parts_reconcile(m, ev);
    }
    ws_derived_reconcile(s, ev);
    for (struct ws_model *m = s->models, *next; m; m = next) {
        next = m->next;
        ws_listing_renew(m, ev);
        ws_offers_reconcile(m);
        ws_store_events_add(ev, WS_MODEL_OFFERS, m, NULL);
        ws_model_reconcile(m, ev);
    }
    pthread_cond_broadcast(&s->changed);
}

void ws_poller_join(struct ws_poller *p)
{
    pthread_join(p->thread, NULL);
    ws_poller_put(p);
}
