/* The delta's loops for any processor. */
#include "transports/delta/block_emit.h"
#include "transports/delta/block_packing.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t word_at(const unsigned char *p, size_t i)
{
    uint64_t w;
    memcpy(&w, p + 8 * i, sizeof(w));
    return w;
}

/* 64 elements are 8 * width words; most of them are equal. z: NULL: changes are not asked. */
WS_DELTA_INLINE uint64_t compared(unsigned char *z, const unsigned char *a, const unsigned char *b,
                                  unsigned width)
{
    uint64_t mask = 0;
    for (size_t w = 0; w < 8UL * width; w++) {
        if (word_at(a, w) == word_at(b, w))
            continue;
        for (size_t i = w * 8 / width; i < (w + 1) * 8 / width; i++) {
            const uint32_t change = z ? ws_delta_change(a + i * width, b + i * width, width) : 0;
            mask |= (uint64_t)(memcmp(a + i * width, b + i * width, width) != 0) << i;
            if (z)
                memcpy(z + i * width, &change, width);
        }
    }
    return mask;
}

WS_DELTA_INLINE uint64_t differing(const unsigned char *a, const unsigned char *b, unsigned width)
{
    return compared(NULL, a, b, width);
}

static void gaps(uint32_t *at, size_t n)
{
    gaps_before(at, n);
}

static uint64_t places(uint32_t *v, size_t n)
{
    return places_from(v, n, 0);
}

static void pack(unsigned char *out, const uint32_t *v, size_t n, unsigned bits)
{
    pack_rest(out, v, n, bits);
}

static void unpack(uint32_t *out, const unsigned char *in, size_t n, unsigned bits)
{
    unpack_rest(out, in, n, bits);
}

static inline uint64_t longer(const uint32_t *v, unsigned bits)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < 64; i++)
        mask |= (uint64_t)(v[i] >> bits != 0) << i;
    return mask;
}

#include "transports/delta/block_loops.h"

const struct ws_delta_block_impl ws_delta_block_portable = WS_DELTA_BLOCK_IMPL("portable");
