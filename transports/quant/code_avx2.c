/* The quantising loops with AVX2 and F16C: built with their compiler flags, called only where the processor has them.
 */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <immintrin.h>

#define LANES 8
#include "transports/quant/code_vectors.h"

static inline bytes bytes_of(words w)
{
    const __m128i low = _mm256_castsi256_si128((__m256i)w), high = _mm256_extracti128_si256((__m256i)w, 1);
    const __m128i packed = _mm_packus_epi32(low, high);
    return (bytes)_mm_cvtsi128_si64(_mm_packus_epi16(packed, packed));
}

static inline pair_bytes pair_bytes_of(pair x)
{
    const __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
    return (pair_bytes)_mm_packus_epi16(low, high);
}

/* The smallest of eight is one instruction. */
static inline uint32_t largest_half(pair x)
{
    const __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
    const __m128i most = _mm_max_epu16(low, high);
    return 0xffffU ^
           (uint32_t)(uint16_t)_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1))));
}

#define words_of(halves) ((words)_mm256_cvtph_ps((__m128i)(halves)))
#define halves_of(words) ((halves)_mm256_cvtps_ph((__m256)(words), _MM_FROUND_TO_NEAREST_INT))
#define larger(a, b)     ((words)_mm256_max_epu32((__m256i)(a), (__m256i)(b)))
#define smaller(a, b)    ((words)_mm256_min_epu32((__m256i)(a), (__m256i)(b)))
#define within(x, least, most)                                                                               \
    ((floats)_mm256_max_ps(_mm256_min_ps((__m256)(x), (__m256)(most)), (__m256)(least)))
#define larger_halves(a, b) ((pair)_mm256_max_epu16((__m256i)(a), (__m256i)(b)))
#define corrected(x, q, by, inverse)                                                                         \
    ((floats)_mm256_fmadd_ps(_mm256_fnmadd_ps((__m256)(q), (__m256)(by), (__m256)(x)), (__m256)(inverse),    \
                             (__m256)(q)))
#include "transports/quant/code_loops.h"

const struct ws_quant_code ws_quant_avx2 = WS_QUANT_CODE("avx2");
#endif
