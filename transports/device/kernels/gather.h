/* WS_KERNEL_GATHER: many pieces of any shape, strided or converted, to where they belong, by one launch.
 *
 * Every item is cut into units of about the same work, and warps process units in turn: one item of a gigabyte
 * and ten thousand of a kilobyte keep all warps equally busy. Where rows are long, a warp goes along them: its
 * lanes touch neighbouring elements, and bytes that are only moved go by the widest words that both sides'
 * addresses allow. Where rows are short, each lane finds the place of its own element.
 *
 * The item's place, values and order are those of transports/simd/box.h, the values those of
 * transports/simd/convert.h. transports/device/gather.h makes items. */
#ifndef WS_TRANSPORTS_DEVICE_KERNELS_GATHER_H
#define WS_TRANSPORTS_DEVICE_KERNELS_GATHER_H
#include "transports/base/limits.h"
#include "transports/device/kernels/kernel.h"
#include "transports/simd/convert.h"

#ifdef __CUDACC__
#define WS_BITS WS_DEVICE
#endif
#include "transports/simd/convert_bits.h"

#define WS_GATHER_LONG_ROW      64   /* elements: along such a row a warp goes together */
#define WS_GATHER_UNIT_BYTES    8192 /* of a unit whose rows are long and lie together on both sides */
#define WS_GATHER_UNIT_ELEMENTS 1024 /* of any other */

/* Elements [first, first + count) of a box in row-major order. Dimension 0 is the innermost. Strides are in
 * elements of their side, of any sign, 0 for what is repeated. Both addresses are of the box's element 0,
 * which need not be among those that are moved, and are multiples of their elements' bytes. */
struct ws_gather_item {
    uint64_t src, dst;
    uint32_t size[WS_MAX_DIMS]; /* under 2^31 */
    int64_t src_stride[WS_MAX_DIMS], dst_stride[WS_MAX_DIMS];
    uint64_t first, count; /* count: at least 1 */
    uint32_t unit;         /* elements of each of its units but the last, at most WS_GATHER_UNIT_BYTES */
    uint32_t overflows;    /* which of the counters; of no meaning where nothing can overflow */
    uint8_t n_dims;        /* 1 to WS_MAX_DIMS */
    uint8_t src_bytes, dst_bytes; /* of an element: 1, 2, 4 or 8 */
    uint8_t conversion;           /* enum ws_conversion */
};

/* All of it memory that the device reads; overflows is added to. */
struct ws_gather_args {
    const struct ws_gather_item *items;
    const uint32_t *units; /* n + 1: the units before each item, and at last of all of them */
    uint64_t *overflows;   /* finite elements that became infinite; NULL: no item converts */
    uint32_t n;            /* items, at least 1 */
};

/* What is done with an element: WS_SAME_TYPE by its width, or the conversion. */
enum ws_gather_move {
    WS_MOVE_1 = WS_CONVERSION_COUNT,
    WS_MOVE_2,
    WS_MOVE_4,
    WS_MOVE_8,
};

WS_DEVICE int ws_gather_move_for(uint32_t bytes)
{
    return bytes == 1 ? WS_MOVE_1 : bytes == 2 ? WS_MOVE_2 : bytes == 4 ? WS_MOVE_4 : WS_MOVE_8;
}

WS_DEVICE uint32_t ws_gather_plus_1_from(int move)
{
    return (uint32_t)(move - WS_F32_PLUS_1_TO_F32) / WS_BITS_TYPES;
}

WS_DEVICE uint32_t ws_gather_plus_1_to(int move)
{
    return (uint32_t)(move - WS_F32_PLUS_1_TO_F32) % WS_BITS_TYPES;
}

WS_DEVICE uint32_t ws_gather_src_bytes(int move)
{
    if (move >= WS_MOVE_1)
        return 1U << (move - WS_MOVE_1);
    if (move >= WS_F32_PLUS_1_TO_F32)
        return ws_gather_plus_1_from(move) == WS_BITS_F32 ? 4 : 2;
    return move == WS_F32_TO_BF16 || move == WS_F32_TO_F16 ? 4 : 2;
}

WS_DEVICE uint32_t ws_gather_dst_bytes(int move)
{
    if (move >= WS_MOVE_1)
        return 1U << (move - WS_MOVE_1);
    if (move >= WS_F32_PLUS_1_TO_F32)
        return ws_gather_plus_1_to(move) == WS_BITS_F32 ? 4 : 2;
    return move == WS_BF16_TO_F32 || move == WS_F16_TO_F32 ? 4 : 2;
}

