/* The delta's loops for any processor. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t word_at(const unsigned char *p, size_t i)
{
    uint64_t w;
    memcpy(&w, p + 8 * i, sizeof(w));
    return w;
}

/* 64 elements are 8 * width words; most of them are equal. */
static inline uint64_t differing(const unsigned char *a, const unsigned char *b, unsigned width)
{
    uint64_t mask = 0;
    for (size_t w = 0; w < 8UL * width; w++) {
        if (word_at(a, w) == word_at(b, w))
            continue;
        for (size_t i = w * 8 / width; i < (w + 1) * 8 / width; i++)
            mask |= (uint64_t)(memcmp(a + i * width, b + i * width, width) != 0) << i;
    }
    return mask;
}

static inline uint64_t differing_1(const unsigned char *a, const unsigned char *b)
{
    return differing(a, b, 1);
}

static inline uint64_t differing_2(const unsigned char *a, const unsigned char *b)
{
    return differing(a, b, 2);
}

static inline uint64_t differing_4(const unsigned char *a, const unsigned char *b)
{
    return differing(a, b, 4);
}

#include "transports/delta/block_loops.h"

const struct ws_delta_block_impl ws_delta_block_portable = WS_DELTA_BLOCK_IMPL("portable");
