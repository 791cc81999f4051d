#include "transports/memory/pool.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/memory/available.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_WAIT_MS   10
#define LONGEST_WAIT_MS 1000
#define THREAD_NICE     10
#define SMALL_BYTES     (1UL << 20)   /* quickly faulted in: not worth keeping */
#define STEP_BYTES      (128UL << 20) /* of a reserve, by each thread, between checks for a claim or the end */
#define SPARE_BYTES     (512UL << 20) /* left to others by reserves, which are a convenience */

struct entry {
    struct entry *next;
    struct ws_region *region;
    bool reserved; /* free because ws_pool_reserve requested it */
};

struct list {
    struct entry *first;
    uint64_t bytes;
    size_t n;
};

/* A get may claim the reserve that is being made, also half made: that is better than a second one beside it. */
enum claim { UNCLAIMED, CLAIMED, HANDED };

struct ws_pool {
    uint64_t keep_bytes;
    unsigned n_threads;
    pthread_t thread; /* sorts what waits and makes reserves */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the thread: put, reserve, free */
    pthread_cond_t made;    /* for get: the claimed reserve was handed over */
    /* guarded by lock */
    struct list free, waiting; /* free: idle; newest first */
    uint64_t wanted[WS_POOL_MAX_RESERVES];
    size_t n_wanted;
    uint64_t making_bytes; /* the reserve that is being made; 0: none */
    enum claim claim;
    struct entry *handed; /* to the claimer */
    unsigned wait_ms;
    bool stop;
};

static void push(struct list *l, struct entry *e)
{
    e->next = l->first;
    l->first = e;
    l->bytes += ws_region_size(e->region);
    l->n++;
}

static struct entry *unlink_entry(struct list *l, struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    l->bytes -= ws_region_size(e->region);
    l->n--;
    return e;
}

/* Unmapping gigabytes takes time: without the lock. */
static void discard(struct list *l)
{
    while (l->first) {
        struct entry *e = unlink_entry(l, &l->first);
        ws_region_free(e->region);
        free(e);
    }
}

static struct entry **oldest(struct ws_pool *p, bool reserved)
{
    struct entry **last = NULL;
    for (struct entry **at = &p->free.first; *at; at = &(*at)->next)
        if ((*at)->reserved == reserved)
            last = at;
    return last;
}

/* Moves the oldest free regions that are not reserved to `gone` until `size` more bytes may be kept. False: the
 * reserved ones leave no room for them. */
static bool make_room(struct ws_pool *p, uint64_t size, struct list *gone)
{
    uint64_t stays = p->making_bytes;
    for (const struct entry *e = p->free.first; e; e = e->next)
        stays += e->reserved ? ws_region_size(e->region) : 0;
    if (stays > p->keep_bytes || size > p->keep_bytes - stays)
        return false;
    while (p->free.bytes + p->making_bytes + size > p->keep_bytes) {
        struct entry **at = oldest(p, false);
        assert(at);
        push(gone, unlink_entry(&p->free, at));
    }
    return true;
}

/* Moves waiting regions that became idle to the free ones, or to those that go. Requesting the kernel's lease is
 * a short system call that never waits, so it is made with the lock held. Returns whether any moved. */
static bool sort_waiting(struct ws_pool *p, struct list *gone)
{
    bool moved = false;
    struct entry **at = &p->waiting.first;
    while (*at) {
        int rc = ws_region_idle((*at)->region);
        if (rc == -EBUSY) {
            at = &(*at)->next;
            continue;
        }
        struct entry *e = unlink_entry(&p->waiting, at);
        bool keep = rc == 0 && make_room(p, ws_region_size(e->region), gone);
        push(keep ? &p->free : gone, e);
        moved = true;
    }
    return moved;
}

static bool wastes_half(uint64_t has, uint64_t size)
{
    return has / 2 > size;
}

/* The smallest free region that holds size without wasting more than half of itself. */
static struct entry **best_fit(struct ws_pool *p, uint64_t size, bool reserved)
{
    struct entry **best = NULL;
    for (struct entry **at = &p->free.first; *at; at = &(*at)->next) {
        uint64_t has = ws_region_size((*at)->region);
        if ((*at)->reserved == reserved && has >= size && !wastes_half(has, size) &&
            (!best || has < ws_region_size((*best)->region)))
            best = at;
    }
    return best;
}