WS_DEVICE uint64_t ws_gather_load(uint64_t at, uint32_t bytes)
{
    switch (bytes) {
    case 1:
        return *(const uint8_t *)at;
    case 2:
        return *(const uint16_t *)at;
    case 4:
        return *(const uint32_t *)at;
    default:
        return *(const uint64_t *)at;
    }
}

WS_DEVICE void ws_gather_store(uint64_t at, uint32_t bytes, uint64_t v)
{
    switch (bytes) {
    case 1:
        *(uint8_t *)at = (uint8_t)v;
        break;
    case 2:
        *(uint16_t *)at = (uint16_t)v;
        break;
    case 4:
        *(uint32_t *)at = (uint32_t)v;
        break;
    default:
        *(uint64_t *)at = v;
    }
}

WS_DEVICE uint64_t ws_gather_convert(int move, uint64_t v, uint32_t *overflows)
{
    uint32_t x = (uint32_t)v;
    uint16_t y;
    switch (move) {
    case WS_F32_TO_BF16:
        y = ws_bf16_from_f32(x);
        *overflows += ws_bf16_overflows(x, y);
        return y;
    case WS_BF16_TO_F16:
    case WS_F32_TO_F16:
        x = move == WS_F32_TO_F16 ? x : ws_f32_from_bf16((uint16_t)v);
        y = ws_f16_from_f32(x);
        *overflows += ws_f16_overflows(x, y);
        return y;
    case WS_BF16_TO_F32:
        return ws_f32_from_bf16((uint16_t)v);
    case WS_F16_TO_F32:
        return ws_f32_from_f16((uint16_t)v);
    case WS_F16_TO_BF16: /* has the greater range */
        return ws_bf16_from_f32(ws_f32_from_f16((uint16_t)v));
    default:
        return move < WS_F32_PLUS_1_TO_F32 || move >= WS_MOVE_1
                   ? v
                   : ws_bits_plus_one(ws_gather_plus_1_from(move), ws_gather_plus_1_to(move), x, overflows);
    }
}

#define WS_GATHER_BATCH 8 /* loads of a thread that are under way at once, at most */

WS_DEVICE uint32_t ws_gather_row_by(int move, uint64_t dst, int64_t dst_step, uint64_t src, int64_t src_step,
                                    uint32_t n, uint32_t lane)
{
    const uint32_t src_bytes = ws_gather_src_bytes(move), dst_bytes = ws_gather_dst_bytes(move);
    const uint32_t batch = src_bytes < 4 ? WS_GATHER_BATCH : WS_GATHER_BATCH / 2;
    uint32_t overflows = 0;
    for (uint32_t k = lane; k < n; k += batch * WS_WARP) {
        uint64_t v[WS_GATHER_BATCH];
        WS_UNROLL
        for (uint32_t b = 0; b < batch; b++)
            v[b] = k + b * WS_WARP < n
                       ? ws_gather_load(src + (uint64_t)((int64_t)(k + b * WS_WARP) * src_step), src_bytes)
                       : 0;
        WS_UNROLL
        for (uint32_t b = 0; b < batch; b++)
            if (k + b * WS_WARP < n)
                ws_gather_store(dst + (uint64_t)((int64_t)(k + b * WS_WARP) * dst_step), dst_bytes,
                                ws_gather_convert(move, v[b], &overflows));
    }
    return overflows;
}

/* All kinds of PLUS_1, which are rare and small, by one loop. */
WS_DEVICE uint32_t ws_gather_row_plus_1(int move, uint64_t dst, int64_t dst_step, uint64_t src,
                                        int64_t src_step, uint32_t n, uint32_t lane)
{
    const uint32_t src_bytes = ws_gather_src_bytes(move), dst_bytes = ws_gather_dst_bytes(move);
    uint32_t overflows = 0;
    for (uint32_t k = lane; k < n; k += WS_WARP)
        ws_gather_store(dst + (uint64_t)((int64_t)k * dst_step), dst_bytes,
                        ws_gather_convert(move,
                                          ws_gather_load(src + (uint64_t)((int64_t)k * src_step), src_bytes),
                                          &overflows));
    return overflows;
}

/* n elements in a row; steps in bytes. Returns what this lane's elements overflowed. Each kind of element has
 * a loop of its own. */
