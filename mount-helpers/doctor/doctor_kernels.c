/* A trial of a kernel: it gathers a reversed tensor, and the result is compared. */
#include "mount-helpers/doctor/doctor_kernels.h"
#include "transports/device/gather.h"
#include <errno.h>
#include <stdlib.h>

#define N     (1U << 20)
#define BYTES (N * sizeof(uint32_t))

/* Of the device's memory, in turn. */
struct places {
    unsigned char *src, *dst;
    struct ws_gather_item *items;
    uint32_t *units;
};

static int describe(struct ws_gather *g, const struct places *p, struct ws_error *err)
{
    const uint64_t size[] = {N}, offset[] = {0};
    const int64_t backwards[] = {-1};
    const struct ws_box box = {.n_dims = 1,
                               .shape = size,
                               .offset = offset,
                               .size = size,
                               .src_strides = backwards,
                               .element_bytes = sizeof(uint32_t)};
    struct ws_box_extents runs;
    ws_box_extents_init(&runs, &box);
    return ws_gather_add(g, &runs, p->src + BYTES - sizeof(uint32_t), 0, BYTES, p->dst, WS_GATHER_PACKED, 0,
                         err);
}

static int launch(struct ws_device_queue *q, const struct ws_gather *g, const struct places *p,
                  uint32_t *host, struct ws_error *err)
{
    const struct ws_gather_args args = {.items = p->items, .units = p->units, .n = g->items.len};
    int rc = q->ops->copy(q, p->src, host, BYTES, err);
    if (rc == 0)
        rc = q->ops->copy(q, p->items, g->items.ptr, g->items.len * sizeof(*g->items.ptr), err);
    if (rc == 0)
        rc = q->ops->copy(q, p->units, g->units.ptr, (g->items.len + 1) * sizeof(*g->units.ptr), err);
    if (rc == 0)
        rc = ws_gather_launch(q, &args, g->units.ptr[g->items.len], err);
    if (rc == 0)
        rc = q->ops->finish(q, err); /* what came of the source is read over it */
    if (rc == 0)
        rc = q->ops->copy(q, host, p->dst, BYTES, err);
    int end = q->ops->finish(q, rc == 0 ? err : NULL);
    return rc == 0 ? end : rc;
}

int doctor_try_kernels(struct ws_device_queue *q, unsigned char *memory, struct ws_error *err)
{
    const struct places p = {.src = memory,
                             .dst = memory + BYTES,
                             .items = (void *)(memory + 2 * BYTES),
                             .units = (void *)(memory + 3 * BYTES)};
    uint32_t *host = malloc(BYTES);
    struct ws_gather g;
    if (!host)
        return ws_error_set(err, ENOMEM, "no memory for a trial");
    for (uint32_t i = 0; i < N; i++)
        host[i] = i * 2654435761U;
    ws_gather_init(&g);
    int rc = describe(&g, &p, err);
    if (rc == 0)
        rc = launch(q, &g, &p, host, err);
    for (uint32_t i = 0; rc == 0 && i < N; i++)
        if (host[i] != (N - 1 - i) * 2654435761U)
            rc = ws_error_set(err, EBADMSG, "a kernel put a wrong value at element %u", i);
    ws_gather_free(&g);
    free(host);
    return rc;
}
