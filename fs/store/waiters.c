/* A waiter is in its version's list until a thread takes it out, under store->lock. From then on that thread
 * alone calls done, and cancel returns false. The deadline thread sleeps until the earliest deadline of all
 * versions. When it wakes, at most a hundred times a second, it looks at every waiter, because deadlines are
 * rare and waiters are few. */
#include "fs/store/waiters.h"
#include "fs/store/content.h"
#include "fs/store/events.h"
#include "fs/store/growing.h"
#include "fs/store/inquiry.h"
#include "fs/store/part_description.h"
#include "fs/store/wants.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_STEP_NS 10000000UL /* deadlines that are closer to each other are handled together */

bool ws_waiter_is_satisfied(struct ws_version *v, size_t file, size_t first, size_t n)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (file == WS_FILE_ALL)
        return atomic_load(&v->complete);
    if (file == WS_FILE_HEADERS)
        return ws_content_has_headers(v);
    if (file == WS_FILE_MANIFEST)
        return ws_version_has_manifest(v);
    return m && (n == 0 || (file < m->n_files && ws_version_waits_for_none(v, file, first, n)));
}

/* Blocks that describe a part are passed on before they have a place. With store->lock. */
static bool is_satisfied(struct ws_version *v, size_t file, size_t first, size_t n)
{
    return ws_waiter_is_satisfied(v, file, first, n) || ws_part_description_shows(v, file, first, n);
}

/* --- the list; with store->lock --- */

static void enqueue(struct ws_version *v, struct ws_waiter *w)
{
    w->queued = true;
    w->next = NULL;
    w->prev = v->last_waiter;
    *(v->last_waiter ? &v->last_waiter->next : &v->waiters) = w;
    v->last_waiter = w;
    ws_version_get(v);
}

static void dequeue(struct ws_version *v, struct ws_waiter *w)
{
    assert(w->queued);
    w->queued = false;
    *(w->prev ? &w->prev->next : &v->waiters) = w->next;
    *(w->next ? &w->next->prev : &v->last_waiter) = w->prev;
    w->next = w->prev = NULL;
    atomic_fetch_sub(&v->n_waiters, 1);
}

static bool grows_enough(const struct ws_version *v, const struct ws_waiter *w)
{
    uint64_t attempt;

    return w->some_bytes > 0 && ws_growing_bytes(v, w->file, w->first, &attempt) >= w->some_bytes;
}

static bool is_over(struct ws_waiter *w)
{
    return is_satisfied(w->version, w->file, w->first, w->n) || grows_enough(w->version, w);
}

struct ws_waiter *ws_waiters_collect(struct ws_version *v, int code)
{
    struct ws_waiter *chain = NULL, **end = &chain, *next;

    for (struct ws_waiter *w = v->waiters; w; w = next) {
        bool over = is_over(w);
        next = w->next;
        if (!over && code == 0)
            continue;
        dequeue(v, w);
        w->result = over ? 0 : code;
        *end = w;
        end = &w->next;
    }
    return chain;
}

void ws_waiters_complete(struct ws_waiter *chain)
{
    while (chain) {
        struct ws_waiter *w = chain;
        struct ws_version *v = w->version;
        chain = w->next;
        w->next = NULL;
        w->done(w, w->result); /* w may be gone now */
        ws_version_put(v);
    }
}

void ws_waiters_wake(struct ws_version *v)
{
    struct ws_waiter *chain;

    if (atomic_load(&v->n_waiters) == 0)
        return;
    pthread_mutex_lock(&v->store->lock);
    chain = ws_waiters_collect(v, 0);
    pthread_mutex_unlock(&v->store->lock);
    ws_waiters_complete(chain);
}

/* --- requests --- */

void ws_waiters_schedule(struct ws_store *s, uint64_t at_ns)
{
    if (at_ns >= s->next_deadline_ns)
        return;
    s->next_deadline_ns = at_ns;
    pthread_cond_signal(&s->deadline_changed);
}

static enum ws_goal goal_for(size_t file, size_t n)
{
    if (file == WS_FILE_HEADERS)
        return WS_GOAL_HEADERS;
    return file == WS_FILE_ALL || n > 0 ? WS_GOAL_ALL : WS_GOAL_MANIFEST;
}

static int add(struct ws_version *v, size_t file, size_t first, size_t n, enum ws_priority priority,
               uint64_t deadline_ns, uint64_t progress_timeout_ns, struct ws_waiter *w)
{
    struct ws_store *s = v->store;
    const struct ws_manifest *m;
    int rc;

    assert(w->done);
    if (file == WS_FILE_ALL || n > 0)
        atomic_store(&v->only_for_views, false);
    if (ws_waiter_is_satisfied(v, file, first, n))
        return 1;
    w->version = v;
    w->file = file;
    w->first = first;
    w->n = n;
    w->deadline_ns = deadline_ns;
    w->progress_timeout_ns = progress_timeout_ns;
    w->result = 0;
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&v->n_waiters, 1);
    if (is_satisfied(v, file, first, n) || grows_enough(v, w)) {
        atomic_fetch_sub(&v->n_waiters, 1);
        pthread_mutex_unlock(&s->lock);
        return 1;
    }
    enqueue(v, w);
    m = atomic_load(&v->manifest);
    if (file < WS_FILE_MANIFEST && m && file >= m->n_files)
        rc = -EINVAL;
    else
        rc = s->puller->request(v, goal_for(file, n), priority);
    if (rc < 0) { /* the deadline thread reports it: done is never called from here */
        w->result = rc;
        w->deadline_ns = 0;
    }
    ws_waiters_schedule(s, w->deadline_ns);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int ws_version_await(struct ws_version *v, size_t file, size_t first, size_t n, unsigned timeout_ms,
                     struct ws_waiter *w)
{
    const uint64_t progress_timeout_ns = (uint64_t)timeout_ms * WS_MS_NS;
    return add(v, file, first, n, WS_PRIORITY_READER, ws_clock_ns() + progress_timeout_ns,
               progress_timeout_ns, w);
}

