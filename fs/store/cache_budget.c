/* The cache is used by versions (with a name or on their way out), by regions in the pool that are
 * still mapped by somebody, and by regions that the pool keeps warm. The last give way at once. Of
 * versions the least wanted goes first: what failed half-way, then the oldest complete one that
 * nothing protects. An evicted version loses its name; its memory comes back when the kernel has
 * forgotten it and nobody maps it any more, which is waited for a moment. */
#include "fs/store/cache_budget.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/memory/available.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SETTLE_MS     2000 /* for readers to let go of what was evicted */
#define STEP_MS       10
#define OUTSIDE_BYTES (64UL << 20) /* threads, connections and deltas on their way, which no cache counts */

void ws_room_text(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    unsigned u = 0;

    while (value >= 1000 && u + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1000;
        u++;
    }
    snprintf(out, 16, u && value < 100 ? "%.1f %s" : "%.0f %s", value, units[u]);
}

/* Does a go before b? */
static bool goes_first(const struct ws_version *a, const struct ws_version *b)
{
    if (ws_version_is_complete(a) != ws_version_is_complete(b))
        return !ws_version_is_complete(a);
    if (ws_model_is_hidden(a->model) != ws_model_is_hidden(b->model))
        return ws_model_is_hidden(a->model); /* what was made of it is here */
    if (a->model == b->model)
        return ws_version_is_newer(b, a);
    return a->id < b->id;
}

/* May it be evicted? With s->lock. */
static bool is_victim(const struct ws_version *v)
{
    return v->own_bytes > 0 && !v->pull && !ws_version_is_protected(v);
}

/* With s->lock. */
static struct ws_version *find_victim(struct ws_store *s, const struct ws_version *but)
{
    struct ws_version *victim = NULL;

    for (struct ws_model *m = s->models; m; m = m->next) {
        for (struct ws_version *v = m->versions; v; v = v->next) {
            if (v == but || !is_victim(v))
                continue;
            if (!victim || goes_first(v, victim))
                victim = v;
        }
    }
    return victim;
}

static const char *why_kept(const struct ws_version *v)
{
    const struct ws_model *m = v->model;

    return v == m->current             ? "served by the engines"
           : v == m->previous          ? "kept for rollback"
           : v->pinned                 ? "pinned"
           : v->pull                   ? "being pulled"
           : atomic_load(&v->kept) > 0 ? "open"
                                       : "among the newest";
}

/* Names what holds the memory and what would free it. With s->lock. */
static int no_room(struct ws_version *v, uint64_t bytes, uint64_t limit, struct ws_error *err)
{
    struct ws_store *s = v->store;
    char held[WS_ERROR_TEXT / 2] = "", need[16], cache[16], size[16];
    const struct ws_version *drop = NULL;
    size_t used = 0;

    for (struct ws_model *m = s->models; m; m = m->next) {
        for (struct ws_version *w = m->versions; w; w = w->next) {
            int n;
            if (w == v || w->own_bytes == 0)
                continue;
            if (w != m->current && !w->pinned && !w->pull && (!drop || goes_first(w, drop)))
                drop = w;
            ws_room_text(w->own_bytes, size);
            n = snprintf(held + used, sizeof(held) - used, "%s%s/%lu (%s, %s)", used ? ", " : "", m->name,
                         w->number, size, why_kept(w));
            used += n > 0 && (size_t)n < sizeof(held) - used ? (size_t)n : 0;
        }
    }
    if (s->waiting_bytes) {
        ws_room_text(s->waiting_bytes, size);
        snprintf(held + used, sizeof(held) - used, "%s%s dropped but still being read", used ? ", " : "",
                 size);
    }
    ws_room_text(bytes, need);
    ws_room_text(limit, cache);
    if (drop)
        return ws_error_set(err, ENOSPC,
                            "%s/%lu needs %s and the cache of %s is full: %s; make room with "
                            "echo \"drop %lu\" > /wsync/%s/ctl, or mount with a larger cache=",
                            v->model->name, v->number, need, cache, held, drop->number, drop->model->name);
    return ws_error_set(err, ENOSPC, "%s/%lu needs %s and the cache has %s%s%s; mount with a larger cache=",
                        v->model->name, v->number, need, cache, held[0] ? ": " : "", held);
}

uint64_t ws_room_default(uint64_t available)
{
    const uint64_t most = available / 10 * 8;

    if (available < 2 * OUTSIDE_BYTES)
        return available / 2;
    return available - most < OUTSIDE_BYTES ? available - OUTSIDE_BYTES : most;
}

uint64_t ws_room_limit(uint64_t cache, uint64_t held, uint64_t available)
{
    uint64_t rest = held < cache ? cache - held : 0;

    return available < rest ? held + available : cache;
}

