/* Copies for any processor. */
#define XXH_INLINE_ALL
#include "transports/simd/copy_impl.h"
#include "transports/simd/copy_sums.h"
#include <string.h>
#include <xxhash.h>

#define PIECE_BYTES (16UL << 10) /* hashed, then copied while it is in the first-level cache */

static void copy(void *dst, const void *src, size_t n)
{
    if (n > 0)
        memcpy(dst, src, n);
}

static void order(void) {}

static void copy_update(void *state, void *dst, const void *src, size_t n)
{
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        (void)XXH3_64bits_update(state, (const unsigned char *)src + at, piece);
        memcpy((unsigned char *)dst + at, (const unsigned char *)src + at, piece);
    }
}

static void update(void *state, const void *p, size_t n)
{
    (void)XXH3_64bits_update(state, p, n);
}

static uint64_t hash(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

static void copy_sums(void *state, uint64_t *out, void *dst, const void *src, size_t n)
{
    for (size_t at = 0, piece; at < n; at += piece) {
        const unsigned char *s = (const unsigned char *)src + at * WS_SUM_BYTES;
        piece = n - at < PIECE_BYTES / WS_SUM_BYTES ? n - at : PIECE_BYTES / WS_SUM_BYTES;
        sums(out + at * WS_SUM_WORDS, s, piece);
        copy_update(state, (unsigned char *)dst + at * WS_SUM_BYTES, s, piece * WS_SUM_BYTES);
    }
}

static size_t convert_update(void *state, enum ws_conversion c, void *dst, const void *src, size_t n,
                             uint64_t *overflows)
{
    (void)state;
    (void)c;
    (void)dst;
    (void)src;
    (void)n;
    (void)overflows;
    return 0;
}

const struct ws_copy_code ws_copy_portable = {"portable", copy, hash, update,    copy_update,
                                              order,      sums, join, copy_sums, convert_update};
