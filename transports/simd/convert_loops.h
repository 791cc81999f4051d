/* The body of a vector version of the conversions: included by convert_avx2.c and convert_avx512.c, each
 * compiled with its own flags. */
#include "transports/simd/convert_impl.h"
#include "transports/simd/convert_vectors.h"
#include <string.h>

#define AHEAD 4096

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
