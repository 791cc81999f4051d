/* A source is asked for its state, not for what changed, so a lost answer is made good by the next.
 * One that cannot be reached is asked again after 0.1 to 5 s; what it offered stays known, because a
 * trainer that restarts has not taken anything back. */
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
#define QUIET_PAUSE_MS   1000 /* where a poll is answered at once, as a file behind a web server is */
#define LONGEST_PAUSE_MS 5000

/* Sleeps ms, a quarter more or less so that many mounts do not come at once, or until the stop. */
static void pause_ms(struct ws_watch *w, unsigned ms, unsigned *seed)
{
    struct ws_store *s = w->store;
    uint64_t ns = (uint64_t)ms * 750000UL + (uint64_t)rand_r(seed) % ((uint64_t)ms * 500000UL);
    const uint64_t until = ws_clock_ns() + ns;

    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&w->stop) && ws_cond_wait_until(&s->changed, &s->lock, until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->lock);
}

static void note(struct ws_watch *w, int rc, const struct ws_error *err)
{
    struct ws_store *s = w->store;
    bool was_up, first;

    pthread_mutex_lock(&s->lock);
    was_up = w->up;
    first = !w->answered;
    w->up = rc == 0;
    w->answered = true;
    if (rc == 0) {
        w->contact_ns = ws_clock_ns();
        w->error[0] = '\0';
    } else {
        snprintf(w->error, sizeof(w->error), "%s", err->text);
        w->told = false;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0 && (first || !was_up))
        ws_log(WS_LOG_INFO, "store", "source is there url=%s", w->source->url);
    else if (rc < 0 && (first || was_up))
        ws_log(WS_LOG_WARN, "store", "source is not there, asking again url=%s error=\"%s\"", w->source->url,
               err->text);
}

/* One question; *since is the state that is known. Returns whether there was news. */
static int ask(struct ws_watch *w, uint64_t *since, bool *news)
{
    struct ws_error err = {0};
    json_t *listing = NULL;
    uint64_t seq = 0;
    int rc = ws_source_models(w->source, w->model, *since, WS_POLL_MS, &w->stop, &listing, &err);

    *news = false;
    if (atomic_load(&w->stop)) {
        json_decref(listing);
        return -ECANCELED;
    }
    if (rc == -ENOENT && w->model) {
        /* It is there and has not heard of the model yet. */
        ws_listing_clear(w);
        note(w, 0, &err);
        *since = 0;
        return -ENOENT;
    }
    if (rc == 0)
        rc = ws_listing_apply(w, listing, &seq, &err);
    json_decref(listing);
    note(w, rc, &err);
    *news = rc == 0 && seq != *since;
    *since = rc == 0 ? seq : 0;
    return rc;
}

static void *watch_main(void *arg)
{
    struct ws_watch *w = arg;
    uint64_t since = 0;
    unsigned wait_ms = FIRST_PAUSE_MS, seed = (unsigned)(ws_clock_ns() ^ w->order);

    ws_thread_nice(w->store->options.nice);
    while (!atomic_load(&w->stop)) {
        uint64_t began = ws_clock_ns();
        bool news;
        int rc = ask(w, &since, &news);
        if (rc == 0 && (news || ws_clock_ns() - began > FIRST_PAUSE_MS * WS_MS_NS)) {
            wait_ms = FIRST_PAUSE_MS;
            continue;
        }
        /* Failed, or answered at once without news: not again at once. */
        pause_ms(w, wait_ms, &seed);
        const unsigned longest = rc < 0 ? LONGEST_PAUSE_MS : QUIET_PAUSE_MS;
        wait_ms = wait_ms * 2 < longest ? wait_ms * 2 : longest;
    }
    ws_watch_put(w);
    return NULL;
}

struct ws_watch *ws_watch_get(struct ws_watch *w)
{
    atomic_fetch_add(&w->refs, 1);
    return w;
}

void ws_watch_put(struct ws_watch *w)
{
    if (atomic_fetch_sub(&w->refs, 1) != 1)
        return;
    ws_source_close(w->source);
    free(w->model);
    free(w);
}

/* A place whose bit no version carries any more. Places are given out in turn, so that a pull does
 * not take a source that is new for one that has refused it. */
static int take_place(struct ws_store *s, struct ws_watch *w)
{
    for (unsigned k = 0; k < WS_MAX_SOURCES; k++) {
        unsigned i = (unsigned)((s->next_watch + k) % WS_MAX_SOURCES);
        if (s->watches[i])
            continue;
        w->index = i;
        w->order = s->next_watch++;
        s->watches[i] = w;
        return 0;
    }
    return -E2BIG;
}

int ws_watch_start(struct ws_store *s, const char *url, const char *model, const char *below,
                   struct ws_error *err)
{
    struct ws_watch *w = calloc(1, sizeof(*w));
    struct ws_source_options options = s->options.source;
    int rc;

    if (!w || (model && !(w->model = strdup(model)))) {
        free(w);
        return ws_error_set(err, ENOMEM, "out of memory for the source %s", url);
    }
    w->store = s;
    atomic_init(&w->refs, 2); /* the store's and the thread's */
    options.below = below;
    options.stop = &s->stop;
    rc = ws_source_open(url, &options, &w->source, err);
    if (rc < 0) {
        free(w->model);
        free(w);
        return rc;
    }
    w->strategy = ws_way_of_url(url);
    pthread_mutex_lock(&s->lock);
    rc = take_place(s, w);
    if (rc < 0)
        rc = ws_error_set(err, E2BIG, "%s is one source more than the limit of %d", url, WS_MAX_SOURCES);
    else if ((rc = ws_thread_start(&w->thread, watch_main, w)) < 0) {
        s->watches[w->index] = NULL;
        rc = ws_error_set(err, -rc, "cannot start a thread for the source %s: %s", url, strerror(-rc));
    }
    pthread_mutex_unlock(&s->lock);
    if (rc < 0) {
        atomic_store(&w->refs, 1);
        ws_watch_put(w);
    }
    return rc;
}

void ws_watch_unlist(struct ws_watch *w, struct ws_changes *c)
{
    struct ws_store *s = w->store;

    atomic_store(&w->stop, true);
    s->watches[w->index] = NULL;
    for (struct ws_model *m = s->models; m; m = m->next)
        ws_listing_forget(m, w->index);
    for (struct ws_model *m = s->models, *next; m; m = next) {
        next = m->next;
        m->told[w->index] = false;
        ws_parts_settle(m, c);
        ws_listing_renew(m, c);
        ws_offers_settle(m);
        ws_changes_add(c, WS_MODEL_OFFERS, m, NULL);
        ws_model_settle(m, c);
    }
    pthread_cond_broadcast(&s->changed);
}

void ws_watch_join(struct ws_watch *w)
{
    pthread_join(w->thread, NULL);
    ws_watch_put(w);
}
