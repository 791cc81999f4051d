/* Check, put and undo, by all workers. */
#include "transports/patch/patch_state.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

struct pass {
    struct ws_patch *p;
    bool is_undo;
    atomic_bool differs;
    pthread_mutex_t lock;
    size_t destination; /* guarded by lock: of the first that differs */
    uint64_t i;
};

/* The destination of a run, and its places. */
static size_t find_run(const struct ws_patch *p, size_t run, uint64_t *from, uint64_t *to)
{
    size_t low = 0, high = p->destinations.len;
    while (high - low > 1) {
        const size_t mid = low + (high - low) / 2;
        if (p->runs[mid] <= run)
            low = mid;
        else
            high = mid;
    }
    const uint64_t n = p->destinations.ptr[low].values.n;
    *from = (run - p->runs[low]) * WS_PATCH_RUN;
    *to = n - *from < WS_PATCH_RUN ? n : *from + WS_PATCH_RUN;
    return low;
}

static void write_run(void *arg, size_t run)
{
    const struct pass *k = arg;
    uint64_t from, to;
    const struct ws_patch_destination *d = &k->p->destinations.ptr[find_run(k->p, run, &from, &to)];
    ws_patch_values_write(&d->values, d->memory, k->is_undo, from, to);
}

static void check_run(void *arg, size_t run)
{
    struct pass *k = arg;
    uint64_t from, to;
    const size_t number = find_run(k->p, run, &from, &to);
    const struct ws_patch_destination *d = &k->p->destinations.ptr[number];
    if (atomic_load(&k->differs))
        return;
    const uint64_t at = ws_patch_values_compare(&d->values, d->memory, from, to);
    if (at == to)
        return;
    pthread_mutex_lock(&k->lock);
    if (!atomic_load(&k->differs)) {
        k->destination = number;
        k->i = at;
    }
    atomic_store(&k->differs, true);
    pthread_mutex_unlock(&k->lock);
}

static uint64_t number_at(const unsigned char *p, unsigned width)
{
    uint64_t v = 0;
    memcpy(&v, p, width);
    return v;
}

static int describe(const struct pass *k, struct ws_error *err)
{
    const struct ws_patch *p = k->p;
    const struct ws_patch_destination *d = &p->destinations.ptr[k->destination];
    const uint64_t place = ws_patch_values_place(&d->values, k->i);
    const unsigned w = d->values.element_bytes;
    const size_t n = p->first[k->destination + 1] - p->first[k->destination];
    uint64_t from = 0;
    const struct ws_patch_range *r = NULL;
    for (size_t i = 0; i < n && !(r && ws_slice_from(&r->slice, place, &from)); i++)
        r = ws_patch_region_of(p, k->destination, (uint32_t)i);
    return ws_error_set(
        err, ESTALE,
        "element %" PRIu64 " of %s is 0x%0*" PRIx64 " in memory, and 0x%0*" PRIx64
        " in the base: something else has written there. Nothing was written; load the version whole",
        from, r ? r->tensor : "?", (int)(2 * w), number_at(d->memory + place * w, w), (int)(2 * w),
        number_at(d->values.before + k->i * w, w));
}

int ws_patch_check(struct ws_patch *p, struct ws_error *err)
{
    struct pass k = {.p = p};
    assert(p->is_prepared);
    pthread_mutex_init(&k.lock, NULL);
    ws_workers_run(p->workers, check_run, &k, p->runs[p->destinations.len]);
    pthread_mutex_destroy(&k.lock);
    return atomic_load(&k.differs) ? describe(&k, err) : 0;
}

void ws_patch_put(struct ws_patch *p)
{
    struct pass k = {.p = p};
    assert(p->is_prepared);
    ws_workers_run(p->workers, write_run, &k, p->runs[p->destinations.len]);
}

void ws_patch_undo(struct ws_patch *p)
{
    struct pass k = {.p = p, .is_undo = true};
    assert(p->is_prepared);
    ws_workers_run(p->workers, write_run, &k, p->runs[p->destinations.len]);
}
