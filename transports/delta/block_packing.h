/* Numbers packed into bits, for any processor, and what the vectors' versions (block_packing_vector.h) leave over. */
#ifndef WS_TRANSPORTS_DELTA_BLOCK_PACKING_H
#define WS_TRANSPORTS_DELTA_BLOCK_PACKING_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* From the last on, as each needs the one before it. */
static inline void gaps_before(uint32_t *at, size_t n)
{
    for (size_t i = n; i-- > 1;)
        at[i] -= at[i - 1] + 1;
}

/* end: the last place so far + 1. */
static inline uint64_t places_from(uint32_t *v, size_t n, uint64_t end)
{
    for (size_t i = 0; i < n; i++) {
        end += v[i];
        v[i] = (uint32_t)end++;
    }
    return end;
}

static inline void pack_rest(unsigned char *out, const uint32_t *v, size_t n, unsigned bits)
{
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    uint64_t held = 0;
    unsigned n_held = 0;
    if (bits == 8) {
        for (size_t i = 0; i < n; i++)
            out[i] = (unsigned char)v[i];
        return;
    }
    for (size_t i = 0; i < n; i++) {
        held |= (v[i] & mask) << n_held;
        n_held += bits;
        if (n_held >= 32) {
            const uint32_t word = (uint32_t)held;
            memcpy(out, &word, sizeof(word));
            out += sizeof(word);
            held >>= 32;
            n_held -= 32;
        }
    }
    memcpy(out, &held, (n_held + 7) / 8);
}

static inline void unpack_rest(uint32_t *out, const unsigned char *in, size_t n, unsigned bits)
{
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    if (bits == 8) {
        for (size_t i = 0; i < n; i++)
            out[i] = in[i];
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t word, bit = (uint64_t)i * bits;
        memcpy(&word, in + bit / 8, sizeof(word));
        out[i] = (uint32_t)(word >> bit % 8 & mask);
    }
}

#endif
