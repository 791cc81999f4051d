/* Conversions of a vector of elements: included by code that is compiled with AVX2's or AVX-512's flags. Vectors are GCC's,
 * so that most is written once. */
#ifndef WS_TRANSPORTS_SIMD_CONVERT_VECTORS_H
#define WS_TRANSPORTS_SIMD_CONVERT_VECTORS_H
#include <immintrin.h>
#include <stdint.h>

#ifdef __AVX512F__
#define LANES            16 /* elements of a vector */
#define halves_of(words) ((halves)_mm512_cvtps_ph((__m512)(words), _MM_FROUND_TO_NEAREST_INT))
#define words_of(halves) ((words)_mm512_cvtph_ps((__m256i)(halves)))
#else
#define LANES            8
#define halves_of(words) ((halves)_mm256_cvtps_ph((__m256)(words), _MM_FROUND_TO_NEAREST_INT))
#define words_of(halves) ((words)_mm256_cvtph_ps((__m128i)(halves)))
#endif

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t masks __attribute__((vector_size(4 * LANES))); /* of a comparison: -1 where it holds */
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

#define INFINITE 0x7f800000

static inline __attribute__((always_inline)) words choose(masks which, words yes, words no)
{
    return ((words)which & yes) | (~(words)which & no);
}

static inline __attribute__((always_inline)) halves narrow(words w)
{
    return __builtin_convertvector(w, halves);
}

/* Adds to *overflows, lane by lane, where a number of at least `first` became infinite. */
static inline __attribute__((always_inline)) words bf16_bits_of(words x, masks *overflows)
{
    const masks size = (masks)(x & 0x7fffffffU);
    const words rounded = (x + 0x7fffU + (x >> 16 & 1U)) >> 16;
    const words no_number = (x >> 16 & 0x8000U) | 0x7fc0U;
    *overflows -= (size > 0x7f7f7fff) & (size < INFINITE);
    return choose(size > INFINITE, no_number, rounded);
}

static inline __attribute__((always_inline)) halves bf16_of(words x, masks *overflows)
{
    return narrow(bf16_bits_of(x, overflows));
}

static inline __attribute__((always_inline)) halves f16_of(words x, masks *overflows)
{
    const masks size = (masks)(x & 0x7fffffffU);
    const words no_number = (x & 0x80000000U) | 0x7fc00000U;
    *overflows -= (size > 0x477fefff) & (size < INFINITE);
    return halves_of(choose(size > INFINITE, no_number, x)); /* one NaN in, one NaN out: 0x7e00 */
}

static inline __attribute__((always_inline)) words words_of_bf16(halves x)
{
    return __builtin_convertvector(x, words) << 16;
}

static inline __attribute__((always_inline)) uint64_t sum(masks counts)
{
    uint64_t n = 0;
    for (int i = 0; i < LANES; i++)
        n += (uint32_t)counts[i];
    return n;
}

#endif
