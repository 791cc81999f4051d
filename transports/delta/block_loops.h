/* The body of each version of the delta's loops: included by block_portable.c, block_avx2.c and
 * block_avx512.c, each compiled with its own flags, which define
 *   differing(a, b, width)      64 elements compared: bit i is set where element i differs
 *   compared(z, a, b, width)    the same, and z[i] becomes the change of each that differs
 *   longer, gaps, places, pack, unpack (block_packing_vector.h) */
#include "transports/delta/block_emit.h"
#include "transports/delta/block_impl.h"
#include <string.h>

#define AT_ONCE WS_DELTA_AT_ONCE
#define AHEAD   4096 /* bytes that are prefetched: a page ahead is enough to hide the memory's latency */
#define AHEAD_N 32   /* changes that are prefetched when they are applied */

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

/* The compiler moves none away from what is compared meanwhile. */
static inline void prefetch(const unsigned char *p, size_t n)
{
    __asm__ volatile("" ::: "memory");
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + AHEAD + i);
}

WS_DELTA_INLINE size_t find_of(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n,
                               unsigned width, uint32_t first)
{
    size_t found = 0, i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE, a += AT_ONCE * width, b += AT_ONCE * width) {
        prefetch(a, AT_ONCE * width);
        prefetch(b, AT_ONCE * width);
        found += spread(at + found, differing(a, b, width), first + (uint32_t)i);
    }
    for (; i < n; i++, a += width, b += width)
        if (memcmp(a, b, width) != 0)
            at[found++] = first + (uint32_t)i;
    return found;
}

static size_t find(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n, unsigned width,
                   uint32_t first)
{
    if (width == 1)
        return find_of(at, a, b, n, 1, first);
    return width == 2 ? find_of(at, a, b, n, 2, first) : find_of(at, a, b, n, 4, first);
}

WS_DELTA_INLINE size_t find_changes_of(uint32_t *at, uint32_t *changes, const unsigned char *a,
                                       const unsigned char *b, size_t n, unsigned width)
{
    unsigned char z[AT_ONCE * 4] __attribute__((aligned(64))) = {0};
    size_t found = 0, i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE, a += AT_ONCE * width, b += AT_ONCE * width) {
        prefetch(a, AT_ONCE * width);
        prefetch(b, AT_ONCE * width);
        found += ws_delta_emit(at + found, changes + found, compared(z, a, b, width), (uint32_t)i, z, width);
    }
    for (; i < n; i++, a += width, b += width) {
        if (memcmp(a, b, width) == 0)
            continue;
        at[found] = (uint32_t)i;
        changes[found++] = ws_delta_change(a, b, width);
    }
    return found;
}

static size_t find_changes(uint32_t *at, uint32_t *changes, const unsigned char *a, const unsigned char *b,
                           size_t n, unsigned width)
{
    if (width == 1)
        return find_changes_of(at, changes, a, b, n, 1);
    return width == 2 ? find_changes_of(at, changes, a, b, n, 2) : find_changes_of(at, changes, a, b, n, 4);
}

static inline unsigned length_of(uint32_t v)
{
    return v ? 32 - (unsigned)__builtin_clz(v) : 0;
}

/* In turns into two tables, as one number often has the length of the one before, whose count is not stored yet. */
static void lengths(uint32_t n_of_length[33], const uint32_t *v, size_t n, size_t step)
{
    uint32_t other[33] = {0};
    size_t i = 0;
    for (; i + step < n; i += 2 * step) {
        n_of_length[length_of(v[i])]++;
        other[length_of(v[i + step])]++;
    }
    if (i < n)
        n_of_length[length_of(v[i])]++;
    for (unsigned l = 0; l <= 32; l++)
        n_of_length[l] += other[l];
}

/* --- patches --- */

static inline size_t put_varint(unsigned char *p, uint32_t v)
{
    size_t n = 0;
    for (; v >= 128; v >>= 7)
        p[n++] = (unsigned char)(v | 128);
    p[n++] = (unsigned char)v;
    return n;
}

/* Returns behind the patch; NULL: there is no room. */
static inline unsigned char *put_patch(unsigned char *p, const unsigned char *end, uint32_t skip,
                                       uint32_t high)
{
    unsigned char both[10];
    if (__builtin_expect((skip | high) < 128 && end - p >= 2, 1)) {
        p[0] = (unsigned char)skip;
        p[1] = (unsigned char)high;
        return p + 2;
    }
    size_t n = put_varint(both, skip);
    n += put_varint(both + n, high);
    if ((size_t)(end - p) < n)
        return NULL;
    memcpy(p, both, n);
    return p + n;
}

static size_t patches(unsigned char *out, size_t room, const uint32_t *v, size_t n, unsigned bits)
{
    const unsigned char *end = out + room;
    unsigned char *p = out;
    size_t next = 0;
    for (size_t i = 0; bits < 32 && i < n && p; i += 64) {
        uint64_t mask = 0;
        if (n - i >= 64)
            mask = longer(v + i, bits);
        else
            for (size_t k = 0; k < n - i; k++)
                mask |= (uint64_t)(v[i + k] >> bits != 0) << k;
        for (; mask && p; mask &= mask - 1) {
            const size_t at = i + (size_t)__builtin_ctzll(mask);
            p = put_patch(p, end, (uint32_t)(at - next), v[at] >> bits);
            next = at + 1;
        }
    }
    return p ? (size_t)(p - out) : SIZE_MAX;
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
            const type new = (type)(ws_delta_load(p + (size_t)at[i] * (width), width) +                      \
                                    ((zigzag >> 1) ^ (0U - (zigzag & 1))));                                  \
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
        name, find, find_changes, gaps, places, lengths, pack, unpack, patches, apply                        \
    }
