/* A wait stands in its version's list until somebody takes it out, under the store's lock; from then
 * on done is called by the taker and by nobody else, and cancel says that it comes too late. The
 * clock thread sleeps until the earliest deadline of all versions. It looks at every wait when it
 * wakes, at most a hundred times a second, because deadlines are rare and waits are few. */
#include "fs/store/waiters.h"
#include "fs/store/content.h"
#include "fs/store/events.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_STEP_NS 10000000UL /* deadlines that are closer to each other are answered together */

bool ws_wait_is_over(struct ws_version *v, size_t file, size_t first, size_t n)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (file == WS_FILE_ALL)
        return atomic_load(&v->complete);
    if (file == WS_FILE_HEADERS)
        return ws_content_has_headers(v);
    return m && (n == 0 || (file < m->n_files && ws_content_has(v, file, first, n)));
}

/* --- the list; with store->lock --- */

static void enqueue(struct ws_version *v, struct ws_wait *w)
{
    w->queued = true;
    w->next = NULL;
    w->prev = v->last_wait;
    *(v->last_wait ? &v->last_wait->next : &v->waits) = w;
    v->last_wait = w;
    ws_version_get(v);
}

static void dequeue(struct ws_version *v, struct ws_wait *w)
{
    assert(w->queued);
    w->queued = false;
    *(w->prev ? &w->prev->next : &v->waits) = w->next;
    *(w->next ? &w->next->prev : &v->last_wait) = w->prev;
    w->next = w->prev = NULL;
    atomic_fetch_sub(&v->n_waits, 1);
}

static bool is_over(struct ws_wait *w)
{
    return ws_wait_is_over(w->version, w->file, w->first, w->n);
}

struct ws_wait *ws_waits_take(struct ws_version *v, int code)
{
    struct ws_wait *chain = NULL, **end = &chain, *next;

