#include "transports/device/block_diff.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define MOST_SHARE 3 /* of a block's elements may have changed: its delta is hardly shorter beyond */

void ws_block_diff_init(struct ws_block_diff *d)
{
    *d = (struct ws_block_diff){0};
}

void ws_block_diff_free(struct ws_block_diff *d)
{
    ws_block_diff_blocks_reset(&d->blocks);
    ws_block_diff_extents_reset(&d->extents);
    ws_block_diff_spans_reset(&d->spans);
    ws_block_diff_tiles_reset(&d->tiles);
}

void ws_block_diff_clear(struct ws_block_diff *d)
{
    d->blocks.len = d->extents.len = d->spans.len = d->tiles.len = 0;
}

/* The spans of a block, and the tiles before each; *elements: of all of them. -ENOMEM: the list is as before. */
static int add_spans(struct ws_block_diff *d, size_t len, const struct ws_element_widths *w, uint64_t offset,
                     uint32_t *elements)
{
    const size_t n_spans = d->spans.len, n_tiles = d->tiles.len;
    struct ws_delta_span s;
    int rc = n_tiles ? 0 : ws_block_diff_tiles_append(&d->tiles, 0);
    *elements = 0;
    for (size_t at = 0; rc == 0 && ws_delta_span_next(&s, &at, len, w, offset);) {
        const uint32_t before = d->tiles.ptr[d->tiles.len - 1];
        rc = ws_block_diff_spans_append(
            &d->spans, (struct ws_diff_span){(uint32_t)d->blocks.len, s.begin, s.n, s.width});
        if (rc == 0)
            rc = ws_block_diff_tiles_append(&d->tiles, before + ws_diff_tiles(s.n, s.width));
        *elements += s.n;
    }
    if (rc < 0) {
        d->spans.len = n_spans;
        d->tiles.len = n_tiles;
    }
    return rc;
}

int ws_block_diff_add(struct ws_block_diff *d, const void *bytes, void *shadow, size_t len,
                      const struct ws_element_widths *w, uint64_t offset, struct ws_error *err)
{
    assert(d->blocks.len < WS_BLOCK_DIFF_MAX_BLOCKS && len > 0 && len <= WS_BLOCK_BYTES);
    const uint32_t first = (uint32_t)d->spans.len, first_tile = first ? d->tiles.ptr[first] : 0;
    uint32_t elements;
    if (ws_block_diff_blocks_reserve(&d->blocks, 1) < 0 ||
        ws_block_diff_extents_reserve(&d->extents, 1) < 0 || add_spans(d, len, w, offset, &elements) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a list of %zu blocks to compare", d->blocks.len + 1);
    d->blocks.ptr[d->blocks.len++] = (struct ws_diff_block){bytes, shadow, first_tile, elements / MOST_SHARE};
    d->extents.ptr[d->extents.len++] =
        (struct ws_block_diff_extent){first, (uint32_t)d->spans.len - first, len};
    return 0;
}

int ws_block_diff_launch(struct ws_device_queue *q, enum ws_kernel k, const struct ws_diff_args *a,
                         uint32_t n_tiles, struct ws_error *err)
{
    return ws_device_launch(q, k, n_tiles, a, err);
}

/* Where block i's changes are; false: it is not packed. */
static bool place_of(const struct ws_block_diff *d, const struct ws_block_diff_result *f, uint32_t i,
                     uint32_t *place)
{
    *place = 0;
    for (uint32_t b = 0; b < i; b++)
        *place += ws_diff_packs(f->block_changed[b], d->blocks.ptr[b].most);
    return ws_diff_fits(f->block_changed[i], d->blocks.ptr[i].most, *place, f->room);
}

uint32_t ws_block_diff_n_packed(const struct ws_block_diff *d, const struct ws_block_diff_result *f)
{
    uint32_t end = 0, place = 0;
    for (uint32_t i = 0; i < d->blocks.len; i++) {
        const uint32_t changed = f->block_changed[i], most = d->blocks.ptr[i].most;
        if (ws_diff_fits(changed, most, place, f->room))
            end = place + changed;
        place += ws_diff_packs(changed, most);
    }
    return end;
}

bool ws_block_diff_is_packed(const struct ws_block_diff *d, const struct ws_block_diff_result *f, uint32_t i)
{
    uint32_t place;
    return place_of(d, f, i, &place);
}

int ws_block_diff_encode(const struct ws_block_diff *d, const struct ws_block_diff_result *f, uint32_t i,
                         unsigned char *out, size_t *out_bytes, uint32_t *n_changed, struct ws_error *err)
{
    const struct ws_block_diff_extent *x = &d->extents.ptr[i];
    const uint32_t first = x->first_span, n = x->n_spans;
    uint32_t place;
    *n_changed = f->block_changed[i];
    *out_bytes = 0;
    if (*n_changed == 0)
        return 0;
    if (!place_of(d, f, i, &place))
        return -E2BIG;
    struct ws_delta_span_changes *spans = malloc(n * sizeof(*spans));
    if (!spans)
        return ws_error_set(err, ENOMEM, "no memory for the spans of a block");
    for (uint32_t p = 0; p < n; p++) {
        const struct ws_diff_span *span = &d->spans.ptr[first + p];
        spans[p] = (struct ws_delta_span_changes){.span = {span->begin, span->n, span->width},
                                                  .n = f->span_changed[first + p],
                                                  .at = f->at + place,
                                                  .changes = f->changes + place};
        place += spans[p].n;
    }
    int rc = ws_delta_block_encode_changes(spans, n, x->len, out, out_bytes, n_changed);
    free(spans);
    return rc;
}