/* With s->lock: memory goes from a version to the pool before the version's share is taken from used_bytes,
 * so that none is missed where both are read at once. */
static uint64_t in_use(struct ws_store *s)
{
    struct ws_pool_stats pool;

    ws_pool_stats(s->pool, &pool);
    return s->used_bytes + pool.waiting_bytes + ws_region_left_bytes();
}

struct ws_room ws_room_now(struct ws_store *s)
{
    struct ws_pool_stats pool;
    uint64_t held;

    pthread_mutex_lock(&s->lock);
    held = in_use(s);
    pthread_mutex_unlock(&s->lock);
    ws_pool_stats(s->pool, &pool);
    held += pool.free_bytes;
    return (struct ws_room){.limit = ws_room_limit(s->options.cache_bytes, held, ws_memory_available(NULL))};
}

bool ws_room_has_beside(const struct ws_room *r, struct ws_version *base, struct ws_version *v,
                        uint64_t bytes)
{
    struct ws_store *s = v->store;
    uint64_t stays = in_use(s);

    for (const struct ws_model *m = s->models; m; m = m->next) {
        for (const struct ws_version *w = m->versions; w; w = w->next) {
            if (w != base && w != v && is_victim(w))
                stays -= w->own_bytes;
        }
    }
    return stays + bytes <= r->limit;
}

/* One look at the cache: 0 when the bytes were taken, 1 to look again, -ENOSPC. With s->lock. */
static int try_take(struct ws_version *v, uint64_t bytes, uint64_t *taken, const struct ws_room *room,
                    uint64_t *give_up_ns, struct ws_changes *c, struct ws_error *err)
{
    struct ws_store *s = v->store;
    const uint64_t limit = room->limit;
    bool wait_helps = s->used_bytes - s->waiting_bytes + bytes <= limit;
    const uint64_t until = ws_clock_ns() + STEP_MS * WS_MS_NS;
    struct ws_version *victim;

    if (in_use(s) + bytes <= limit) {
        s->used_bytes += bytes;
        *taken += bytes;
        return 0;
    }
    if (wait_helps && (*give_up_ns == 0 || ws_clock_ns() < *give_up_ns)) {
        if (*give_up_ns == 0)
            *give_up_ns = ws_clock_ns() + SETTLE_MS * WS_MS_NS;
        (void)ws_cond_wait_until(&s->changed, &s->lock, until);
        return 1;
    }
    victim = bytes <= limit ? find_victim(s, v) : NULL;
    if (!victim)
        return no_room(v, bytes, limit, err);
    ws_version_retire(victim, c);
    *give_up_ns = 0;
    return 1;
}

int ws_room_lend(struct ws_version *v, uint64_t bytes, uint64_t *lent, const atomic_bool *stop,
                 struct ws_error *err)
{
    struct ws_store *s = v->store;
    uint64_t give_up_ns = 0;
    int rc = 1;

    while (rc > 0) {
        struct ws_changes changes;
        const struct ws_room room = ws_room_now(s);
        ws_changes_init(&changes);
        pthread_mutex_lock(&s->lock);
        if (atomic_load(stop))
            rc = ws_error_set(err, ECANCELED, "the pull of %s/%lu was stopped", v->model->name, v->number);
        else
            rc = try_take(v, bytes, lent, &room, &give_up_ns, &changes, err);
        pthread_mutex_unlock(&s->lock);
        ws_changes_tell(&changes, s);
    }
    return rc;
}

int ws_room_take(struct ws_version *v, uint64_t bytes, const atomic_bool *stop, struct ws_error *err)
{
    return ws_room_lend(v, bytes, &v->own_bytes, stop, err);
}

void ws_room_return(struct ws_store *s, uint64_t lent)
{
    pthread_mutex_lock(&s->lock);
    s->used_bytes -= lent;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ws_room_trim(struct ws_store *s)
{
    uint64_t used;

    pthread_mutex_lock(&s->lock);
    used = in_use(s);
    pthread_mutex_unlock(&s->lock);
    ws_pool_trim(s->pool, used < s->options.cache_bytes ? s->options.cache_bytes - used : 0);
}

void ws_room_reserve(struct ws_store *s, const struct ws_manifest *m)
{
    uint64_t used;

    pthread_mutex_lock(&s->lock);
    used = in_use(s);
    pthread_mutex_unlock(&s->lock);
    /* Free regions are left out: they are what is used first, and what gives way. */
    if (used + m->total_bytes > s->options.cache_bytes)
        return;
    for (size_t i = 0; i < m->n_files; i++) {
        if (m->files[i].size_bytes)
            ws_pool_reserve(s->pool, m->files[i].size_bytes);
    }
}