static void forget_wanted(struct ws_pool *p, size_t i)
{
    p->n_wanted--;
    memmove(&p->wanted[i], &p->wanted[i + 1], (p->n_wanted - i) * sizeof(p->wanted[0]));
}

static bool is_interrupted(struct ws_pool *p)
{
    pthread_mutex_lock(&p->lock);
    bool interrupted = p->stop || p->claim == CLAIMED;
    pthread_mutex_unlock(&p->lock);
    return interrupted;
}

/* Without the lock. Half made is fine: the first touch faults in the rest. */
static struct entry *make_region(struct ws_pool *p, uint64_t size, struct ws_error *err)
{
    struct entry *e = calloc(1, sizeof(*e));
    if (!e) {
        ws_error_set(err, ENOMEM, "no memory for a list");
        return NULL;
    }
    int rc = ws_memory_check(size + SPARE_BYTES, "a reserve of the pool", err);
    if (rc == 0)
        rc = ws_region_new(&e->region, size, err);
    uint64_t step = STEP_BYTES * p->n_threads;
    for (uint64_t at = 0; rc == 0 && at < size && !is_interrupted(p); at += step)
        rc = ws_region_prefault_part(e->region, at, step, p->n_threads, err);
    if (rc == 0)
        return e;
    ws_region_free(e->region);
    free(e);
    return NULL;
}

/* Fulfils one reserve, by a region that is free or by a new one, which is made without the lock. */
static void make_reserve(struct ws_pool *p)
{
    uint64_t size = p->wanted[0];
    struct list gone = {0};
    forget_wanted(p, 0);
    struct entry **fit = best_fit(p, size, false);
    if (fit) {
        (*fit)->reserved = true;
        return;
    }
    if (!make_room(p, size, &gone))
        return;
    p->making_bytes = size;
    pthread_mutex_unlock(&p->lock);
    discard(&gone);
    struct ws_error err = {0};
    struct entry *e = make_region(p, size, &err);
    if (!e)
        ws_log(WS_LOG_WARN, "pool", "no reserve: %s; the next version will be slower", err.text);
    pthread_mutex_lock(&p->lock);
    p->making_bytes = 0;
    if (p->claim == CLAIMED) {
        p->claim = HANDED;
        p->handed = e;
        pthread_cond_signal(&p->made);
    } else if (e) {
        e->reserved = true;
        push(&p->free, e);
    }
}

static void wait_a_while(struct ws_pool *p)
{
    if (!p->waiting.first) {
        pthread_cond_wait(&p->changed, &p->lock);
        return;
    }
    (void)ws_cond_wait_until(&p->changed, &p->lock, ws_clock_ns() + p->wait_ms * WS_MS_NS);
    p->wait_ms = p->wait_ms * 2 > LONGEST_WAIT_MS ? LONGEST_WAIT_MS : p->wait_ms * 2;
}

