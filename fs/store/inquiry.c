/* A thread a source, while any wants to know. It has a reference to the store, and of the poller: one whose source does
 * not answer may outlive both. */
#include "fs/store/inquiry.h"
#include "fs/store/listing.h"
#include "fs/store/model.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

#define BOUND_NS    (WS_INQUIRY_MS * WS_MS_NS)
#define AWAY_NS     WS_SECOND_NS /* one that has failed is not asked again before */
#define INTERVAL_NS (WS_SECOND_NS / WS_INQUIRY_RATE)
#define LOG_NS      (60 * WS_SECOND_NS)

/* --- with store->lock --- */

static bool is_of(const struct ws_poller *p, const char *model)
{
    return !p->is_hint && (!p->model || strcmp(p->model, model) == 0);
}

/* Is it no use to ask it now? */
static bool is_away(const struct ws_inquirer *i, uint64_t now)
{
    const bool hangs = i->runs && i->began_ns > i->ended_ns && now - i->began_ns > BOUND_NS;
    return hangs || (i->failed_ns && now - i->failed_ns < AWAY_NS);
}

static bool is_over(struct ws_store *s, const struct ws_inquiry *q)
{
    struct ws_model *m = q->any ? NULL : ws_model_lookup(s, q->model);

    if (q->first)
        return ws_pollers_have_answered(s);
    if (m && ws_version_lookup(m, q->number, m->lineage))
        return true;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        if ((q->sources & ws_bit(i)) && s->pollers[i] && s->pollers[i]->inquirer.ended_ns < q->since_ns)
            return false;
    return true;
}

static void enqueue(struct ws_store *s, struct ws_inquiry *q)
{
    q->queued = true;
    s->n_inquiries++;
    LIST_INSERT_HEAD(&s->inquiries, q, link);
    ws_waiters_schedule(s, q->deadline_ns);
}

static void dequeue(struct ws_store *s, struct ws_inquiry *q)
{
    assert(q->queued && s->n_inquiries > 0);
    q->queued = false;
    s->n_inquiries--;
    LIST_REMOVE(q, link);
}

/* Those that are taken out are linked by the same member, the last one to NULL. */
static struct ws_inquiry *collect(struct ws_store *s, uint64_t due, bool all, uint64_t *next)
{
    struct ws_inquiry *chain = NULL, *q, *after;

    for (q = LIST_FIRST(&s->inquiries); q; q = after) {
        after = LIST_NEXT(q, link);
        if (!all && q->deadline_ns > due && !is_over(s, q)) {
            if (next && q->deadline_ns < *next)
                *next = q->deadline_ns;
            continue;
        }
        dequeue(s, q);
        LIST_NEXT(q, link) = chain;
        chain = q;
    }
    return chain;
}

/* An operator is told that names are looked up in vain, and not how often. */
static void log_away(struct ws_store *s, const struct ws_poller *p, const char *why)
{
    const uint64_t now = ws_clock_ns();

    if (s->inquiry_logged_ns && now - s->inquiry_logged_ns < LOG_NS)
        return;
    s->inquiry_logged_ns = now;
    ws_log(WS_LOG_WARN, "store",
           "a version was looked up that is not known here, and a source could not be asked for it url=%s "
           "error=\"%s\"",
           p->source->url, why);
}

struct ws_inquiry *ws_inquiries_collect_due(struct ws_store *s, uint64_t now, bool all, uint64_t *next)
{
    struct ws_inquiry *chain = collect(s, now, all, next);

    for (const struct ws_inquiry *q = chain; q && !all; q = LIST_NEXT(q, link))
        for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
            if ((q->sources & ws_bit(i)) && s->pollers[i] && s->pollers[i]->inquirer.ended_ns < q->since_ns)
                log_away(s, s->pollers[i], "no answer");
    return chain;
}

struct ws_inquiry *ws_inquiries_collect(struct ws_store *s)
{
    return collect(s, 0, false, NULL);
}

void ws_inquiries_complete(struct ws_inquiry *chain)
{
    while (chain) {
        struct ws_inquiry *q = chain;
        chain = LIST_NEXT(q, link);
        q->done(q); /* q may be gone now */
    }
}

/* --- the thread --- */

