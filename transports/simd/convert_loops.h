/* The body of a vector version of the conversions: included by convert_avx2.c and convert_avx512.c, each
 * compiled with its own flags, which define
 *   LANES                  elements of a vector
 *   halves_of(words)       a vector of f32 as f16, rounded to nearest even
 *   words_of(halves)       a vector of f16 as f32
 * Vectors are GCC's, so that the rest is written once. */
#include "transports/simd/convert_impl.h"
#include <string.h>

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t masks __attribute__((vector_size(4 * LANES))); /* of a comparison: -1 where it holds */
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

#define AHEAD    4096
#define INFINITE 0x7f800000U

static inline words choose(masks which, words yes, words no)
{
    return ((words)which & yes) | (~(words)which & no);
}

static inline halves narrow(words w)
{
    return __builtin_convertvector(w, halves);
}

/* Adds to *overflows, lane by lane, where a number of at least `first` became infinite. */
static inline halves bf16_of(words x, masks *overflows)
{
    const words size = x & 0x7fffffffU, rounded = (x + 0x7fffU + (x >> 16 & 1U)) >> 16;
    const words no_number = (x >> 16 & 0x8000U) | 0x7fc0U;
    *overflows -= (size >= 0x7f7f8000U) & (size < INFINITE);
    return narrow(choose(size > INFINITE, no_number, rounded));
}

static inline halves f16_of(words x, masks *overflows)
{
    const words size = x & 0x7fffffffU, no_number = (x & 0x80000000U) | 0x7fc00000U;
    *overflows -= (size >= 0x477ff000U) & (size < INFINITE);
    return halves_of(choose(size > INFINITE, no_number, x)); /* one NaN in, one NaN out: 0x7e00 */
}

static inline uint64_t sum(masks counts)
{
    uint64_t n = 0;
    for (int i = 0; i < LANES; i++)
        n += (uint32_t)counts[i];
    return n;
}

/* The last elements go through a vector that is filled up with zeroes, which never overflow. Lanes count up to
 * 2^32, and no copy has so many vectors. */
#define NARROW(name, convert)                                                                                \
    static uint64_t name(void *dst, const void *src, size_t n)                                               \
    {                                                                                                        \
        unsigned char *to = dst;                                                                             \
        const unsigned char *from = src;                                                                     \
        masks overflows = {0};                                                                               \
        words x;                                                                                             \
        halves y;                                                                                            \
        for (; n >= LANES; n -= LANES, from += sizeof(x), to += sizeof(y)) {                                 \
            __builtin_prefetch(from + AHEAD, 0, 2);                                                          \
            memcpy(&x, from, sizeof(x));                                                                     \
            y = convert(x, &overflows);                                                                      \
            memcpy(to, &y, sizeof(y));                                                                       \
        }                                                                                                    \
        if (n > 0) {                                                                                         \
            x = (words){0};                                                                                  \
            memcpy(&x, from, n * 4);                                                                         \
            y = convert(x, &overflows);                                                                      \
            memcpy(to, &y, n * 2);                                                                           \
        }                                                                                                    \
        return sum(overflows);                                                                               \
    }
NARROW(f32_to_bf16, bf16_of)
NARROW(f32_to_f16, f16_of)

static inline words words_of_bf16(halves x)
{
    return __builtin_convertvector(x, words) << 16;
}

#define WIDEN(name, convert)                                                                                 \
    static uint64_t name(void *dst, const void *src, size_t n)                                               \
    {                                                                                                        \
        unsigned char *to = dst;                                                                             \
        const unsigned char *from = src;                                                                     \
        halves x;                                                                                            \
        words y;                                                                                             \
        for (; n >= LANES; n -= LANES, from += sizeof(x), to += sizeof(y)) {                                 \
            __builtin_prefetch(from + AHEAD, 0, 2);                                                          \
            memcpy(&x, from, sizeof(x));                                                                     \
            y = convert(x);                                                                                  \
            memcpy(to, &y, sizeof(y));                                                                       \
        }                                                                                                    \
        if (n > 0) {                                                                                         \
            x = (halves){0};                                                                                 \
            memcpy(&x, from, n * 2);                                                                         \
            y = convert(x);                                                                                  \
            memcpy(to, &y, n * 4);                                                                           \
        }                                                                                                    \
        return 0;                                                                                            \
    }
WIDEN(bf16_to_f32, words_of_bf16)
WIDEN(f16_to_f32, words_of)