static void *run(void *arg)
{
    struct ws_pool *p = arg;
    ws_thread_nice(THREAD_NICE);
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        struct list gone = {0};
        bool moved = sort_waiting(p, &gone);
        if (gone.first) {
            pthread_mutex_unlock(&p->lock);
            discard(&gone);
            pthread_mutex_lock(&p->lock);
        }
        if (p->n_wanted > 0)
            make_reserve(p);
        else if (!moved && !p->stop)
            wait_a_while(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int ws_pool_new(struct ws_pool **out, uint64_t keep_bytes, unsigned n_threads, struct ws_error *err)
{
    *out = NULL;
    struct ws_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for a pool of regions");
    p->keep_bytes = keep_bytes;
    p->n_threads = n_threads ? n_threads : 1;
    p->wait_ms = FIRST_WAIT_MS;
    ws_cond_init(&p->changed);
    ws_cond_init(&p->made);
    pthread_mutex_init(&p->lock, NULL);
    int rc = ws_thread_start(&p->thread, run, p);
    if (rc < 0) {
        pthread_cond_destroy(&p->changed);
        pthread_cond_destroy(&p->made);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return ws_error_set(err, -rc, "cannot start the thread of a pool of regions: %s", strerror(-rc));
    }
    *out = p;
    return 0;
}

static void fulfil_wanted(struct ws_pool *p, uint64_t size)
{
    for (size_t i = 0; i < p->n_wanted; i++) {
        if (p->wanted[i] == size) {
            forget_wanted(p, i);
            return;
        }
    }
}

/* With the lock, which is released while it waits for the pool's thread to end a step. NULL: none fits, and the
 * caller makes one. */
static struct entry *find_region(struct ws_pool *p, uint64_t size)
{
    struct entry **reserved = best_fit(p, size, true), **fit = best_fit(p, size, false);
    if (reserved && (!fit || ws_region_size((*reserved)->region) == size))
        return unlink_entry(&p->free, reserved);
    bool claims =
        !fit && p->claim == UNCLAIMED && p->making_bytes >= size && !wastes_half(p->making_bytes, size);
    if (!claims) {
        fulfil_wanted(p, size);
        return fit ? unlink_entry(&p->free, fit) : NULL;
    }
    p->claim = CLAIMED;
    while (p->claim == CLAIMED)
        pthread_cond_wait(&p->made, &p->lock);
    p->claim = UNCLAIMED;
    return p->handed; /* NULL where making it failed */
}

int ws_pool_get(struct ws_pool *p, uint64_t size_bytes, struct ws_region **out, struct ws_error *err)
{
    assert(size_bytes > 0);
    *out = NULL;
    struct list gone = {0};
    struct entry *e = NULL;
    if (size_bytes >= SMALL_BYTES) {
        pthread_mutex_lock(&p->lock);
        (void)sort_waiting(p, &gone); /* a region that was handed back a moment ago may fit */
        e = find_region(p, size_bytes);
        pthread_mutex_unlock(&p->lock);
    }
    discard(&gone);
    if (e) {
        struct ws_region *r = e->region;
        free(e);
        if (ws_region_resize(r, size_bytes, NULL) == 0) {
            *out = r;
            return 0;
        }
        ws_region_free(r);
    }
    return ws_region_new(out, size_bytes, err);
}

void ws_pool_put(struct ws_pool *p, struct ws_region *r)
{
    if (!r)
        return;
    bool ours = ws_region_kind(r) != WS_REGION_IMPORTED && ws_region_data(r);
    struct entry *e = ours && ws_region_size(r) >= SMALL_BYTES ? calloc(1, sizeof(*e)) : NULL;
    if (!e) {
        ws_region_free(r); /* the system gets its memory back when the last reader ends */
        return;
    }
    e->region = r;
    pthread_mutex_lock(&p->lock);
    push(&p->waiting, e);
    p->wait_ms = FIRST_WAIT_MS;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void ws_pool_reserve(struct ws_pool *p, uint64_t size_bytes)
{
    pthread_mutex_lock(&p->lock);
    if (size_bytes == 0) {
        p->n_wanted = 0;
        for (struct entry *e = p->free.first; e; e = e->next)
            e->reserved = false;
    } else if (size_bytes >= SMALL_BYTES && p->n_wanted < WS_POOL_MAX_RESERVES) {
        p->wanted[p->n_wanted++] = size_bytes;
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
}

void ws_pool_trim(struct ws_pool *p, uint64_t bytes)
{
    struct list gone = {0};
    pthread_mutex_lock(&p->lock);
    while (p->free.bytes > bytes) {
        struct entry **at = oldest(p, false);
        push(&gone, unlink_entry(&p->free, at ? at : oldest(p, true)));
    }
    pthread_mutex_unlock(&p->lock);
    discard(&gone);
}

void ws_pool_stats(struct ws_pool *p, struct ws_pool_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = (struct ws_pool_stats){
        .free_bytes = p->free.bytes + p->making_bytes,
        .waiting_bytes = p->waiting.bytes,
        .n_free = p->free.n,
        .n_waiting = p->waiting.n,
        .n_wanted = p->n_wanted + (p->making_bytes > 0),
    };
    pthread_mutex_unlock(&p->lock);
}

void ws_pool_free(struct ws_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    assert(p->claim == UNCLAIMED);
    p->stop = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    discard(&p->free);
    discard(&p->waiting);
    pthread_cond_destroy(&p->changed);
    pthread_cond_destroy(&p->made);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
