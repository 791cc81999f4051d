/* Gather: the items of WS_KERNEL_GATHER (transports/device/kernels/gather.h), made of spans of boxes, and its
 * launch.
 *
 * A list is used by one thread at a time. It is host memory: the caller brings items and units to the device.
 */
#ifndef WS_TRANSPORTS_DEVICE_GATHER_H
#define WS_TRANSPORTS_DEVICE_GATHER_H
#include "transports/device/device.h"
#include "transports/device/kernels/gather.h"
#include "transports/simd/box.h"

struct ws_gather {
    struct ws_gather_item *items;
    uint32_t *units; /* n + 1: before each item, and of all; NULL while n is 0 */
    uint32_t n, room;
};

enum ws_gather_form {
    WS_GATHER_PLACED, /* dst is the tensor's first byte: each element goes to its place */
    WS_GATHER_PACKED, /* dst is the span's first byte: all of them follow each other */
};

void ws_gather_init(struct ws_gather *g);
void ws_gather_free(struct ws_gather *g);
void ws_gather_clear(struct ws_gather *g); /* keeps its memory for the next items */

/* Can the kernel move bytes [from, from + bytes) of the box (src: its first element) to dst? No: the span
 * begins or ends within an element, an element is not 1, 2, 4 or 8 bytes or not at a multiple of that, or the
 * box is too large. Then it goes by copies. */
bool ws_gather_takes(const struct ws_runs *r, const void *src, uint64_t from, uint64_t bytes, const void *dst,
                     enum ws_gather_form form);
/* A span that it takes, of at least a byte. Overflows are added to counter `overflows`. -ENOMEM; -E2BIG: more
 * than one launch does. */
WS_MUST_USE int ws_gather_add(struct ws_gather *g, const struct ws_runs *r, const void *src, uint64_t from,
                              uint64_t bytes, void *dst, enum ws_gather_form form, uint32_t overflows,
                              struct ws_error *err);
/* a: with addresses of the device; n_units: g->units[g->n]. */
WS_MUST_USE int ws_gather_launch(struct ws_queue *q, const struct ws_gather_args *a, uint32_t n_units,
                                 struct ws_error *err);

#endif