WS_DEVICE_CALL uint32_t ws_gather_row(int move, uint64_t dst, int64_t dst_step, uint64_t src,
                                      int64_t src_step, uint32_t n, uint32_t lane)
{
    switch (move) {
#define WS_GATHER_KIND(kind)                                                                                 \
    case kind:                                                                                               \
        return ws_gather_row_by(kind, dst, dst_step, src, src_step, n, lane)
        WS_GATHER_KIND(WS_F32_TO_BF16);
        WS_GATHER_KIND(WS_F32_TO_F16);
        WS_GATHER_KIND(WS_BF16_TO_F32);
        WS_GATHER_KIND(WS_F16_TO_F32);
        WS_GATHER_KIND(WS_BF16_TO_F16);
        WS_GATHER_KIND(WS_F16_TO_BF16);
        WS_GATHER_KIND(WS_MOVE_1);
        WS_GATHER_KIND(WS_MOVE_2);
        WS_GATHER_KIND(WS_MOVE_4);
#undef WS_GATHER_KIND
    default:
        if (move < WS_MOVE_1)
            return ws_gather_row_plus_1(move, dst, dst_step, src, src_step, n, lane);
        return ws_gather_row_by(WS_MOVE_8, dst, dst_step, src, src_step, n, lane);
    }
}

/* n words of 16 bytes. */
WS_DEVICE void ws_gather_words(uint64_t dst, uint64_t src, uint32_t n, uint32_t lane)
{
    struct ws_word16 *to = (struct ws_word16 *)dst;
    const struct ws_word16 *from = (const struct ws_word16 *)src;
    uint32_t k = lane;
    for (; k + 3 * WS_WARP < n; k += 4 * WS_WARP) {
        const struct ws_word16 a = from[k], b = from[k + WS_WARP], c = from[k + 2 * WS_WARP],
                               d = from[k + 3 * WS_WARP];
        to[k] = a;
        to[k + WS_WARP] = b;
        to[k + 2 * WS_WARP] = c;
        to[k + 3 * WS_WARP] = d;
    }
    for (; k < n; k += WS_WARP)
        to[k] = from[k];
}

/* Bytes that follow each other on both sides: by the widest words that lie alike in both, after elements up
 * to the first whole one and before those behind the last. */
WS_DEVICE void ws_gather_bytes(int move, uint64_t dst, uint64_t src, uint32_t n, uint32_t lane)
{
    const uint32_t bytes = ws_gather_src_bytes(move);
    const uint64_t apart = (dst ^ src) | 16, word = apart & (0 - apart);
    uint32_t head = (uint32_t)((0 - dst) & (word - 1)) / bytes;
    head = head < n ? head : n;
    ws_gather_row(move, dst, bytes, src, bytes, head, lane);
    dst += (uint64_t)head * bytes;
    src += (uint64_t)head * bytes;
    n -= head;
    const uint32_t words = (uint32_t)((uint64_t)n * bytes / word);
    if (word == 16)
        ws_gather_words(dst, src, words, lane);
    else
        ws_gather_row(ws_gather_move_for((uint32_t)word), dst, (int64_t)word, src, (int64_t)word, words,
                      lane);
    const uint64_t done = words * word;
    ws_gather_row(move, dst + done, bytes, src + done, bytes, n - (uint32_t)(done / bytes), lane);
}

/* An element's index in each dimension. */
struct ws_gather_place {
    uint32_t x[WS_MAX_DIMS];
};

WS_DEVICE void ws_gather_seek(struct ws_gather_place *p, const struct ws_gather_item *i, uint64_t element)
{
    WS_NO_UNROLL
    for (uint32_t d = 0; d < i->n_dims; d++) {
        p->x[d] = (uint32_t)(element % i->size[d]);
        element /= i->size[d];
    }
}

/* The addresses of n elements (a constant), each so many ahead of p's in the order of the box; ahead is lost.
 */
WS_DEVICE void ws_gather_at(const struct ws_gather_item *i, const struct ws_gather_place *p, uint32_t *ahead,
                            uint32_t n, int move, uint64_t *src, uint64_t *dst)
{
    const int64_t src_bytes = ws_gather_src_bytes(move), dst_bytes = ws_gather_dst_bytes(move);
    WS_UNROLL
    for (uint32_t b = 0; b < n; b++) {
        src[b] = i->src;
        dst[b] = i->dst;
    }
    WS_NO_UNROLL
    for (uint32_t d = 0; d < i->n_dims; d++) {
        const uint32_t size = i->size[d], at = p->x[d];
        const int64_t src_step = i->src_stride[d] * src_bytes, dst_step = i->dst_stride[d] * dst_bytes;
        WS_UNROLL
        for (uint32_t b = 0; b < n; b++) {
            uint32_t x = at + ahead[b];
            if (size > ahead[b]) /* at most once around */
                ahead[b] = x >= size;
            else
                ahead[b] = x / size;
            x -= ahead[b] * size;
            src[b] += (uint64_t)((int64_t)x * src_step);
            dst[b] += (uint64_t)((int64_t)x * dst_step);
        }
    }
}

