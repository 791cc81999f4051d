/* The body of each version of the delta's loops: included by block_portable.c, block_avx2.c and
 * block_avx512.c, each compiled with its own flags, which define
 *   differing_1, _2, _4(a, b)   64 elements compared: bit i is set where element i differs */
#include "transports/delta/block_impl.h"
#include <string.h>

#define AT_ONCE 64
#define AHEAD   4096 /* bytes that are prefetched: a page ahead is enough to hide the memory's latency */
#define AHEAD_N 32   /* changes that are prefetched when they are applied */

static inline uint32_t load(const unsigned char *p, unsigned width)
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

/* Stores first + i for each bit i that is set, four at a time whether there are four or not, because a branch
 * on each bit would be guessed wrong too often (Lemire's way of reading bit sets). */
static inline size_t spread(uint32_t *at, uint64_t mask, uint32_t first)
{
    const size_t n = (size_t)__builtin_popcountll(mask);
    for (size_t i = 0; i < n; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            at[i + k] = first + (uint32_t)__builtin_ctzll(mask | (uint64_t)1 << 63);
            mask &= mask - 1;
        }
    }
    return n;
}

static inline void prefetch(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + AHEAD + i);
}

#define FIND(width)                                                                                          \
    static size_t find_##width(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n,       \
                               uint32_t first)                                                               \
    {                                                                                                        \
        size_t found = 0, i = 0;                                                                             \
        for (; i + AT_ONCE <= n; i += AT_ONCE) {                                                             \
            prefetch(a + i * (width), AT_ONCE * (width));                                                    \
            prefetch(b + i * (width), AT_ONCE * (width));                                                    \
            found += spread(at + found, differing_##width(a + i * (width), b + i * (width)),                 \
                            first + (uint32_t)i);                                                            \
        }                                                                                                    \
        for (; i < n; i++)                                                                                   \
            if (memcmp(a + i * (width), b + i * (width), width) != 0)                                        \
                at[found++] = first + (uint32_t)i;                                                           \
        return found;                                                                                        \
    }

FIND(1)
FIND(2)
FIND(4)

static size_t find(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n, unsigned width,
                   uint32_t first)
{
    if (width == 1)
        return find_1(at, a, b, n, first);
    return width == 2 ? find_2(at, a, b, n, first) : find_4(at, a, b, n, first);
}

/* Zigzag: small changes of either sign become small numbers. */
#define CHANGES(width, type)                                                                                 \
    static void changes_##width(uint32_t *out, const unsigned char *a, const unsigned char *b,               \
                                const uint32_t *at, size_t n)                                                \
    {                                                                                                        \
        const unsigned shift = 32 - 8 * (width);                                                             \
        for (size_t i = 0; i < n; i++) {                                                                     \
            uint32_t d =                                                                                     \
                load(b + (size_t)at[i] * (width), width) - load(a + (size_t)at[i] * (width), width);         \
            uint32_t sign = 0U - ((d << shift) >> 31);                                                       \
            out[i] = (type)((d << 1) ^ sign) - 1U;                                                           \
        }                                                                                                    \
    }

CHANGES(1, uint8_t)
CHANGES(2, uint16_t)
CHANGES(4, uint32_t)

static void changes(uint32_t *out, const unsigned char *a, const unsigned char *b, const uint32_t *at,
                    size_t n, unsigned width)
{
    if (width == 1)
        changes_1(out, a, b, at, n);
    else if (width == 2)
        changes_2(out, a, b, at, n);
    else
        changes_4(out, a, b, at, n);
}

static void gaps(uint32_t *at, size_t n)
{
    for (size_t i = n; i-- > 1;)
        at[i] -= at[i - 1] + 1;
}

static uint64_t places(uint32_t *v, size_t n)
{
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        end += v[i];
        v[i] = (uint32_t)end++;
    }
    return end;
}

static void lengths(uint32_t n_of_length[33], const uint32_t *v, size_t n, size_t step)
{
    for (size_t i = 0; i < n; i += step)
        n_of_length[v[i] ? 32 - __builtin_clz(v[i]) : 0]++;
}

static void pack(unsigned char *out, const uint32_t *v, size_t n, unsigned bits)
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

static void unpack(uint32_t *out, const unsigned char *in, size_t n, unsigned bits)
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

/* Unsigned arithmetic: the sum wraps as the difference did. */
#define APPLY(width, type)                                                                                   \
    static size_t apply_##width(unsigned char *p, const uint32_t *at, const uint32_t *v, size_t n,           \
                                uint32_t end)                                                                \
    {                                                                                                        \
        size_t i = 0;                                                                                        \
        for (; i < n && at[i] < end; i++) {                                                                  \
            __builtin_prefetch(p + (size_t)at[i + AHEAD_N] * (width), 1);                                    \
            const uint32_t zigzag = v[i] + 1;                                                                \
            const type new =                                                                                 \
                (type)(load(p + (size_t)at[i] * (width), width) + ((zigzag >> 1) ^ (0U - (zigzag & 1))));    \
            memcpy(p + (size_t)at[i] * (width), &new, width);                                                \
        }                                                                                                    \
        return i;                                                                                            \
    }

APPLY(1, uint8_t)
APPLY(2, uint16_t)
APPLY(4, uint32_t)

static size_t apply(unsigned char *p, const uint32_t *at, const uint32_t *v, size_t n, unsigned width,
                    uint32_t end)
{
    if (width == 1)
        return apply_1(p, at, v, n, end);
    return width == 2 ? apply_2(p, at, v, n, end) : apply_4(p, at, v, n, end);
}

#define WS_DELTA_BLOCK_IMPL(name)                                                                            \
    {                                                                                                        \
        name, find, changes, gaps, places, lengths, pack, unpack, apply                                      \
    }