    for (struct ws_wait *w = v->waits; w; w = next) {
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

void ws_waits_tell(struct ws_wait *chain)
{
    while (chain) {
        struct ws_wait *w = chain;
        struct ws_version *v = w->version;
        chain = w->next;
        w->next = NULL;
        w->done(w, w->result); /* w may be gone now */
        ws_version_put(v);
    }
}

void ws_waits_answer(struct ws_version *v)
{
    struct ws_wait *chain;

    if (atomic_load(&v->n_waits) == 0)
        return;
    pthread_mutex_lock(&v->store->lock);
    chain = ws_waits_take(v, 0);
    pthread_mutex_unlock(&v->store->lock);
    ws_waits_tell(chain);
}

/* --- asking --- */

void ws_waits_look_at(struct ws_store *s, uint64_t at_ns)
{
    if (at_ns >= s->next_deadline_ns)
        return;
    s->next_deadline_ns = at_ns;
    pthread_cond_signal(&s->clock_changed);
}

static enum ws_goal goal_of(size_t file, size_t n)
{
    if (file == WS_FILE_HEADERS)
        return WS_GOAL_HEADERS;
    return file == WS_FILE_ALL || n > 0 ? WS_GOAL_ALL : WS_GOAL_MANIFEST;
}

static int ask(struct ws_version *v, size_t file, size_t first, size_t n, enum ws_priority priority,
               uint64_t deadline_ns, uint64_t patience_ns, struct ws_wait *w)
{
    struct ws_store *s = v->store;
    const struct ws_manifest *m;
    int rc;

    assert(w->done);
    if (ws_wait_is_over(v, file, first, n))
        return 1;
    w->version = v;
    w->file = file;
    w->first = first;
    w->n = n;
    w->deadline_ns = deadline_ns;
    w->patience_ns = patience_ns;
    w->result = 0;
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&v->n_waits, 1);
    if (ws_wait_is_over(v, file, first, n)) {
        atomic_fetch_sub(&v->n_waits, 1);
        pthread_mutex_unlock(&s->lock);
        return 1;
    }
    enqueue(v, w);
    m = atomic_load(&v->manifest);
    if (file != WS_FILE_ALL && file != WS_FILE_HEADERS && m && file >= m->n_files)
        rc = -EINVAL;
    else
        rc = s->puller->ask(v, goal_of(file, n), priority);
    if (rc < 0) { /* the clock thread says it: done is never called from here */
        w->result = rc;
        w->deadline_ns = 0;
    }
    ws_waits_look_at(s, w->deadline_ns);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int ws_version_wait(struct ws_version *v, size_t file, size_t first, size_t n, unsigned timeout_ms,
                    struct ws_wait *w)
{
    const uint64_t patience_ns = (uint64_t)timeout_ms * WS_MS_NS;
    return ask(v, file, first, n, WS_PRIORITY_READER, ws_clock_ns() + patience_ns, patience_ns, w);
}

int ws_waits_ask(struct ws_version *v, size_t file, size_t first, size_t n, enum ws_priority priority,
                 uint64_t deadline_ns, struct ws_wait *w)
{
    return ask(v, file, first, n, priority, deadline_ns, 0, w);
}

bool ws_wait_cancel(struct ws_wait *w)
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

/* --- the clock thread --- */

/* While bytes of its version come, a patient wait is not due. */
static void put_off(const struct ws_version *v, struct ws_wait *w)
{
    if (w->patience_ns == 0 || w->result < 0 || !v->pull)
        return;
    const uint64_t due = v->store->puller->progress_ns(v->pull) + w->patience_ns;
    if (due > w->deadline_ns)
        w->deadline_ns = due;
}

/* A reader went away without its bytes: why is told as a pull's failure is, though the pull goes on. */
static void tell_late(struct ws_version *v, const struct ws_wait *w, struct ws_changes *c)
{
    char why[WS_ERROR_TEXT / 2], text[WS_ERROR_TEXT];

    if (w->patience_ns == 0 || !v->pull)
        return;
    v->store->puller->describe(v->pull, why);
    snprintf(text, sizeof(text), "nothing of %s/%lu came for %.1f s (deadline=): %s", v->model->name,
             v->number, (double)w->patience_ns / 1e9, why);
    free(v->error);
    v->error = strdup(text);
    v->error_code = ETIMEDOUT;
    ws_changes_add(c, WS_VERSION_UNREAD, v->model, v);
}

/* Takes out all that is due, of all versions; sets when to look again. With store->lock. */
static struct ws_wait *take_due(struct ws_store *s, uint64_t now, bool all, struct ws_changes *c)
{
    struct ws_wait *chain = NULL, **end = &chain, *next;

    s->next_deadline_ns = WS_NEVER;
    for (unsigned i = 0; i < WS_ID_BUCKETS; i++) {
        for (struct ws_version *v = s->ids[i]; v; v = v->next_id) {
            const uint64_t next_look = v->pull && !all ? s->puller->hurry(v->pull, now) : WS_NEVER;
            bool late = false;
            if (next_look < s->next_deadline_ns)
                s->next_deadline_ns = next_look;
            for (struct ws_wait *w = v->waits; w; w = next) {
                next = w->next;
                if (w->deadline_ns <= now && !all)
                    put_off(v, w);
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
                        tell_late(v, w, c);
                    late = true;
                }
                *end = w;
                end = &w->next;
            }
        }
    }
    return chain;
}

static void *clock_main(void *arg)
{
    struct ws_store *s = arg;
    struct ws_changes changes;
    struct ws_wait *chain;

    ws_changes_init(&changes);
    pthread_mutex_lock(&s->lock);
    while (!s->threads_stop) {
        uint64_t now = ws_clock_ns();
        if (s->next_deadline_ns > now) {
            uint64_t until =
                s->next_deadline_ns == WS_NEVER ? now + 3600000000000UL : s->next_deadline_ns + CLOCK_STEP_NS;
            (void)ws_cond_wait_until(&s->clock_changed, &s->lock, until);
            continue;
        }
        chain = take_due(s, now, false, &changes);
        pthread_mutex_unlock(&s->lock);
        ws_changes_tell(&changes, s); /* first: who hears of the end may look why */
        ws_waits_tell(chain);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int ws_waits_start(struct ws_store *s, struct ws_error *err)
{
    int rc = ws_thread_start(&s->clock, clock_main, s);

    if (rc < 0)
        return ws_error_set(err, -rc, "cannot start the thread of the deadlines: %s", strerror(-rc));
    return 0;
}

void ws_waits_stop(struct ws_store *s)
{
    struct ws_wait *chain;

    pthread_join(s->clock, NULL);
    pthread_mutex_lock(&s->lock);
    chain = take_due(s, 0, true, NULL);
    pthread_mutex_unlock(&s->lock);
    ws_waits_tell(chain);
}