WS_DEVICE uint32_t ws_gather_long_rows(int move, const struct ws_gather_item *i, struct ws_gather_place *p,
                                       uint32_t n, uint32_t lane)
{
    const bool plain = move >= WS_MOVE_1 && i->src_stride[0] == 1 && i->dst_stride[0] == 1;
    uint32_t overflows = 0;
    for (uint32_t done = 0; done < n;) {
        const uint32_t left = i->size[0] - p->x[0], row = left < n - done ? left : n - done;
        uint32_t ahead = 0;
        uint64_t src, dst;
        ws_gather_at(i, p, &ahead, 1, move, &src, &dst);
        if (plain)
            ws_gather_bytes(move, dst, src, row, lane);
        else
            overflows += ws_gather_row(move, dst, i->dst_stride[0] * ws_gather_dst_bytes(move), src,
                                       i->src_stride[0] * ws_gather_src_bytes(move), row, lane);
        done += row;
        p->x[0] = 0;
        WS_NO_UNROLL
        for (uint32_t d = 1; d < i->n_dims && ++p->x[d] == i->size[d]; d++)
            p->x[d] = 0;
    }
    return overflows;
}

#define WS_GATHER_PLACES 4 /* elements of a thread that are found at once */

WS_DEVICE uint32_t ws_gather_short_rows(int move, const struct ws_gather_item *i,
                                        const struct ws_gather_place *p, uint32_t n, uint32_t lane)
{
    const uint32_t src_bytes = ws_gather_src_bytes(move), dst_bytes = ws_gather_dst_bytes(move);
    uint32_t overflows = 0;
    for (uint32_t k = lane; k < n; k += WS_GATHER_PLACES * WS_WARP) {
        uint32_t ahead[WS_GATHER_PLACES];
        uint64_t v[WS_GATHER_PLACES], src[WS_GATHER_PLACES], dst[WS_GATHER_PLACES];
        WS_UNROLL
        for (uint32_t b = 0; b < WS_GATHER_PLACES; b++)
            ahead[b] = k + b * WS_WARP < n ? k + b * WS_WARP : k;
        ws_gather_at(i, p, ahead, WS_GATHER_PLACES, move, src, dst);
        WS_UNROLL
        for (uint32_t b = 0; b < WS_GATHER_PLACES; b++)
            v[b] = ws_gather_load(src[b], src_bytes);
        WS_UNROLL
        for (uint32_t b = 0; b < WS_GATHER_PLACES; b++)
            if (k + b * WS_WARP < n)
                ws_gather_store(dst[b], dst_bytes, ws_gather_convert(move, v[b], &overflows));
    }
    return overflows;
}

WS_DEVICE uint32_t ws_gather_unit(const struct ws_gather_item *i, uint64_t first, uint32_t n, uint32_t lane)
{
    const int move = i->conversion == WS_SAME_TYPE ? ws_gather_move_for(i->src_bytes) : i->conversion;
    struct ws_gather_place p;
    ws_gather_seek(&p, i, first);
    return i->size[0] >= WS_GATHER_LONG_ROW ? ws_gather_long_rows(move, i, &p, n, lane)
                                            : ws_gather_short_rows(move, i, &p, n, lane);
}

WS_DEVICE void ws_gather_body(const struct ws_gather_args *a, struct ws_warp w)
{
    const uint32_t units = a->units[a->n];
    for (uint64_t unit = w.at; unit < units; unit += w.n) {
        const uint32_t at = ws_warp_find(a->units, a->n, (uint32_t)unit, w.lane);
        const struct ws_gather_item *i = &a->items[at];
        const uint64_t skip = (unit - a->units[at]) * i->unit, left = i->count - skip;
        const uint32_t n = left < i->unit ? (uint32_t)left : i->unit;
        const uint32_t overflows = ws_warp_sum(ws_gather_unit(i, i->first + skip, n, w.lane));
        if (overflows > 0 && w.lane == 0)
            ws_add_u64(&a->overflows[i->overflows], overflows);
    }
}

#endif
