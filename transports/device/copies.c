#include "transports/device/copies.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

#define MAX_PITCH  ((int64_t)1 << 31) /* bytes from row to row of one copy, exclusive */
#define MAX_ROWS   65535UL            /* of one copy, and planes: some devices take no more */
#define LONG_BYTES (1UL << 20)        /* one stretch from here on is a copy of its own */

/* --- a cursor --- */

static bool is_pitch(int64_t step, uint64_t least)
{
    return step >= (int64_t)least && step < MAX_PITCH;
}

static size_t at_most(uint64_t n)
{
    return n < 1 ? 1 : n > MAX_ROWS ? MAX_ROWS : n;
}

/* Whole rows from the cursor's on that are steps of the innermost loop, and where it begins anew with each,
 * planes of them. width: of what is ready. */
static void shape_of(const struct ws_box_cursor *c, struct ws_device_box_copy *b)
{
    const struct ws_box_extents *r = c->extents;
    const unsigned l = r->n_loops - 1;
    b->height = b->depth = 1;
    if (r->n_loops == 0 || c->at > 0 || !is_pitch(r->src_step[l], r->extent_bytes) ||
        !is_pitch((int64_t)r->dst_step[l], r->extent_bytes))
        return;
    const uint64_t rows = r->count[l] - c->index[l], whole = c->left / r->extent_bytes;
    b->height = at_most(rows < whole ? rows : whole);
    b->src_row = (size_t)r->src_step[l];
    b->dst_row = r->dst_step[l];
    const int64_t plane = (int64_t)b->src_row * (int64_t)b->height;
    if (l == 0 || b->height != r->count[l] || r->src_step[l - 1] < plane ||
        r->src_step[l - 1] % r->src_step[l] || r->dst_step[l - 1] % r->dst_step[l])
        return;
    const uint64_t planes = r->count[l - 1] - c->index[l - 1], left = whole / b->height;
    b->depth = at_most(planes < left ? planes : left);
    b->src_plane = (size_t)r->src_step[l - 1];
    b->dst_plane = r->dst_step[l - 1];
}

/* A run whose elements lie apart: a column. */
static int copy_column(struct ws_device_queue *q, const struct ws_box_cursor *c, unsigned char *dst,
                       struct ws_error *err)
{
    const struct ws_box_extents *r = c->extents;
    const unsigned char *src = c->src + (int64_t)(c->at / r->element_bytes) * r->extent_step;
    const uint64_t n = ws_box_cursor_ready(c) / r->element_bytes;
    int rc = 0;
    for (uint64_t i = 0, rows; rc == 0 && i < n; i += rows) {
        const struct ws_device_box_copy b = {
            .dst = dst + i * r->element_bytes,
            .src = src + (int64_t)i * r->extent_step,
            .width = r->element_bytes,
            .height = rows = is_pitch(r->extent_step, r->element_bytes) ? at_most(n - i) : 1,
            .depth = 1,
            .src_row = (size_t)r->extent_step,
            .dst_row = r->element_bytes};
        rc = rows > 1 ? q->ops->copy_box(q, &b, err) : q->ops->copy(q, b.dst, b.src, b.width, err);
    }
    return rc;
}

int ws_copies_cursor(struct ws_device_queue *q, struct ws_box_cursor *c, void *dst, struct ws_error *err)
{
    int rc = 0;
    for (uint64_t n; rc == 0 && (n = ws_box_cursor_ready(c)) > 0;) {
        unsigned char *to = (unsigned char *)dst + c->dst + c->at;
        struct ws_device_box_copy b = {.dst = to, .src = ws_box_cursor_plain(c), .width = n};
        if (!b.src) {
            rc = copy_column(q, c, to, err);
            ws_box_cursor_skip(c, n);
            continue;
        }
        shape_of(c, &b);
        rc = b.height > 1 ? q->ops->copy_box(q, &b, err) : q->ops->copy(q, to, b.src, n, err);
        for (size_t i = 0; i < b.height * b.depth; i++)
            ws_box_cursor_skip(c, n);
    }
    return rc;
}

/* --- pieces --- */

void ws_copies_begin(struct ws_copies *c, struct ws_device_queue *q, size_t counters)
{
    *c = (struct ws_copies){
        .q = q, .n_counters = counters ? counters : 1, .kernels = q->ops->has_kernels(q->device, NULL) == 0};
    ws_gather_init(&c->items);
}

static bool is_long(const struct ws_box_extents *r)
{
    return r->n_loops == 0 && r->conversion == WS_SAME_TYPE && r->extent_step == (int64_t)r->element_bytes &&
           r->bytes >= LONG_BYTES;
}

int ws_copies_add(struct ws_copies *c, const struct ws_box_extents *r, const void *src, void *dst,
                  size_t counter, struct ws_error *err)
{
    struct ws_box_extents raw;
    struct ws_box_cursor cursor;
    if (r->bytes == 0)
        return 0;
    if (c->kernels && !is_long(r) && ws_gather_supports(r, src, 0, r->bytes, dst, WS_GATHER_PACKED))
        return ws_gather_add(&c->items, r, src, 0, r->bytes, dst, WS_GATHER_PACKED, (uint32_t)counter, err);
    if (r->conversion != WS_SAME_TYPE)
        return ws_error_set(err, EOPNOTSUPP, "there is no kernel to convert on this device");
    ws_box_extents_raw(&raw, r);
    ws_box_cursor_seek(&cursor, &raw, src, 0, raw.bytes);
    return ws_copies_cursor(c->q, &cursor, dst, err);
}

int ws_copies_send(struct ws_copies *c, struct ws_error *err)
{
    const struct ws_gather *g = &c->items;
    const struct ws_device_ops *ops = c->q->ops;
    const size_t items = g->items.len * sizeof(g->items.ptr[0]),
                 units = (g->items.len + 1) * sizeof(g->units.ptr[0]),
                 counters = c->n_counters * sizeof(uint64_t);
    if (g->items.len == 0)
        return 0;
    c->counters_at = (items + units + 7) & ~(size_t)7;
    int rc = ops->alloc_pinned(c->q->device, c->counters_at + counters, &c->pinned, err);
    if (rc == 0)
        rc = ops->alloc(c->q->device, c->counters_at + counters, &c->there, err);
    if (rc < 0)
        return rc;
    char *here = c->pinned, *there = c->there;
    memcpy(here, g->items.ptr, items);
    memcpy(here + items, g->units.ptr, units);
    memset(here + c->counters_at, 0, counters);
    const struct ws_gather_args args = {.items = c->there,
                                        .units = (void *)(there + items),
                                        .overflows = (void *)(there + c->counters_at),
                                        .n = g->items.len};
    rc = ops->copy(c->q, there, here, c->counters_at + counters, err);
    if (rc == 0)
        rc = ws_gather_launch(c->q, &args, g->units.ptr[g->items.len], err);
    return rc == 0 ? ops->copy(c->q, here + c->counters_at, there + c->counters_at, counters, err) : rc;
}

uint64_t ws_copies_overflows(const struct ws_copies *c, size_t counter)
{
    uint64_t n = 0;
    assert(counter < c->n_counters);
    if (c->pinned)
        memcpy(&n, (char *)c->pinned + c->counters_at + counter * sizeof(n), sizeof(n));
    return n;
}

void ws_copies_end(struct ws_copies *c)
{
    c->q->ops->release_pinned(c->q->device, c->pinned);
    c->q->ops->release(c->q->device, c->there);
    ws_gather_free(&c->items);
}
