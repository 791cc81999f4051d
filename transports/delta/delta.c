#include "transports/delta/delta.h"
#include "transports/base/clock.h"
#include "transports/delta/stream.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PART_WORDS ((WS_MAX_STREAMS + 63) / 64)

struct ws_delta {
    atomic_uint refs;
    struct ws_delta_link link;
    size_t n_files;
    uint64_t *first;                          /* index of each file's first block, and one more: all blocks */
    _Atomic(struct ws_delta_record *) *at;    /* by index of block */
    _Atomic(struct ws_delta_record *) *order; /* in the order of arrival */
    _Atomic(uint64_t) n;                      /* of order */
    _Atomic(uint64_t) bytes, n_changed, n_whole;
    atomic_int state;
    unsigned n_parts;           /* guarded by lock: the division by which parts have ended; 0: none has */
    uint64_t parts[PART_WORDS]; /* guarded by lock: bit i: part i is whole */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    /* guarded by lock */
    LIST_HEAD(ws_delta_waiters, ws_delta_waiter) waiters;
    LIST_HEAD(ws_delta_senders, ws_delta_sender) senders;
    bool is_dropped;
};

const char *ws_delta_state_name(enum ws_delta_state s)
{
    static const char *const names[] = {"growing", "whole", "given-up"};
    return names[s];
}

static void delta_free(struct ws_delta *d)
{
    uint64_t n = d->order ? atomic_load(&d->n) : 0;
    assert(LIST_EMPTY(&d->waiters) && LIST_EMPTY(&d->senders));
    for (uint64_t i = 0; i < n; i++)
        free(atomic_load(&d->order[i]));
    free(d->at);
    free(d->order);
    free(d->first);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->ended);
    free(d);
}

int ws_delta_new(struct ws_delta **out, const struct ws_delta_link *link, const struct ws_manifest *target,
                 struct ws_error *err)
{
    struct ws_delta *d = calloc(1, sizeof(*d));
    if (!d)
        return ws_error_set(err, ENOMEM, "no memory for a delta");
    atomic_init(&d->refs, 1);
    d->link = *link;
    d->n_files = target->n_files;
    pthread_mutex_init(&d->lock, NULL);
    ws_cond_init(&d->ended);
    d->first = calloc(target->n_files + 1, sizeof(*d->first));
    for (size_t i = 0; d->first && i < target->n_files; i++)
        d->first[i + 1] = d->first[i] + target->files[i].n_blocks;
    uint64_t n = d->first ? ws_delta_blocks(d) + 1 : 0;
    if (n) {
        d->at = calloc(n, sizeof(*d->at));
        d->order = calloc(n, sizeof(*d->order));
    }
    if (!d->at || !d->order) {
        delta_free(d);
        return ws_error_set(err, ENOMEM, "no memory for a delta");
    }
    *out = d;
    return 0;
}

struct ws_delta *ws_delta_get(struct ws_delta *d)
{
    atomic_fetch_add(&d->refs, 1);
    return d;
}

void ws_delta_put(struct ws_delta *d)
{
    if (d && atomic_fetch_sub(&d->refs, 1) == 1)
        delta_free(d);
}

const struct ws_delta_link *ws_delta_link(const struct ws_delta *d)
{
    return &d->link;
}

uint64_t ws_delta_blocks(const struct ws_delta *d)
{
    return d->first[d->n_files];
}

/* --- growing --- */

/* Under the lock, so that ws_delta_wait_cancel returns only when no waiter is being notified. */
static void notify_waiters(struct ws_delta *d)
{
    struct ws_delta_waiter *w;
    pthread_mutex_lock(&d->lock);
    while ((w = LIST_FIRST(&d->waiters))) {
        LIST_REMOVE(w, entry);
        w->waiting = false;
        w->notify(w->arg);
    }
    pthread_mutex_unlock(&d->lock);
}

int ws_delta_add(struct ws_delta *d, struct ws_delta_record *r)
{
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    assert(atomic_load(&d->state) == WS_DELTA_GROWING);
    if (r->file >= d->n_files || r->block >= d->first[r->file + 1] - d->first[r->file])
        rc = -EINVAL;
    else if (atomic_load(&d->at[d->first[r->file] + r->block]))
        rc = -EEXIST;
    if (rc == 0) {
        atomic_fetch_add(&d->bytes, WS_DELTA_RECORD_BYTES + r->bytes);
        atomic_fetch_add(&d->n_changed, r->n_changed);
        atomic_fetch_add(&d->n_whole, r->kind == WS_DELTA_BLOCK);
        atomic_store(&d->at[d->first[r->file] + r->block], r);
        uint64_t n = atomic_load(&d->n);
        atomic_store(&d->order[n], r);
        atomic_store(&d->n, n + 1);
    }
    pthread_mutex_unlock(&d->lock);
    if (rc == 0)
        notify_waiters(d);
    else
        free(r);
    return rc;
}

void ws_delta_end(struct ws_delta *d, enum ws_delta_state state)
{
    pthread_mutex_lock(&d->lock);
    assert(atomic_load(&d->state) == WS_DELTA_GROWING);
    atomic_store(&d->state, (int)state);
    pthread_cond_broadcast(&d->ended);
    pthread_mutex_unlock(&d->lock);
    notify_waiters(d);
}

