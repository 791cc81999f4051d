#include "fs/store/handover.h"
#include "fs/store/content.h"
#include "fs/store/model.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include <assert.h>
#include <stdlib.h>

#define WAIT_MS 1000 /* for the kernel to forget names, and for readers to end */

struct ws_handover {
    struct ws_version *from;                      /* valid while WAITING */
    struct ws_version *successor;                 /* its pull outlives the handover */
    enum { WAITING, HANDED_OVER, REFUSED } state; /* guarded by store->lock */
    _Atomic(uint64_t) **here;                     /* bitmaps, by file */
    bool with_parts;
};

bool ws_handover_may_go(const struct ws_version *from)
{
    return !from->pull && atomic_load(&from->n_waiters) == 0 && !ws_version_is_protected(from);
}

bool ws_handover_was_read(struct ws_version *from)
{
    const struct ws_manifest *m = atomic_load(&from->manifest);
    bool was = false;

    for (size_t i = 0; i < m->n_files; i++)
        was = was || (ws_content_region(from, i) && ws_region_was_shown(ws_content_region(from, i)));
    return was;
}

struct ws_handover *ws_handover_new(struct ws_version *from, struct ws_version *successor, bool with_parts,
                                    struct ws_store_events *ev)
{
    struct ws_handover *h = calloc(1, sizeof(*h));
    const struct ws_manifest *m = atomic_load(&from->manifest);

    if (h && !(h->here = calloc(m->n_files ? m->n_files : 1, sizeof(*h->here)))) {
        free(h);
        h = NULL;
    }
    if (!h)
        return NULL;
    h->from = from;
    h->successor = successor;
    h->with_parts = with_parts;
    from->handover = h;
    ws_version_retire(from, ev);
    return h;
}

bool ws_handover_wait(struct ws_handover *h, const atomic_bool *stop, _Atomic(uint64_t) ***here)
{
    struct ws_store *s = h->successor->store;
    uint64_t end_ns = ws_clock_ns() + WAIT_MS * WS_MS_NS;
    bool handed;

    pthread_mutex_lock(&s->lock);
    while (h->state == WAITING && ws_clock_ns() < end_ns && !atomic_load(stop)) {
        const uint64_t until = ws_clock_ns() + 10000000UL;
        (void)ws_cond_wait_until(&s->changed, &s->lock, until);
    }
    if (h->state == WAITING)
        h->from->handover = NULL; /* it still exists, else its reaper would have resolved this */
    handed = h->state == HANDED_OVER;
    pthread_mutex_unlock(&s->lock);
    if (handed)
        *here = h->here;
    else
        free(h->here);
    free(h);
    return handed;
}

/* May all of its memory be written again? */
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
static void hand_over(struct ws_version *v, struct ws_handover *h)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        atomic_store(&h->successor->files[i].region, ws_content_region(v, i));
        atomic_store(&v->files[i].region, NULL);
        h->here[i] = v->files[i].here;
        v->files[i].here = NULL;
    }
    assert(h->successor->own_bytes == 0);
    h->successor->own_bytes = v->own_bytes;
    v->store->waiting_bytes -= v->own_bytes;
    v->own_bytes = 0;
    if (h->with_parts)
        ws_parts_hand_over(v, h->successor);
}

bool ws_handover_resolve(struct ws_version *v)
{
    struct ws_store *s = v->store;
    bool idle, handed = false;

    if (!v->handover)
        return false;
    idle = is_idle(v); /* the successor may give up meanwhile */
    pthread_mutex_lock(&s->lock);
    if (v->handover) {
        handed = idle && v->handover->successor->named; /* a dropped successor needs no memory */
        if (handed)
            hand_over(v, v->handover);
        v->handover->state = handed ? HANDED_OVER : REFUSED;
        v->handover = NULL;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return handed;
}
