#include "transports/delta/ulp_distance.h"
#include "transports/delta/block.h"
#include "transports/delta/block_impl.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (1UL << 20) /* compared by one thread at a time; a multiple of every element's size */

/* A piece of a pair. */
struct piece {
    size_t pair;
    uint64_t begin, bytes;
    struct ws_ulp_distance out;
};

struct work {
    struct ws_ulp_pair *pairs;
    struct piece *pieces;
    atomic_bool no_memory;
};

static bool is_float(enum ws_dtype t)
{
    switch (t) {
    case WS_F8_E5M2:
    case WS_F8_E4M3:
    case WS_F8_E4M3FNUZ:
    case WS_F8_E5M2FNUZ:
    case WS_F16:
    case WS_BF16:
    case WS_F32:
    case WS_F64:
        return true;
    default:
        return false;
    }
}

static bool is_signed(enum ws_dtype t)
{
    return t == WS_I8 || t == WS_I16 || t == WS_I32 || t == WS_I64;
}

/* The parts of a complex number are two of 4 bytes. */
static unsigned bytes_of(enum ws_dtype t)
{
    unsigned bits = ws_dtype_bits(t);
    return t == WS_C64 ? 4 : bits < 8 ? 1 : bits / 8;
}

/* The element's place on the line of all numbers of its type. */
static int64_t place_of(enum ws_dtype t, const unsigned char *p, unsigned bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    if (is_float(t) || t == WS_C64) {
        const uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
        if ((t == WS_F8_E4M3FNUZ || t == WS_F8_E5M2FNUZ) && v == sign)
            return (int64_t)v; /* the one NaN of these has the bits that elsewhere are -0 */
        return v & sign ? -(int64_t)(v & ~sign) : (int64_t)v;
    }
    return is_signed(t) ? (int64_t)(v << (64 - 8 * bytes)) >> (64 - 8 * bytes) : (int64_t)v;
}

static void compare(enum ws_dtype t, const unsigned char *a, const unsigned char *b, uint64_t bytes,
                    uint32_t *at, struct ws_ulp_distance *out)
{
    const unsigned size = bytes_of(t), width = size > 4 ? 4 : size;
    size_t n = ws_delta_block_find(at, a, b, bytes / width, width);
    uint64_t last = UINT64_MAX;
    out->elements = bytes / size;
    for (size_t i = 0; i < n; i++) {
        uint64_t element = (uint64_t)at[i] * width / size;
        if (element == last)
            continue; /* the other half of a wide one */
        last = element;
        uint64_t x = (uint64_t)place_of(t, a + element * size, size),
                 y = (uint64_t)place_of(t, b + element * size, size);
        bool up = t == WS_U64 ? x < y : (int64_t)x < (int64_t)y;
        uint64_t far = up ? y - x : x - y;
        out->changed++;
        out->largest = far > out->largest ? far : out->largest;
    }
}

static void compare_piece(void *arg, size_t i)
{
    struct work *w = arg;
    struct piece *p = &w->pieces[i];
    const struct ws_ulp_pair *pair = &w->pairs[p->pair];
    uint32_t *at =
        malloc((PIECE_BYTES + WS_DELTA_SLACK) * sizeof(*at)); /* touched as far as there are changes */
    if (!at) {
        atomic_store(&w->no_memory, true);
        return;
    }
    compare(pair->dtype, pair->a + p->begin, pair->b + p->begin, p->bytes, at, &p->out);
    free(at);
}

int ws_ulp_distances(struct ws_ulp_pair *pairs, size_t n, struct ws_workers *workers)
{
    struct work w = {.pairs = pairs};
    size_t n_pieces = 0;
    for (size_t i = 0; i < n; i++)
        n_pieces += (pairs[i].bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    w.pieces = calloc(n_pieces ? n_pieces : 1, sizeof(*w.pieces));
    if (!w.pieces)
        return -ENOMEM;
    struct piece *p = w.pieces;
    for (size_t i = 0; i < n; i++)
        for (uint64_t at = 0; at < pairs[i].bytes; at += PIECE_BYTES, p++)
            *p = (struct piece){.pair = i,
                                .begin = at,
                                .bytes =
                                    pairs[i].bytes - at < PIECE_BYTES ? pairs[i].bytes - at : PIECE_BYTES};
    ws_workers_run(workers, compare_piece, &w, n_pieces);
    for (size_t i = 0; i < n; i++)
        pairs[i].out = (struct ws_ulp_distance){0};
    for (p = w.pieces; p < w.pieces + n_pieces; p++) {
        struct ws_ulp_distance *out = &pairs[p->pair].out;
        out->elements += p->out.elements;
        out->changed += p->out.changed;
        out->largest = p->out.largest > out->largest ? p->out.largest : out->largest;
    }
    free(w.pieces);
    return atomic_load(&w.no_memory) ? -ENOMEM : 0;
}
