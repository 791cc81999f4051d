#include "transports/device/block_diff.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define THREADS     256U
#define MOST_BLOCKS 16384U
#define MOST_SHARE  3 /* of a block's elements may have changed: its delta is hardly shorter beyond */

void ws_diff_init(struct ws_diff *d)
{
    *d = (struct ws_diff){0};
}

void ws_diff_free(struct ws_diff *d)
{
    free(d->blocks);
    free(d->first);
    free(d->len);
    free(d->parts);
    free(d->tiles);
    ws_diff_init(d);
}

void ws_diff_clear(struct ws_diff *d)
{
    d->n_blocks = d->n_parts = 0;
}

bool ws_diff_full(const struct ws_diff *d)
{
    return d->n_blocks == WS_DIFF_MOST_BLOCKS;
}

static bool grow(void **array, size_t n, size_t element)
{
    void *more = realloc(*array, n * element);
    if (more)
        *array = more;
    return more;
}

static bool room_for_block(struct ws_diff *d)
{
    if (d->n_blocks < d->room_blocks)
        return true;
    const uint32_t room = d->room_blocks ? 2 * d->room_blocks : 64;
    bool ok = grow((void **)&d->blocks, room, sizeof(*d->blocks)) &&
              grow((void **)&d->first, room + 1, sizeof(*d->first)) &&
              grow((void **)&d->len, room, sizeof(*d->len));
    d->room_blocks = ok ? room : d->room_blocks;
    return ok;
}

static bool room_for_part(struct ws_diff *d)
{
    if (d->n_parts < d->room_parts)
        return true;
    const uint32_t room = d->room_parts ? 2 * d->room_parts : 64;
    bool ok = grow((void **)&d->parts, room, sizeof(*d->parts)) &&
              grow((void **)&d->tiles, room + 1, sizeof(*d->tiles));
    d->room_parts = ok ? room : d->room_parts;
    return ok;
}

int ws_diff_add(struct ws_diff *d, const void *bytes, void *kept, size_t len, const struct ws_widths *w,
                uint64_t offset, struct ws_error *err)
{
    assert(!ws_diff_full(d) && len > 0 && len <= WS_BLOCK_BYTES);
    const uint32_t first = d->n_parts;
    uint32_t n_tiles = d->n_blocks ? d->tiles[d->n_parts] : 0, elements = 0;
    const uint32_t first_tile = n_tiles;
    struct ws_delta_part part;
    bool ok = room_for_block(d);
    for (size_t at = 0; ok && ws_delta_next_part(&part, &at, len, w, offset);) {
        ok = room_for_part(d);
        if (!ok)
            break;
        d->tiles[d->n_parts] = n_tiles;
        d->parts[d->n_parts++] = (struct ws_diff_part){d->n_blocks, part.begin, part.n, part.width};
        n_tiles += ws_diff_tiles(part.n, part.width);
        d->tiles[d->n_parts] = n_tiles;
        elements += part.n;
    }
    if (!ok) {
        d->n_parts = first;
        if (d->n_blocks)
            d->tiles[first] = first_tile;
        return ws_error_set(err, ENOMEM, "no memory for a list of %u blocks to compare", d->n_blocks + 1);
    }
    d->blocks[d->n_blocks] = (struct ws_diff_block){bytes, kept, first_tile, elements / MOST_SHARE};
    d->len[d->n_blocks] = len;
    d->first[d->n_blocks] = first;
    d->first[++d->n_blocks] = d->n_parts;
    return 0;
}

int ws_diff_launch(struct ws_queue *q, enum ws_kernel k, const struct ws_diff_args *a, uint32_t n_tiles,
                   struct ws_error *err)
{
    const uint32_t warps = THREADS / 32, blocks = n_tiles / warps + (n_tiles % warps > 0);
    struct ws_diff_args args = *a;
    if (n_tiles == 0)
        return 0;
    return q->ops->launch(q, k, blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, THREADS, (void *[]){&args}, err);
}

/* Where block i's changes are; false: it is not packed. */
static bool place_of(const struct ws_diff *d, const struct ws_diff_found *f, uint32_t i, uint32_t *place)
{
    *place = 0;
    for (uint32_t b = 0; b < i; b++)
        *place += ws_diff_packs(f->block_changed[b], d->blocks[b].most);
    return ws_diff_fits(f->block_changed[i], d->blocks[i].most, *place, f->room);
}

uint32_t ws_diff_packed(const struct ws_diff *d, const struct ws_diff_found *f)
{
    uint32_t end = 0, place = 0;
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        const uint32_t changed = f->block_changed[i], most = d->blocks[i].most;
        if (ws_diff_fits(changed, most, place, f->room))
            end = place + changed;
        place += ws_diff_packs(changed, most);
    }
    return end;
}

bool ws_diff_is_packed(const struct ws_diff *d, const struct ws_diff_found *f, uint32_t i)
{
    uint32_t place;
    return place_of(d, f, i, &place);
}

int ws_diff_encode(const struct ws_diff *d, const struct ws_diff_found *f, uint32_t i, unsigned char *out,
                   size_t *out_bytes, uint32_t *n_changed, struct ws_error *err)
{
    const uint32_t first = d->first[i], n = d->first[i + 1] - first;
    uint32_t place;
    *n_changed = f->block_changed[i];
    *out_bytes = 0;
    if (*n_changed == 0)
        return 0;
    if (!place_of(d, f, i, &place))
        return -E2BIG;
    struct ws_delta_found *parts = malloc(n * sizeof(*parts));
    if (!parts)
        return ws_error_set(err, ENOMEM, "no memory for the parts of a block");
    for (uint32_t p = 0; p < n; p++) {
        const struct ws_diff_part *part = &d->parts[first + p];
        parts[p] = (struct ws_delta_found){.part = {part->begin, part->n, part->width},
                                           .n = f->part_changed[first + p],
                                           .at = f->at + place,
                                           .changes = f->changes + place};
        place += parts[p].n;
    }
    int rc = ws_delta_encode_found(parts, n, d->len[i], out, out_bytes, n_changed);
    free(parts);
    return rc;
}