int ws_waiters_add(struct ws_version *v, size_t file, size_t first, size_t n, enum ws_priority priority,
                   uint64_t deadline_ns, struct ws_waiter *w)
{
    return add(v, file, first, n, priority, deadline_ns, 0, w);
}

bool ws_waiter_cancel(struct ws_waiter *w)
{
    struct ws_version *v = w->version;
    struct ws_store *s = v->store;
    bool ours;

    pthread_mutex_lock(&s->lock);
    ours = w->queued;
    if (ours)
        dequeue(v, w);
    pthread_mutex_unlock(&s->lock);
    if (ours)
        ws_version_put(v);
    return ours;
}

/* --- the deadline thread --- */

/* A waiter with a progress timeout is not due while bytes of its version come. */
static void extend_deadline(const struct ws_version *v, struct ws_waiter *w)
{
    if (w->progress_timeout_ns == 0 || w->result < 0 || !v->pull)
        return;
    const uint64_t due = v->store->puller->progress_ns(v->pull) + w->progress_timeout_ns;
    if (due > w->deadline_ns)
        w->deadline_ns = due;
}

/* A reader gave up: the reason is shown as a pull's failure is, though the pull goes on. */
static void report_timeout(struct ws_version *v, const struct ws_waiter *w, struct ws_store_events *ev)
{
    char why[WS_ERROR_TEXT / 2], text[WS_ERROR_TEXT];

    if (w->progress_timeout_ns == 0 || !v->pull)
        return;
    v->store->puller->describe(v->pull, why);
    snprintf(text, sizeof(text), "nothing of %s/%lu came for %.1f s (deadline=): %s", v->model->name,
             v->number, (double)w->progress_timeout_ns / 1e9, why);
    free(v->error);
    v->error = strdup(text);
    v->error_code = ETIMEDOUT;
    ws_store_events_add(ev, WS_VERSION_READ_FAILED, v->model, v);
}

/* Takes out all waiters that are due, of all versions, and sets when to look again. With store->lock. */
static struct ws_waiter *collect_due(struct ws_store *s, uint64_t now, bool all, struct ws_store_events *ev)
{
    struct ws_waiter *chain = NULL, **end = &chain, *next;

    s->next_deadline_ns = WS_NEVER;
    for (unsigned i = 0; i < WS_ID_BUCKETS; i++) {
        for (struct ws_version *v = s->ids[i]; v; v = v->next_id) {
            const uint64_t next_look = v->pull && !all ? s->puller->check_silence(v->pull, now) : WS_NEVER;
            bool late = false;
            if (next_look < s->next_deadline_ns)
                s->next_deadline_ns = next_look;
            for (struct ws_waiter *w = v->waiters; w; w = next) {
                next = w->next;
                if (w->deadline_ns <= now && !all)
                    extend_deadline(v, w);
                if (w->deadline_ns > now && !all) {
                    if (w->deadline_ns < s->next_deadline_ns)
                        s->next_deadline_ns = w->deadline_ns;
                    continue;
                }
                dequeue(v, w);
                if (is_over(w))
                    w->result = 0;
                else if (w->result == 0) {
                    w->result = all ? -ECANCELED : -ETIMEDOUT;
                    if (!all && !late)
                        report_timeout(v, w, ev);
                    late = true;
                }
                *end = w;
                end = &w->next;
            }
        }
    }
    return chain;
}

static void *deadline_main(void *arg)
{
    struct ws_store *s = arg;
    struct ws_store_events events;
    struct ws_inquiry *inquiries;
    struct ws_waiter *chain;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    while (!s->threads_stop) {
        uint64_t now = ws_clock_ns();
        if (s->next_deadline_ns > now) {
            uint64_t until = s->next_deadline_ns == WS_NEVER ? now + 3600000000000UL
                                                             : s->next_deadline_ns + DEADLINE_STEP_NS;
            (void)ws_cond_wait_until(&s->deadline_changed, &s->lock, until);
            continue;
        }
        chain = collect_due(s, now, false, &events);
        inquiries = ws_inquiries_collect_due(s, now, false, &s->next_deadline_ns);
        pthread_mutex_unlock(&s->lock);
        ws_store_events_notify(&events, s); /* first: done may look why it failed */
        ws_waiters_complete(chain);
        ws_inquiries_complete(inquiries);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int ws_waiters_start(struct ws_store *s, struct ws_error *err)
{
    int rc = ws_thread_start(&s->deadline_thread, deadline_main, s);

    if (rc < 0)
        return ws_error_set(err, -rc, "cannot start the store's deadline thread: %s", strerror(-rc));
    return 0;
}

void ws_waiters_stop(struct ws_store *s)
{
    struct ws_inquiry *inquiries;
    struct ws_waiter *chain;

    pthread_join(s->deadline_thread, NULL);
    pthread_mutex_lock(&s->lock);
    chain = collect_due(s, 0, true, NULL);
    inquiries = ws_inquiries_collect_due(s, 0, true, NULL);
    pthread_mutex_unlock(&s->lock);
    ws_waiters_complete(chain);
    ws_inquiries_complete(inquiries);
}