/* Under lock. */
static enum ws_delta_state part_state(const struct ws_delta *d, unsigned part, unsigned parts)
{
    const enum ws_delta_state state = (enum ws_delta_state)atomic_load(&d->state);
    if (state == WS_DELTA_GROWING && parts == d->n_parts && d->parts[part / 64] & 1UL << part % 64)
        return WS_DELTA_WHOLE;
    return state;
}

void ws_delta_end_part(struct ws_delta *d, unsigned part, unsigned parts)
{
    assert(part < parts && parts <= WS_MAX_STREAMS);
    pthread_mutex_lock(&d->lock);
    if (d->n_parts == 0 || d->n_parts == parts) {
        d->n_parts = parts;
        d->parts[part / 64] |= 1UL << part % 64;
    }
    pthread_mutex_unlock(&d->lock);
    notify_waiters(d);
}

enum ws_delta_state ws_delta_part_state(struct ws_delta *d, unsigned part, unsigned parts)
{
    pthread_mutex_lock(&d->lock);
    const enum ws_delta_state state = part_state(d, part, parts);
    pthread_mutex_unlock(&d->lock);
    return state;
}

/* --- reading --- */

uint64_t ws_delta_number(const struct ws_delta *d, size_t file, size_t block)
{
    return d->first[file] + block;
}

const struct ws_delta_record *ws_delta_at(const struct ws_delta *d, size_t file, size_t block)
{
    if (file >= d->n_files || block >= d->first[file + 1] - d->first[file])
        return NULL;
    return atomic_load(&d->at[d->first[file] + block]);
}

const struct ws_delta_record *ws_delta_next(const struct ws_delta *d, size_t *i, unsigned part,
                                            unsigned parts)
{
    uint64_t n = atomic_load(&d->n);
    while (*i < n) {
        const struct ws_delta_record *r = atomic_load(&d->order[(*i)++]);
        if ((d->first[r->file] + r->block) % parts == part)
            return r;
    }
    return NULL;
}

enum ws_delta_state ws_delta_state(const struct ws_delta *d)
{
    return (enum ws_delta_state)atomic_load(&d->state);
}

void ws_delta_stats(const struct ws_delta *d, struct ws_delta_stats *out)
{
    *out = (struct ws_delta_stats){
        .state = ws_delta_state(d),
        .bytes = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES + atomic_load(&d->bytes),
        .n_changed = atomic_load(&d->n_changed),
        .n_records = atomic_load(&d->n),
        .n_blocks_whole = atomic_load(&d->n_whole),
    };
}

/* --- waiting --- */

bool ws_delta_wait(struct ws_delta *d, size_t i, unsigned part, unsigned parts, struct ws_delta_waiter *w)
{
    pthread_mutex_lock(&d->lock);
    const bool waiting = atomic_load(&d->n) <= i && part_state(d, part, parts) == WS_DELTA_GROWING;
    w->waiting = waiting;
    if (waiting)
        LIST_INSERT_HEAD(&d->waiters, w, entry);
    pthread_mutex_unlock(&d->lock);
    return waiting; /* it may have been notified by now */
}

bool ws_delta_wait_cancel(struct ws_delta *d, struct ws_delta_waiter *w)
{
    pthread_mutex_lock(&d->lock);
    const bool waiting = w->waiting;
    if (waiting) {
        LIST_REMOVE(w, entry);
        w->waiting = false;
    }
    pthread_mutex_unlock(&d->lock);
    return waiting;
}

/* --- senders --- */

bool ws_delta_sender_add(struct ws_delta *d, struct ws_delta_sender *s)
{
    pthread_mutex_lock(&d->lock);
    const bool here = !d->is_dropped;
    if (here)
        LIST_INSERT_HEAD(&d->senders, s, entry);
    pthread_mutex_unlock(&d->lock);
    return here;
}

void ws_delta_sender_remove(struct ws_delta *d, struct ws_delta_sender *s)
{
    pthread_mutex_lock(&d->lock);
    if (!d->is_dropped)
        LIST_REMOVE(s, entry);
    pthread_mutex_unlock(&d->lock);
}

void ws_delta_drop(struct ws_delta *d)
{
    struct ws_delta_sender *s;
    pthread_mutex_lock(&d->lock);
    d->is_dropped = true;
    while ((s = LIST_FIRST(&d->senders))) {
        LIST_REMOVE(s, entry);
        s->dropped(s->arg);
    }
    pthread_mutex_unlock(&d->lock);
    ws_delta_put(d);
}

bool ws_delta_wait_ended(struct ws_delta *d, unsigned timeout_ms)
{
    const uint64_t until = ws_clock_ns() + timeout_ms * WS_MS_NS;
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    while (atomic_load(&d->state) == WS_DELTA_GROWING && rc == 0)
        rc = ws_cond_wait_until(&d->ended, &d->lock, until);
    pthread_mutex_unlock(&d->lock);
    return rc == 0;
}
