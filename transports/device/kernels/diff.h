/* WS_KERNEL_DIFF_COUNT and WS_KERNEL_DIFF_PACK: what changed in blocks since the shadow copy of them.
 *
 * A launch has many blocks, since one of 4 MiB is compared in 2 microseconds. COUNT counts the changed elements
 * of each tile, span and block. PACK writes what changed of one block after the other, elements ascending, and
 * brings the shadow copies up to date. The host does nothing in between: a warp finds its place by adding up
 * the counts before it, some hundred numbers a tile.
 *
 * A block is not packed if more of it changed than `most` (a third of its elements: its delta would not be
 * short), or if it does not fit into the room that is left; then no later block is packed either. The shadow
 * copies of such blocks are brought up to date, too. The host sees from the blocks' counts which blocks they are
 * (ws_diff_fits).
 *
 * Spans are those of ws_delta_span_next (transports/delta/block.h), and what is packed is what
 * ws_delta_block_encode_changes takes. Memory is read at its full speed where both copies of a span begin at
 * multiples of its width, equally far from a multiple of 16. */
#ifndef WS_TRANSPORTS_DEVICE_KERNELS_DIFF_H
#define WS_TRANSPORTS_DEVICE_KERNELS_DIFF_H
#include "transports/device/kernels/kernel.h"

#define WS_DIFF_TILE_BYTES 16384U

struct ws_diff_block {
    const unsigned char *bytes; /* the new ones */
    unsigned char *shadow;
    uint32_t first_tile; /* of its first span */
    uint32_t most;       /* changed elements that are packed, at most */
};

struct ws_diff_span {
    uint32_t block, begin, n; /* begin: byte in the block; elements, at least 1 */
    uint32_t width;           /* 1, 2 or 4 */
};

/* All of it memory of the device. Both kernels take the same. */
struct ws_diff_args {
    const struct ws_diff_block *blocks;
    const struct ws_diff_span *spans; /* by block, in the order of the block */
    const uint32_t *tiles;            /* n_spans + 1: tiles before each span, and at last of all */
    uint32_t *tile_changed;           /* by tile: written by COUNT */
    uint32_t *span_changed;           /* by span, by block: added to by COUNT, 0 before */
    uint32_t *block_changed;
    uint32_t *at, *changes; /* written by PACK: the element's number in its span; zigzagged change - 1 */
    uint32_t room;          /* of both */
    uint32_t n_spans;       /* at least 1 */
};

WS_DEVICE uint32_t ws_diff_tiles(uint32_t n, uint32_t width)
{
    const uint32_t each = WS_DIFF_TILE_BYTES / width;
    return n / each + (n % each > 0);
}

/* What of a block is packed, as far as it is about that block alone. */
WS_DEVICE uint32_t ws_diff_packs(uint32_t changed, uint32_t most)
{
    return changed <= most ? changed : 0;
}

/* Is a block packed whose changes would begin at place? */
WS_DEVICE bool ws_diff_fits(uint32_t changed, uint32_t most, uint32_t place, uint32_t room)
{
    return changed <= most && place <= room && changed <= room - place;
}

struct ws_diff_tile {
    const unsigned char *bytes; /* of its first element */
    unsigned char *shadow;
    uint32_t span, first, n, width; /* first: its number in the span */
};

WS_DEVICE struct ws_diff_tile ws_diff_tile_at(const struct ws_diff_args *a, uint32_t tile, uint32_t lane)
{
    const uint32_t at = ws_warp_find(a->tiles, a->n_spans, tile, lane);
    const struct ws_diff_span p = a->spans[at];
    const struct ws_diff_block *b = &a->blocks[p.block];
    const uint32_t each = WS_DIFF_TILE_BYTES / p.width, first = (tile - a->tiles[at]) * each;
    struct ws_diff_tile t;
    t.bytes = b->bytes + p.begin + (size_t)first * p.width;
    t.shadow = b->shadow + p.begin + (size_t)first * p.width;
    t.span = at;
    t.first = first;
    t.n = p.n - first < each ? p.n - first : each;
    t.width = p.width;
    return t;
}

