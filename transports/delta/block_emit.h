/* Emission: the places and changes of the elements whose bits are set in a mask, as the lists that an encoder takes
 * (ws_delta_span_changes). */
#ifndef WS_TRANSPORTS_DELTA_BLOCK_EMIT_H
#define WS_TRANSPORTS_DELTA_BLOCK_EMIT_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WS_DELTA_AT_ONCE 64 /* elements of a mask */
#define WS_DELTA_INLINE  static inline __attribute__((always_inline))

/* Elements are unsigned integers of `width` bytes (a constant) at any address. */
WS_DELTA_INLINE uint32_t ws_delta_load(const unsigned char *p, unsigned width)
{
    uint32_t v = 0;
    if (width == 1)
        return *p;
    if (width == 2) {
        uint16_t half;
        memcpy(&half, p, sizeof(half));
        return half;
    }
    memcpy(&v, p, sizeof(v));
    return v;
}

/* Zigzag: small changes of either sign become small numbers. */
WS_DELTA_INLINE uint32_t ws_delta_change(const unsigned char *a, const unsigned char *b, unsigned width)
{
    const unsigned unused = 32 - 8 * width;
    const uint32_t d = ws_delta_load(b, width) - ws_delta_load(a, width);
    const uint32_t sign = 0U - ((d << unused) >> 31);
    return ((((d << 1) ^ sign) << unused) >> unused) - 1U;
}

/* Stores first + i, and element i of z, for each bit i that is set; returns how many. Four at a time whether there are four
 * or not, because a branch on each bit would be guessed wrong too often (Lemire's way of reading bit sets): both lists have
 * room for 4 more than there are. z: 64 elements. */
WS_DELTA_INLINE size_t ws_delta_emit(uint32_t *at, uint32_t *changes, uint64_t mask, uint32_t first,
                                     const unsigned char *z, unsigned width)
{
    const size_t n = (size_t)__builtin_popcountll(mask);
    size_t i = 0;
    do {
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++) {
            const uint32_t e = (uint32_t)__builtin_ctzll(mask | (uint64_t)1 << (WS_DELTA_AT_ONCE - 1));
            mask &= mask - 1;
            at[i + k] = first + e;
            changes[i + k] = ws_delta_load(z + (size_t)e * width, width);
        }
        i += 4;
    } while (__builtin_expect(i < n, 0));
    return n;
}

#endif
