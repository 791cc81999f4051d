/* Gather: the items of WS_KERNEL_GATHER (transports/device/kernels/gather.h), made of spans of boxes, and its
 * launch.
 *
 * One thread at a time uses a list. It is host memory: the caller copies items and units to the device. */
#ifndef WS_TRANSPORTS_DEVICE_GATHER_H
#define WS_TRANSPORTS_DEVICE_GATHER_H
#include "transports/base/vector.h"
#include "transports/device/device.h"
#include "transports/device/kernels/gather.h"
#include "transports/simd/box.h"

WS_VECTOR(ws_gather_items, struct ws_gather_item);
WS_VECTOR(ws_gather_units, uint32_t);

struct ws_gather {
    struct ws_gather_items items;
    struct ws_gather_units units; /* before each item, and at last of all; empty while there is no item */
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
bool ws_gather_supports(const struct ws_box_extents *r, const void *src, uint64_t from, uint64_t bytes,
                        const void *dst, enum ws_gather_form form);
/* Adds a span that the kernel supports, of at least a byte. Overflows are added to counter `overflows`. -ENOMEM; -E2BIG: more
 * than one launch does. */
WS_MUST_USE int ws_gather_add(struct ws_gather *g, const struct ws_box_extents *r, const void *src,
                              uint64_t from, uint64_t bytes, void *dst, enum ws_gather_form form,
                              uint32_t overflows, struct ws_error *err);
/* a: with addresses of the device; n_units: the last of g->units. */
WS_MUST_USE int ws_gather_launch(struct ws_device_queue *q, const struct ws_gather_args *a, uint32_t n_units,
                                 struct ws_error *err);

#endif
