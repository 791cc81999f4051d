#include "transports/device/gather.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

void ws_gather_init(struct ws_gather *g)
{
    *g = (struct ws_gather){0};
}

void ws_gather_free(struct ws_gather *g)
{
    ws_gather_items_reset(&g->items);
    ws_gather_units_reset(&g->units);
}

void ws_gather_clear(struct ws_gather *g)
{
    g->items.len = g->units.len = 0;
}

/* --- a box as an item --- */

static bool is_width(size_t bytes)
{
    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

static uint64_t address_of(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

bool ws_gather_supports(const struct ws_box_extents *r, const void *src, uint64_t from, uint64_t bytes,
                        const void *dst, enum ws_gather_form form)
{
    const size_t to_bytes = r->element_bytes, from_bytes = r->src_element_bytes;
    const uint64_t to = address_of(dst) + (form == WS_GATHER_PLACED ? r->begin : 0);
    if (!is_width(to_bytes) || !is_width(from_bytes))
        return false;
    bool fits = r->extent_bytes / to_bytes <= INT32_MAX || (r->n_loops == 0 && bytes / to_bytes <= INT32_MAX);
    for (unsigned l = 0; l < r->n_loops; l++)
        fits = fits && r->count[l] <= INT32_MAX;
    return fits && from % to_bytes == 0 && bytes % to_bytes == 0 && to % to_bytes == 0 &&
           address_of(src) % from_bytes == 0;
}

static void add_dim(struct ws_gather_item *i, uint64_t size, int64_t src_stride, int64_t dst_stride)
{
    const unsigned d = i->n_dims;
    if (size == 1)
        return;
    if (d > 0 && size * i->size[d - 1] <= INT32_MAX && src_stride == i->src_stride[d - 1] * i->size[d - 1] &&
        dst_stride == i->dst_stride[d - 1] * i->size[d - 1]) { /* continues with a constant stride */
        i->size[d - 1] *= (uint32_t)size;
        return;
    }
    assert(d < WS_MAX_DIMS && size <= INT32_MAX);
    i->size[d] = (uint32_t)size;
    i->src_stride[d] = src_stride;
    i->dst_stride[d] = dst_stride;
    i->n_dims++;
}

/* The box's dimensions, innermost first. Packed: what one element steps over is what lies inside. */
static void shape(struct ws_gather_item *i, const struct ws_box_extents *r, enum ws_gather_form form)
{
    const uint64_t run = r->extent_bytes / r->element_bytes;
    uint64_t inside = run;
    add_dim(i, run, r->extent_step / (int64_t)r->src_element_bytes, 1);
    for (unsigned l = r->n_loops; l-- > 0; inside *= r->count[l])
        add_dim(i, r->count[l], r->src_step[l] / (int64_t)r->src_element_bytes,
                form == WS_GATHER_PACKED ? (int64_t)inside : (int64_t)(r->dst_step[l] / r->element_bytes));
}

/* What has no loops needs nothing of the box before the span and behind it. */
static void straight(struct ws_gather_item *i, const struct ws_box_extents *r)
{
    const int64_t step = r->extent_step / (int64_t)r->src_element_bytes;
    i->src += i->first * (uint64_t)r->extent_step;
    i->dst += i->first * i->dst_bytes;
    i->first = 0;
    add_dim(i, i->count, step, 1);
}

static bool has_pairs(const struct ws_gather_item *i)
{
    const unsigned bytes = 2U * i->dst_bytes;
    bool even = i->conversion == WS_SAME_TYPE && bytes <= 8 && i->src_stride[0] == 1 &&
                i->dst_stride[0] == 1 && i->src % bytes == 0 && i->dst % bytes == 0 && i->size[0] % 2 == 0 &&
                i->first % 2 == 0 && i->count % 2 == 0;
    for (unsigned d = 1; d < i->n_dims; d++)
        even = even && i->src_stride[d] % 2 == 0 && i->dst_stride[d] % 2 == 0;
    return even;
}

/* Short rows of narrow elements are taken as rows of half as many wider ones where everything allows it. */
static void widen(struct ws_gather_item *i)
{
    while (i->size[0] < WS_GATHER_LONG_ROW && has_pairs(i)) {
        i->src_bytes = i->dst_bytes = (uint8_t)(2U * i->dst_bytes);
        i->size[0] /= 2;
        i->first /= 2;
        i->count /= 2;
        for (unsigned d = 1; d < i->n_dims; d++) {
            i->src_stride[d] /= 2;
            i->dst_stride[d] /= 2;
        }
    }
}

static uint32_t unit_of(const struct ws_gather_item *i)
{
    const unsigned widest = i->src_bytes > i->dst_bytes ? i->src_bytes : i->dst_bytes;
    const bool together = i->size[0] >= WS_GATHER_LONG_ROW && i->src_stride[0] == 1 && i->dst_stride[0] == 1;
    return together ? WS_GATHER_UNIT_BYTES / widest : WS_GATHER_UNIT_ELEMENTS;
}

/* --- the list --- */

int ws_gather_add(struct ws_gather *g, const struct ws_box_extents *r, const void *src, uint64_t from,
                  uint64_t bytes, void *dst, enum ws_gather_form form, uint32_t overflows,
                  struct ws_error *err)
{
    assert(bytes > 0 && from <= r->bytes && bytes <= r->bytes - from);
    assert(ws_gather_supports(r, src, from, bytes, dst, form));
    struct ws_gather_item i = {.src = address_of(src),
                               .dst = address_of(dst) + (form == WS_GATHER_PLACED ? r->begin : 0),
                               .first = from / r->element_bytes,
                               .count = bytes / r->element_bytes,
                               .overflows = overflows,
                               .src_bytes = (uint8_t)r->src_element_bytes,
                               .dst_bytes = (uint8_t)r->element_bytes,
                               .conversion = (uint8_t)r->conversion};
    if (form == WS_GATHER_PACKED)
        i.dst -= from;
    if (r->n_loops == 0)
        straight(&i, r);
    else
        shape(&i, r, form);
    if (i.n_dims == 0) { /* one element */
        i.size[0] = 1;
        i.n_dims = 1;
    }
    widen(&i);
    i.unit = unit_of(&i);
    const uint64_t before = g->items.len ? g->units.ptr[g->items.len] : 0;
    const uint64_t end = before + (i.count + i.unit - 1) / i.unit;
    if (end > UINT32_MAX)
        return ws_error_set(err, E2BIG, "gathering %zu pieces is more than one launch does",
                            g->items.len + 1);
    if (ws_gather_units_reserve(&g->units, 2) < 0 || ws_gather_items_append(&g->items, i) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a list of %zu pieces to gather", g->items.len + 1);
    g->units.ptr[0] = 0;
    g->units.ptr[g->items.len] = (uint32_t)end;
    g->units.len = g->items.len + 1;
    return 0;
}

int ws_gather_launch(struct ws_device_queue *q, const struct ws_gather_args *a, uint32_t n_units,
                     struct ws_error *err)
{
    return ws_device_launch(q, WS_KERNEL_GATHER, n_units, a, err);
}
