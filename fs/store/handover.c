#include "fs/store/handover.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include <assert.h>
#include <stdlib.h>

#define SETTLE_MS 1000 /* for the kernel to forget names, and for readers to end */

struct ws_bequest {
    struct ws_version *from, *heir; /* from: only while it waits; heir: its pull lives longer than this */
    enum { WAITS, HANDED, REFUSED } state; /* guarded by store->lock */
    _Atomic(uint64_t) **here;
};

struct ws_bequest *ws_bequest_new(struct ws_version *from, struct ws_version *heir, struct ws_changes *c)
{
    struct ws_bequest *b = calloc(1, sizeof(*b));
    const struct ws_manifest *m = atomic_load(&from->manifest);

    if (b && !(b->here = calloc(m->n_files ? m->n_files : 1, sizeof(*b->here)))) {
        free(b);
        b = NULL;
    }
    if (!b)
        return NULL;
    b->from = from;
    b->heir = heir;
    from->bequest = b;
    ws_version_retire(from, c);
    return b;
}

bool ws_bequest_take(struct ws_bequest *b, const atomic_bool *stop, _Atomic(uint64_t) ***here)
{
    struct ws_store *s = b->heir->store;
    uint64_t end_ns = ws_clock_ns() + SETTLE_MS * WS_MS_NS;
    bool handed;

    pthread_mutex_lock(&s->lock);
    while (b->state == WAITS && ws_clock_ns() < end_ns && !atomic_load(stop)) {
        const uint64_t until = ws_clock_ns() + 10000000UL;
        (void)ws_cond_wait_until(&s->changed, &s->lock, until);
    }
    if (b->state == WAITS)
        b->from->bequest = NULL; /* it still exists: it is what would settle this */
    handed = b->state == HANDED;
    pthread_mutex_unlock(&s->lock);
    if (handed)
        *here = b->here;
    else
        free(b->here);
    free(b);
    return handed;
}

/* May all of it be written again? */
static bool is_idle(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        struct ws_region *r = ws_content_region(v, i);
        if (m->files[i].size_bytes && (!r || ws_region_idle(r) != 0))
            return false;
    }
    return true;
}

/* With store->lock. */
static void hand_over(struct ws_version *v, struct ws_bequest *b)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        atomic_store(&b->heir->files[i].region, ws_content_region(v, i));
        atomic_store(&v->files[i].region, NULL);
        b->here[i] = v->files[i].here;
        v->files[i].here = NULL;
    }
    assert(b->heir->own_bytes == 0);
    b->heir->own_bytes = v->own_bytes;
    v->store->waiting_bytes -= v->own_bytes;
    v->own_bytes = 0;
}

bool ws_bequest_settle(struct ws_version *v)
{
    struct ws_store *s = v->store;
    bool idle, handed = false;

    if (!v->bequest)
        return false;
    idle = is_idle(v); /* the heir may give up meanwhile, which only makes this in vain */
    pthread_mutex_lock(&s->lock);
    if (v->bequest) {
        handed = idle && v->bequest->heir->named; /* one that was dropped needs no memory any more */
        if (handed)
            hand_over(v, v->bequest);
        v->bequest->state = handed ? HANDED : REFUSED;
        v->bequest = NULL;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return handed;
}
