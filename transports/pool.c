#include "transports/pool.h"
#include "transports/limits.h"
#include "transports/log.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define FIRST_WAIT_MS 10
#define LONGEST_WAIT_MS 1000
#define SMALL_BYTES (1UL << 20) /* not worth keeping */

struct entry {
    struct entry *next;
    struct ws_region *region;
};

struct ws_pool {
    uint64_t keep_bytes;
    unsigned n_threads;
    pthread_t keeper;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* guarded by lock */
    struct entry *free_list, *waiting; /* free: idle and faulted in */
    uint64_t free_bytes, waiting_bytes, reserve_bytes;
    unsigned wait_ms;
    bool stop;
};

static void push(struct entry **list, struct entry *e, uint64_t *bytes)
{
    e->next = *list;
    *list = e;
    *bytes += ws_region_size(e->region);
}

static struct entry *take(struct entry **at, uint64_t *bytes)
{
    struct entry *e = *at;
    *at = e->next;
    *bytes -= ws_region_size(e->region);
    return e;
}

static void discard(struct entry *e)
{
    ws_region_free(e->region);
    free(e);
}

/* Moves regions that became idle from waiting to free, or frees them. The lease is asked without the lock. */
static void sort_waiting(struct ws_pool *p)
{
    struct entry *list = p->waiting, *still = NULL;
    p->waiting = NULL;
    p->waiting_bytes = 0;
    bool progress = false;
    while (list) {
        struct entry *e = list;
        list = e->next;
        pthread_mutex_unlock(&p->lock);
        int rc = ws_region_idle(e->region);
        pthread_mutex_lock(&p->lock);
        uint64_t size = ws_region_size(e->region);
        if (rc == -EBUSY) {
            e->next = still;
            still = e;
        } else if (rc == 0 && size >= SMALL_BYTES && p->free_bytes + size <= p->keep_bytes) {
            push(&p->free_list, e, &p->free_bytes);
            progress = true;
        } else { /* its memory returns to the system when the last reader ends */
            pthread_mutex_unlock(&p->lock);
            discard(e);
            pthread_mutex_lock(&p->lock);
            progress = true;
        }
    }
    while (still) {
        struct entry *e = still;
        still = e->next;
        push(&p->waiting, e, &p->waiting_bytes);
    }
    p->wait_ms = progress ? FIRST_WAIT_MS : p->wait_ms * 2 > LONGEST_WAIT_MS ? LONGEST_WAIT_MS : p->wait_ms * 2;
}

static bool has_free(const struct ws_pool *p, uint64_t size_bytes)
{
    for (const struct entry *e = p->free_list; e; e = e->next)
        if (ws_region_size(e->region) >= size_bytes)
            return true;
    return false;
}

static void make_reserve(struct ws_pool *p)
{
    uint64_t size = p->reserve_bytes;
    p->reserve_bytes = 0;
    if (size < SMALL_BYTES || has_free(p, size) || p->free_bytes + size > p->keep_bytes)
        return;
    pthread_mutex_unlock(&p->lock);
    struct ws_error err = {0};
    struct entry *e = calloc(1, sizeof(*e));
    int rc = e ? ws_region_new(&e->region, size, &err) : -ENOMEM;
    if (rc == 0)
        rc = ws_region_prefault(e->region, p->n_threads, &err);
    pthread_mutex_lock(&p->lock);
    if (rc == 0) {
        push(&p->free_list, e, &p->free_bytes);
        return;
    }
    if (e)
        discard(e);
    ws_log(WS_LOG_DEBUG, "pool", "no reserve of %llu bytes: %s", (unsigned long long)size, err.text);
}

static void wait_a_while(struct ws_pool *p)
{
    struct timespec t;
    if (!p->waiting) {
        pthread_cond_wait(&p->changed, &p->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)p->wait_ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&p->changed, &p->lock, &t);
}

static void *keep(void *arg)
{
    struct ws_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (p->waiting)
            sort_waiting(p);
        if (p->reserve_bytes && !p->stop)
            make_reserve(p);
        else if (!p->stop)
            wait_a_while(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int ws_pool_new(struct ws_pool **out, uint64_t keep_bytes, unsigned n_threads, struct ws_error *err)
{
    struct ws_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for a pool of regions");
    p->keep_bytes = keep_bytes;
    p->n_threads = n_threads ? n_threads : 1;
    p->wait_ms = FIRST_WAIT_MS;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&p->lock, NULL);
    int rc = pthread_create(&p->keeper, NULL, keep, p);
    if (rc) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return ws_error_set(err, rc, "cannot start the thread of a pool of regions");
    }
    *out = p;
    return 0;
}

/* The smallest free region that holds size, unless it would waste more than half. */
static struct entry *best_fit(struct ws_pool *p, uint64_t size)
{
    struct entry **best = NULL;
    for (struct entry **at = &p->free_list; *at; at = &(*at)->next) {
        uint64_t has = ws_region_size((*at)->region);
        if (has >= size && has / 2 <= size && (!best || has < ws_region_size((*best)->region)))
            best = at;
    }
    return best ? take(best, &p->free_bytes) : NULL;
}

int ws_pool_get(struct ws_pool *p, uint64_t size_bytes, struct ws_region **out, struct ws_error *err)
{
    pthread_mutex_lock(&p->lock);
    struct entry *e = best_fit(p, size_bytes);
    pthread_mutex_unlock(&p->lock);
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
    struct entry *e = ws_region_kind(r) == WS_REGION_IMPORTED ? NULL : calloc(1, sizeof(*e));
    if (!e) {
        ws_region_free(r);
        return;
    }
    e->region = r;
    pthread_mutex_lock(&p->lock);
    push(&p->waiting, e, &p->waiting_bytes);
    p->wait_ms = FIRST_WAIT_MS;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void ws_pool_reserve(struct ws_pool *p, uint64_t size_bytes)
{
    pthread_mutex_lock(&p->lock);
    p->reserve_bytes = size_bytes;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void ws_pool_stats(struct ws_pool *p, struct ws_pool_stats *out)
{
    *out = (struct ws_pool_stats){0};
    pthread_mutex_lock(&p->lock);
    out->free_bytes = p->free_bytes;
    out->waiting_bytes = p->waiting_bytes;
    for (const struct entry *e = p->free_list; e; e = e->next)
        out->n_free++;
    for (const struct entry *e = p->waiting; e; e = e->next)
        out->n_waiting++;
    pthread_mutex_unlock(&p->lock);
}

void ws_pool_free(struct ws_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->keeper, NULL);
    struct entry *lists[] = {p->free_list, p->waiting};
    for (size_t i = 0; i < 2; i++) {
        while (lists[i]) {
            struct entry *e = lists[i];
            lists[i] = e->next;
            discard(e);
        }
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
