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
#define STEP_NS    (5 * WS_MS_NS) /* what comes within it is not told piece by piece */

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
    atomic_bool is_verified;
    unsigned n_parts;           /* guarded by lock: the division by which parts have ended; 0: none has */
    uint64_t parts[PART_WORDS]; /* guarded by lock: bit i: part i is whole */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    /* guarded by lock */
    struct ws_delta_comings comings;
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
    assert(LIST_EMPTY(&d->waiters) && LIST_EMPTY(&d->senders) && LIST_EMPTY(&d->comings));
    for (uint64_t i = 0; i < n; i++)
        free(atomic_load(&d->order[i]));
    free(d->at);
    free(d->order);
    free(d->first);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->ended);
    free(d);
}

struct ws_delta_link ws_delta_link_between(const struct ws_manifest *base, const struct ws_manifest *target)
{
    struct ws_delta_link l = {.base = ws_version_id_make(base->version, base->lineage),
                              .target = ws_version_id_make(target->version, target->lineage)};
    memcpy(l.base_digest, base->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, target->digest, sizeof(l.target_digest));
    return l;
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

/* Those of a part that nobody goes on with; one that has a reader ends when that does. Under lock. */
static void end_comings(struct ws_delta *d, unsigned part, unsigned parts)
{
    struct ws_delta_coming *next;
    for (struct ws_delta_coming *c = LIST_FIRST(&d->comings); c; c = next) {
        next = LIST_NEXT(c, entry);
        if (c->number % parts == part && !c->has_reader)
            ws_delta_coming_end(c, false);
    }
}

void ws_delta_put(struct ws_delta *d)
{
    if (!d || atomic_fetch_sub(&d->refs, 1) != 1)
        return;
    end_comings(d, 0, 1);
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

/* Under lock. */
static enum ws_delta_state part_state(const struct ws_delta *d, unsigned part, unsigned parts)
{
    const enum ws_delta_state state = (enum ws_delta_state)atomic_load(&d->state);
    if (state == WS_DELTA_GROWING && parts == d->n_parts && d->parts[part / 64] & 1UL << part % 64)
        return WS_DELTA_WHOLE;
    return state;
}

/* Under lock. */
static bool must_wait(const struct ws_delta *d, const struct ws_delta_waiter *w)
{
    if (w->coming)
        return atomic_load(&w->coming->here) <= w->sent && !atomic_load(&w->coming->ended);
    return atomic_load(&d->n) <= w->next && part_state(d, w->part, w->parts) == WS_DELTA_GROWING &&
           !ws_delta_coming_first(&d->comings, w->part, w->parts, w->filter);
}

/* Those who have something to do now. Under lock, so that ws_delta_wait_cancel returns only when no
 * waiter is being notified. */
static void notify_waiters(struct ws_delta *d)
{
    struct ws_delta_waiter *next;
    for (struct ws_delta_waiter *w = LIST_FIRST(&d->waiters); w; w = next) {
        next = LIST_NEXT(w, entry);
        if (must_wait(d, w))
            continue;
        LIST_REMOVE(w, entry);
        w->waiting = false;
        w->notify(w->arg);
    }
}

/* 0: it could be added. Under lock. */
static int check_place(const struct ws_delta *d, const struct ws_delta_record *r)
{
    if (r->file >= d->n_files || r->block >= d->first[r->file + 1] - d->first[r->file])
        return -EINVAL;
    return atomic_load(&d->at[d->first[r->file] + r->block]) ? -EEXIST : 0;
}

int ws_delta_add(struct ws_delta *d, struct ws_delta_record *r)
{
    struct ws_delta_coming *coming = NULL;
    pthread_mutex_lock(&d->lock);
    assert(atomic_load(&d->state) == WS_DELTA_GROWING);
    const int rc = check_place(d, r);
    if (rc != -EINVAL)
        coming = ws_delta_coming_of(&d->comings, ws_delta_number(d, r->file, r->block));
    const bool was_begun = coming && coming->record == r;
    if (rc == 0) {
        atomic_fetch_add(&d->bytes, WS_DELTA_RECORD_BYTES + r->bytes);
        atomic_fetch_add(&d->n_changed, r->n_changed);
        atomic_fetch_add(&d->n_whole, r->kind == WS_DELTA_BLOCK);
        atomic_store(&d->at[d->first[r->file] + r->block], r);
        uint64_t n = atomic_load(&d->n);
        atomic_store(&d->order[n], r);
        atomic_store(&d->n, n + 1);
    } else if (!was_begun) {
        free(r);
    }
    if (coming && (was_begun ||
                   !coming->has_reader)) /* else that reader, of a source that sends blocks twice, ends it */
        ws_delta_coming_end(coming, rc == 0 && was_begun);
    notify_waiters(d);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

void ws_delta_end(struct ws_delta *d, enum ws_delta_state state)
{
    pthread_mutex_lock(&d->lock);
    assert(atomic_load(&d->state) == WS_DELTA_GROWING);
    atomic_store(&d->state, (int)state);
    end_comings(d, 0, 1);
    pthread_cond_broadcast(&d->ended);
    notify_waiters(d);
    pthread_mutex_unlock(&d->lock);
}

void ws_delta_end_part(struct ws_delta *d, unsigned part, unsigned parts)
{
    assert(part < parts && parts <= WS_MAX_STREAMS);
    pthread_mutex_lock(&d->lock);
    if (d->n_parts == 0 || d->n_parts == parts) {
        d->n_parts = parts;
        d->parts[part / 64] |= 1UL << part % 64;
    }
    end_comings(d, part, parts);
    notify_waiters(d);
    pthread_mutex_unlock(&d->lock);
}

enum ws_delta_state ws_delta_part_state(struct ws_delta *d, unsigned part, unsigned parts)
{
    pthread_mutex_lock(&d->lock);
    const enum ws_delta_state state = part_state(d, part, parts);
    pthread_mutex_unlock(&d->lock);
    return state;
}

/* --- a record that comes piece by piece --- */

/* Can no reader bring that block's record any more? Under lock. */
static bool is_over(const struct ws_delta *d, uint64_t number)
{
    const unsigned parts = d->n_parts ? d->n_parts : 1;
    return atomic_load(&d->at[number]) ||
           part_state(d, (unsigned)(number % parts), parts) != WS_DELTA_GROWING;
}

struct ws_delta_coming *ws_delta_coming_begin(struct ws_delta *d, struct ws_delta_record **r)
{
    struct ws_delta_coming *c = NULL;
    pthread_mutex_lock(&d->lock);
    if (atomic_load(&d->state) == WS_DELTA_GROWING && check_place(d, *r) == 0) {
        const uint64_t number = ws_delta_number(d, (*r)->file, (*r)->block);
        struct ws_delta_coming *earlier = ws_delta_coming_of(&d->comings, number);
        if (earlier && !earlier->has_reader && ws_delta_coming_is(earlier, *r)) {
            c = earlier;
            c->has_reader = true;
            c->refs++;
            free(*r);
            *r = c->record;
        } else if (!earlier || !earlier->has_reader) {
            if (earlier) /* its source had packed it in another way */
                ws_delta_coming_end(earlier, false);
            c = ws_delta_coming_new(&d->comings, *r, number);
            notify_waiters(d);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return c;
}

void ws_delta_coming_fill(struct ws_delta *d, struct ws_delta_coming *c, size_t filled)
{
    const uint64_t now = ws_clock_ns();
    c->filled = filled;
    if (now - c->announced_ns < STEP_NS)
        return;
    c->announced_ns = now;
    pthread_mutex_lock(&d->lock);
    if (!atomic_load(&c->ended)) {
        atomic_store(&c->here, filled < c->record->bytes ? filled : c->record->bytes - 1);
        notify_waiters(d);
    }
    pthread_mutex_unlock(&d->lock);
}

void ws_delta_coming_leave(struct ws_delta *d, struct ws_delta_coming *c, bool is_damaged)
{
    pthread_mutex_lock(&d->lock);
    c->has_reader = false;
    if (!atomic_load(&c->ended) && (is_damaged || is_over(d, c->number))) {
        ws_delta_coming_end(c, false);
        notify_waiters(d);
    }
    ws_delta_coming_put(c);
    pthread_mutex_unlock(&d->lock);
}

struct ws_delta_coming *ws_delta_coming_get(struct ws_delta *d, unsigned part, unsigned parts,
                                            const struct ws_delta_filter *filter)
{
    pthread_mutex_lock(&d->lock);
    struct ws_delta_coming *c = ws_delta_coming_first(&d->comings, part, parts, filter);
    if (c)
        c->refs++;
    pthread_mutex_unlock(&d->lock);
    return c;
}

void ws_delta_coming_release(struct ws_delta *d, struct ws_delta_coming *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&d->lock);
    ws_delta_coming_put(c);
    pthread_mutex_unlock(&d->lock);
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

void ws_delta_set_verified(struct ws_delta *d)
{
    atomic_store(&d->is_verified, true);
}

bool ws_delta_is_verified(const struct ws_delta *d)
{
    return atomic_load(&d->is_verified);
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
    w->next = i;
    w->part = part;
    w->parts = parts;
    const bool waiting = w->waiting = must_wait(d, w);
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
