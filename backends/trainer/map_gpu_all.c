/* All pieces of an opened version to device memory at once: one after the other costs a wait each, which with
 * many small ones is most of the time. */
#include "backends/trainer/last_error.h"
#include "backends/trainer/map_gpu.h"
#include "transports/gather.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONG_BYTES (1UL << 20) /* from here on a copy of its own */

/* What one device has to gather. */
struct load {
    struct ws_queue *q;
    struct ws_gather items;
    void *pinned, *there; /* the items, on the host and on the device */
};

static int queue_of(struct wsync_gpu_map *m, int device, struct ws_queue **out, struct ws_error *err)
{
    int rc = m->queues[device] ? 0 : m->ops->queue_new(device, &m->queues[device], err);
    *out = m->queues[device];
    return rc;
}

static bool is_plain(const struct ws_runs *r)
{
    return r->n_loops == 0 && r->conversion == WS_KEEP && r->run_step == (int64_t)r->element_bytes;
}

/* Queues a piece's copy, or adds it to what is gathered; *alone: neither can do it. */
static int add(struct wsync_gpu_map *m, struct load *l, size_t i, void *dst, bool *alone,
               struct ws_error *err)
{
    const struct ws_gpu_piece *p = m->pieces[i].piece;
    const wsync_gpu_tensor *t = &m->tensors[i];
    struct ws_runs runs;
    ws_gpu_piece_runs(p, &runs);
    if (runs.bytes == 0)
        return 0;
    if (is_plain(&runs) && runs.bytes >= LONG_BYTES)
        return m->ops->copy(l->q, dst, t->data, runs.bytes, err);
    *alone = m->ops->has_kernels(t->device, NULL) < 0 ||
             !ws_gather_takes(&runs, t->data, 0, runs.bytes, dst, WS_GATHER_PACKED);
    /* Overflows are counted where the file is made; here nobody asks. */
    return *alone ? 0
                  : ws_gather_add(&l->items, &runs, t->data, 0, runs.bytes, dst, WS_GATHER_PACKED, 0, err);
}

static int launch(const struct wsync_gpu_map *m, struct load *l, int device, struct ws_error *err)
{
    const struct ws_gather *g = &l->items;
    const size_t items = g->n * sizeof(g->items[0]), units = (g->n + 1) * sizeof(g->units[0]);
    const size_t counter = (items + units + 7) & ~(size_t)7;
    int rc = m->ops->alloc_pinned(device, counter, &l->pinned, err);
    if (rc == 0)
        rc = m->ops->alloc(device, counter + sizeof(uint64_t), &l->there, err);
    if (rc < 0)
        return rc;
    memcpy(l->pinned, g->items, items);
    memcpy((char *)l->pinned + items, g->units, units);
    const struct ws_gather_args args = {.items = l->there,
                                        .units = (void *)((char *)l->there + items),
                                        .overflows = (void *)((char *)l->there + counter),
                                        .n = g->n};
    rc = m->ops->copy(l->q, l->there, l->pinned, items + units, err);
    return rc == 0 ? ws_gather_launch(l->q, &args, g->units[g->n], err) : rc;
}

/* The pieces on one device. */
static int load_device(struct wsync_gpu_map *m, int device, void *const *dst, size_t n, bool *alone,
                       struct ws_error *err)
{
    struct load l = {0};
    struct ws_error ignored;
    int rc = queue_of(m, device, &l.q, err);
    if (rc < 0)
        return rc;
    ws_gather_init(&l.items);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (dst[i] && m->tensors[i].device == device)
            rc = add(m, &l, i, dst[i], &alone[i], err);
    if (rc == 0 && l.items.n > 0)
        rc = launch(m, &l, device, err);
    int end = m->ops->finish(l.q, rc == 0 ? err : &ignored);
    m->ops->release_pinned(device, l.pinned);
    m->ops->release(device, l.there);
    ws_gather_free(&l.items);
    return rc < 0 ? rc : end;
}

int wsync_gpu_map_copy_all(wsync_gpu_map *m, void *const *dst, size_t n)
{
    struct ws_error *err = ws_last_error();
    int rc = 0;
    if (n > m->n)
        return ws_error_set(err, EINVAL, "there are %zu pieces, not %zu", m->n, n);
    if (m->pid != getpid())
        return ws_error_set(err, EPERM, "this map was opened by process %d, of which this one is a fork",
                            (int)m->pid);
    bool *alone = calloc(n + 1, sizeof(*alone));
    if (!alone)
        return ws_error_set(err, ENOMEM, "no memory for a list of %zu pieces", n);
    for (unsigned d = 0; rc == 0 && d < m->ops->count(); d++) {
        bool any = false;
        for (size_t i = 0; i < n && !any; i++)
            any = dst[i] && m->tensors[i].device == (int)d;
        if (any)
            rc = load_device(m, (int)d, dst, n, alone, err);
    }
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (alone[i])
            rc = wsync_gpu_map_copy(m, i, dst[i], ws_gpu_piece_bytes(m->pieces[i].piece));
    free(alone);
    return rc;
}