static int ask(struct ws_poller *p, struct ws_error *err)
{
    const uint64_t began_ns = ws_clock_ns();
    json_t *listing = NULL;
    uint64_t seq;
    /* since 0: it answers at once. It is told of the usual time between polls, by which an agent knows that a mount lives. */
    int rc = ws_source_models(p->source, p->model, 0, WS_POLL_MS, &p->stop, &listing, err);

    if (rc == 0)
        rc = ws_listing_apply(p, listing, began_ns, &seq, err);
    json_decref(listing);
    return rc == -ENOENT && p->model ? 0 : rc; /* it answers, and does not know the model */
}

/* Waits until what was asked lately is paid for. */
static void pace(struct ws_poller *p)
{
    struct ws_store *s = p->store;
    struct ws_inquirer *i = &p->inquirer;
    const uint64_t now = ws_clock_ns();

    i->paid_ns = (i->paid_ns > now ? i->paid_ns : now) + INTERVAL_NS;
    while (!atomic_load(&p->stop) && i->paid_ns > ws_clock_ns() + WS_SECOND_NS)
        (void)ws_cond_wait_until(&s->changed, &s->lock, i->paid_ns - WS_SECOND_NS);
}

static void *inquirer_main(void *arg)
{
    struct ws_poller *p = arg;
    struct ws_store *s = p->store;
    struct ws_inquirer *i = &p->inquirer;

    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&p->stop) && i->wanted_ns > i->began_ns) {
        struct ws_error err = {0};
        pace(p);
        const uint64_t began = i->began_ns = ws_clock_ns();
        pthread_mutex_unlock(&s->lock);
        const int rc = ask(p, &err);
        pthread_mutex_lock(&s->lock);
        i->ended_ns = began;
        i->failed_ns = rc < 0 ? ws_clock_ns() : 0;
        if (rc < 0 && rc != -ECANCELED)
            log_away(s, p, err.text);
        struct ws_inquiry *chain = ws_inquiries_collect(s);
        pthread_mutex_unlock(&s->lock);
        ws_inquiries_complete(chain);
        pthread_mutex_lock(&s->lock);
    }
    i->runs = false;
    pthread_mutex_unlock(&s->lock);
    ws_poller_put(p);
    ws_store_put(s);
    return NULL;
}

/* With store->lock. */
static int want(struct ws_poller *p, uint64_t now)
{
    struct ws_store *s = p->store;
    pthread_t thread;
    int rc;

    p->inquirer.wanted_ns = now;
    if (p->inquirer.runs)
        return 0;
    atomic_fetch_add(&s->refs, 1);
    rc = ws_thread_start(&thread, inquirer_main, ws_poller_get(p));
    if (rc < 0) { /* neither is the last one */
        ws_poller_put(p);
        atomic_fetch_sub(&s->refs, 1);
        return rc;
    }
    pthread_detach(thread);
    p->inquirer.runs = true;
    return 0;
}

int ws_inquiry_start(struct ws_store *s, const char *model, const uint64_t *number, struct ws_inquiry *q)
{
    int rc = 0;

    assert(q->done && !q->queued);
    pthread_mutex_lock(&s->lock);
    const uint64_t now = ws_clock_ns();
    q->number = number ? *number : 0;
    q->any = !number;
    q->since_ns = now;
    q->deadline_ns = now + BOUND_NS;
    q->sources = 0;
    if (s->n_inquiries >= WS_MAX_INQUIRIES)
        rc = -EAGAIN;
    for (unsigned i = 0; rc == 0 && !atomic_load(&s->stop) && i < WS_MAX_SOURCES; i++)
        if (s->pollers[i] && is_of(s->pollers[i], model) && !is_away(&s->pollers[i]->inquirer, now) &&
            want(s->pollers[i], now) == 0)
            q->sources |= ws_bit(i);
    if (rc == 0 && !q->sources)
        rc = -ENOENT;
    if (rc == 0) {
        q->model = model;
        enqueue(s, q);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int ws_inquiry_await_first(struct ws_store *s, uint64_t until_ns, struct ws_inquiry *q)
{
    int rc = 0;

    assert(q->done && !q->queued);
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->stop) || ws_pollers_have_answered(s) || ws_clock_ns() >= until_ns)
        rc = -EALREADY;
    else if (s->n_inquiries >= WS_MAX_INQUIRIES)
        rc = -EAGAIN;
    if (rc == 0) {
        q->any = q->first = true;
        q->deadline_ns = until_ns;
        enqueue(s, q);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

bool ws_inquiry_cancel(struct ws_store *s, struct ws_inquiry *q)
{
    pthread_mutex_lock(&s->lock);
    const bool ours = q->queued;
    if (ours)
        dequeue(s, q);
    pthread_mutex_unlock(&s->lock);
    return ours;
}