/* A tile as elements before the first multiple of 16, words of 16 bytes, elements behind the last; all of it
 * elements where the two copies do not lie alike. */
struct ws_diff_cut {
    uint32_t head, words; /* head: elements */
};

WS_DEVICE struct ws_diff_cut ws_diff_cut_of(const struct ws_diff_tile *t)
{
    const uint32_t x = (uint32_t)(uintptr_t)t->bytes, y = (uint32_t)(uintptr_t)t->shadow;
    struct ws_diff_cut c = {t->n, 0};
    if (((x ^ y) & 15) == 0 && x % t->width == 0) {
        const uint32_t head = ((0 - x) & 15) / t->width;
        c.head = head < t->n ? head : t->n;
        c.words = (t->n - c.head) * t->width / 16;
    }
    return c;
}

/* By bytes, since it may lie anywhere. */
WS_DEVICE uint32_t ws_diff_element(const unsigned char *p, uint32_t width)
{
    uint32_t v = p[0];
    if (width > 1)
        v |= (uint32_t)p[1] << 8;
    if (width > 2)
        v |= (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    return v;
}

WS_DEVICE struct ws_word16 ws_diff_load(const unsigned char *p)
{
    return *(const struct ws_word16 *)p;
}

/* Bit i: element i of the 4 bytes changed. */
WS_DEVICE uint32_t ws_diff_word(uint32_t x, uint32_t y, uint32_t width)
{
    const uint32_t d = x ^ y;
    if (width == 4)
        return d != 0;
    if (width == 2)
        return (uint32_t)((d & 0xffff) != 0) | (uint32_t)(d >> 16 != 0) << 1;
    return (uint32_t)((d & 0xff) != 0) | (uint32_t)((d & 0xff00) != 0) << 1 |
           (uint32_t)((d & 0xff0000) != 0) << 2 | (uint32_t)(d >> 24 != 0) << 3;
}

WS_DEVICE uint32_t ws_diff_mask(const struct ws_word16 *x, const struct ws_word16 *y, uint32_t width)
{
    uint32_t mask = 0;
    WS_UNROLL
    for (uint32_t w = 0; w < 4; w++)
        mask |= ws_diff_word(x->u32[w], y->u32[w], width) << w * (4 / width);
    return mask;
}

/* --- counting --- */

WS_DEVICE uint32_t ws_diff_count_elements(const struct ws_diff_tile *t, uint32_t from, uint32_t to,
                                          uint32_t lane)
{
    uint32_t n = 0;
    for (uint32_t i = from + lane; i < to; i += WS_WARP)
        n += ws_diff_element(t->bytes + i * t->width, t->width) !=
             ws_diff_element(t->shadow + i * t->width, t->width);
    return n;
}

#define WS_DIFF_BATCH 4 /* words of each copy that a thread reads at once */

WS_DEVICE uint32_t ws_diff_count_words(const unsigned char *bytes, const unsigned char *shadow, uint32_t n,
                                       uint32_t width, uint32_t lane)
{
    uint32_t changed = 0;
    for (uint32_t i = lane; i < n; i += WS_DIFF_BATCH * WS_WARP) {
        struct ws_word16 x[WS_DIFF_BATCH], y[WS_DIFF_BATCH];
        WS_UNROLL
        for (uint32_t b = 0; b < WS_DIFF_BATCH; b++) {
            const uint32_t k = i + b * WS_WARP < n ? i + b * WS_WARP : i;
            x[b] = ws_diff_load(bytes + (size_t)k * 16);
            y[b] = ws_diff_load(shadow + (size_t)k * 16);
        }
        WS_UNROLL
        for (uint32_t b = 0; b < WS_DIFF_BATCH; b++)
            if (i + b * WS_WARP < n)
                changed += ws_bits(ws_diff_mask(&x[b], &y[b], width));
    }
    return changed;
}

WS_DEVICE void ws_diff_count_body(const struct ws_diff_args *a, struct ws_warp w)
{
    const uint32_t n_tiles = a->tiles[a->n_spans];
    for (uint64_t tile = w.at; tile < n_tiles; tile += w.n) {
        const struct ws_diff_tile t = ws_diff_tile_at(a, (uint32_t)tile, w.lane);
        const struct ws_diff_cut c = ws_diff_cut_of(&t);
        const uint32_t words_end = c.head + c.words * (16 / t.width);
        const unsigned char *bytes = t.bytes + c.head * t.width, *shadow = t.shadow + c.head * t.width;
        uint32_t n = ws_diff_count_elements(&t, 0, c.head, w.lane) +
                     ws_diff_count_elements(&t, words_end, t.n, w.lane);
        if (t.width == 2)
            n += ws_diff_count_words(bytes, shadow, c.words, 2, w.lane);
        else if (t.width == 4)
            n += ws_diff_count_words(bytes, shadow, c.words, 4, w.lane);
        else
            n += ws_diff_count_words(bytes, shadow, c.words, 1, w.lane);
        n = ws_warp_sum(n);
        if (w.lane > 0)
            continue;
        a->tile_changed[tile] = n;
        if (n > 0) {
            ws_add_u32(&a->span_changed[t.span], n);
            ws_add_u32(&a->block_changed[a->spans[t.span].block], n);
        }
    }
}

/* --- packing --- */

/* Where a tile's changes go; NULL: nowhere. */
struct ws_diff_out {
    uint32_t *at, *changes;
};

WS_DEVICE uint32_t ws_diff_change(uint32_t x, uint32_t y, uint32_t width)
{
    const uint32_t shift = 32 - 8 * width, d = (x - y) << shift;
    return (((d << 1) ^ (0U - (d >> 31))) >> shift) - 1U;
}

/* Behind the changes of all blocks before this one, and of this one's tiles before this one. */
WS_DEVICE struct ws_diff_out ws_diff_place(const struct ws_diff_args *a, uint32_t tile, uint32_t block,
                                           uint32_t lane)
{
    const uint32_t changed = a->block_changed[block], most = a->blocks[block].most;
    struct ws_diff_out out = {NULL, NULL};
    uint32_t blocks = 0, tiles = 0;
    if (changed > most)
        return out;
    for (uint32_t b = lane; b < block; b += WS_WARP)
        blocks += ws_diff_packs(a->block_changed[b], a->blocks[b].most);
    for (uint32_t t = a->blocks[block].first_tile + lane; t < tile; t += WS_WARP)
        tiles += a->tile_changed[t];
    blocks = ws_warp_sum(blocks);
    tiles = ws_warp_sum(tiles);
    if (ws_diff_fits(changed, most, blocks, a->room)) {
        out.at = a->at + blocks + tiles;
        out.changes = a->changes + blocks + tiles;
    }
    return out;
}

WS_DEVICE void ws_diff_pack_elements(const struct ws_diff_tile *t, uint32_t from, uint32_t to,
                                     struct ws_diff_out *out, uint32_t lane)
{
    for (uint32_t first = from; first < to; first += WS_WARP) {
        const uint32_t i = first + lane;
        uint32_t x = 0, y = 0, before;
        if (i < to) {
            x = ws_diff_element(t->bytes + i * t->width, t->width);
            y = ws_diff_element(t->shadow + i * t->width, t->width);
        }
        const uint32_t n = ws_warp_count(x != y, &before, lane);
        if (x != y) {
            for (uint32_t k = 0; k < t->width; k++)
                t->shadow[i * t->width + k] = (unsigned char)(x >> 8 * k);
            if (out->at) {
                out->at[before] = t->first + i;
                out->changes[before] = ws_diff_change(x, y, t->width);
            }
        }
        if (out->at) {
            out->at += n;
            out->changes += n;
        }
    }
}

WS_DEVICE uint32_t ws_diff_pick(const struct ws_word16 *x, uint32_t which)
{
    const uint32_t low = which & 1 ? x->u32[1] : x->u32[0], high = which & 1 ? x->u32[3] : x->u32[2];
    return which & 2 ? high : low;
}

/* The changes of one word, from place `to` on; first: its first element's number. */
WS_DEVICE void ws_diff_put_word(const struct ws_diff_out *out, uint32_t to, uint32_t first, uint32_t width,
                                const struct ws_word16 *x, const struct ws_word16 *y, uint32_t mask)
{
    const uint32_t all = width == 4 ? 0xffffffffU : (1U << 8 * width) - 1;
    WS_NO_UNROLL
    for (; mask != 0; mask &= mask - 1) {
        const uint32_t e = ws_lowest_bit(mask), w = e * width / 4, shift = 8 * (e * width % 4);
        out->at[to] = first + e;
        out->changes[to++] =
            ws_diff_change(ws_diff_pick(x, w) >> shift & all, ws_diff_pick(y, w) >> shift & all, width);
    }
}

WS_DEVICE void ws_diff_pack_words(const struct ws_diff_tile *t, struct ws_diff_cut c, uint32_t width,
                                  struct ws_diff_out *out, uint32_t lane)
{
    const unsigned char *bytes = t->bytes + c.head * width;
    unsigned char *shadow = t->shadow + c.head * width;
    for (uint32_t from = 0; from < c.words; from += WS_DIFF_BATCH * WS_WARP) {
        struct ws_word16 x[WS_DIFF_BATCH], y[WS_DIFF_BATCH];
        WS_UNROLL
        for (uint32_t b = 0; b < WS_DIFF_BATCH; b++) {
            const uint32_t i = from + b * WS_WARP + lane, k = i < c.words ? i : 0;
            x[b] = ws_diff_load(bytes + (size_t)k * 16);
            y[b] = ws_diff_load(shadow + (size_t)k * 16);
        }
        WS_UNROLL
        for (uint32_t b = 0; b < WS_DIFF_BATCH; b++) {
            const uint32_t i = from + b * WS_WARP + lane;
            const uint32_t mask = i < c.words ? ws_diff_mask(&x[b], &y[b], width) : 0;
            uint32_t before;
            if (!ws_warp_any(mask != 0))
                continue;
            const uint32_t n = ws_warp_scan(ws_bits(mask), &before, lane);
            if (mask != 0)
                *(struct ws_word16 *)(shadow + (size_t)i * 16) = x[b];
            if (out->at) {
                ws_diff_put_word(out, before, t->first + c.head + i * (16 / width), width, &x[b], &y[b],
                                 mask);
                out->at += n;
                out->changes += n;
            }
        }
    }
}

WS_DEVICE void ws_diff_pack_body(const struct ws_diff_args *a, struct ws_warp w)
{
    const uint32_t n_tiles = a->tiles[a->n_spans];
    for (uint64_t tile = w.at; tile < n_tiles; tile += w.n) {
        if (a->tile_changed[tile] == 0)
            continue;
        const struct ws_diff_tile t = ws_diff_tile_at(a, (uint32_t)tile, w.lane);
        const struct ws_diff_cut c = ws_diff_cut_of(&t);
        struct ws_diff_out out = ws_diff_place(a, (uint32_t)tile, a->spans[t.span].block, w.lane);
        ws_diff_pack_elements(&t, 0, c.head, &out, w.lane);
        if (t.width == 2)
            ws_diff_pack_words(&t, c, 2, &out, w.lane);
        else if (t.width == 4)
            ws_diff_pack_words(&t, c, 4, &out, w.lane);
        else
            ws_diff_pack_words(&t, c, 1, &out, w.lane);
        ws_diff_pack_elements(&t, c.head + c.words * (16 / t.width), t.n, &out, w.lane);
    }
}

#endif
