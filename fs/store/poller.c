/* A source is asked for its state, not for changes, so the next answer makes good for a lost one. A source
 * that cannot be reached is asked again after 0.1 to 5 s. What it offered stays known, because a trainer that
 * restarts has not withdrawn anything. */
#include "fs/store/poller.h"
#include "fs/store/listing.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/transport_prefs.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/transport.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE_MS   100
#define QUIET_PAUSE_MS   1000 /* where polls are answered at once, as by a web server with files */
#define LONGEST_PAUSE_MS 5000

/* Sleeps ms, a quarter more or less so that many mounts do not poll at once, or until the stop. */
static void pause_ms(struct ws_poller *p, unsigned ms, unsigned *seed)
{
    struct ws_store *s = p->store;
    uint64_t ns = (uint64_t)ms * 750000UL + (uint64_t)rand_r(seed) % ((uint64_t)ms * 500000UL);
    const uint64_t until = ws_clock_ns() + ns;

    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&p->stop) && ws_cond_wait_until(&s->changed, &s->lock, until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->lock);
}

static void record_result(struct ws_poller *p, int rc, const struct ws_error *err)
{
    struct ws_store *s = p->store;
    bool was_up, first;

    pthread_mutex_lock(&s->lock);
    was_up = p->up;
    first = !p->answered;
    p->up = rc == 0;
    p->answered = true;
    if (rc == 0) {
        p->contact_ns = ws_clock_ns();
        p->error[0] = '\0';
    } else {
        snprintf(p->error, sizeof(p->error), "%s", err->text);
        p->reported = false;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0 && (first || !was_up))
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
    int rc = ws_source_models(p->source, p->model, *since, WS_POLL_MS, &p->stop, &listing, &err);

    *news = false;
    if (atomic_load(&p->stop)) {
        json_decref(listing);
        return -ECANCELED;
    }
    if (rc == -ENOENT && p->model) {
        /* It answers, and does not know the model yet. */
        ws_listing_clear(p);
        record_result(p, 0, &err);
        *since = 0;
        return -ENOENT;
    }
    if (rc == 0)
        rc = ws_listing_apply(p, listing, &seq, &err);
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
        pause_ms(p, wait_ms, &seed);
        const unsigned longest = rc < 0 ? LONGEST_PAUSE_MS : QUIET_PAUSE_MS;
        wait_ms = wait_ms * 2 < longest ? wait_ms * 2 : longest;
    }
    ws_poller_put(p);
    return NULL;
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
    ws_source_close(p->source);
    free(p->model);
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

int ws_poller_start(struct ws_store *s, const char *url, const char *model, const char *below,
                    const char *token, struct ws_error *err)
{
    struct ws_poller *p = calloc(1, sizeof(*p));
    struct ws_source_options options = s->options.source;
    int rc;

    if (!p || (model && !(p->model = strdup(model)))) {
        free(p);
        return ws_error_set(err, ENOMEM, "out of memory for the source %s", url);
    }
    p->store = s;
    atomic_init(&p->refs, 2); /* the store's and the thread's */
    options.below = below;
    options.token = token ? token : options.token;
    options.stop = &s->stop;
    rc = ws_source_open(url, &options, &p->source, err);
    if (rc < 0) {
        free(p->model);
        free(p);
        return rc;
    }
    p->strategy = ws_way_from_url(url);
    pthread_mutex_lock(&s->lock);
    rc = take_index(s, p);
    if (rc < 0)
        rc =
            ws_error_set(err, E2BIG, "cannot add the source %s: a mount has %d at most", url, WS_MAX_SOURCES);
    else if ((rc = ws_thread_start(&p->thread, poller_main, p)) < 0) {
        s->pollers[p->index] = NULL;
        rc = ws_error_set(err, -rc, "cannot start a thread for the source %s: %s", url, strerror(-rc));
    }
    pthread_mutex_unlock(&s->lock);
    if (rc < 0) {
        atomic_store(&p->refs, 1);
        ws_poller_put(p);
    }
    return rc;
}

void ws_poller_unlist(struct ws_poller *p, struct ws_store_events *ev)
{
    struct ws_store *s = p->store;

    atomic_store(&p->stop, true);
    s->pollers[p->index] = NULL;
    for (struct ws_model *m = s->models; m; m = m->next)
        ws_listing_forget(m, p->index);
    for (struct ws_model *m = s->models, *next; m; m = next) {
        next = m->next;
        m->reported[p->index] = false;
        ws_node_parts_reconcile(m, ev);
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
