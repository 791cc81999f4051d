/* The quantising loops with AVX-512: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <immintrin.h>

#define LANES 16
#include "transports/quant/code_vectors.h"

/* The smallest of eight is one instruction. */
static inline uint32_t largest_half(pair x)
{
    const __m256i sixteen =
        _mm256_max_epu16(_mm512_castsi512_si256((__m512i)x), _mm512_extracti64x4_epi64((__m512i)x, 1));
    const __m128i most = _mm_max_epu16(_mm256_castsi256_si128(sixteen), _mm256_extracti128_si256(sixteen, 1));
    return 0xffffU ^
           (uint32_t)(uint16_t)_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1))));
}

#define bytes_of(words)     ((bytes)_mm512_cvtepi32_epi8((__m512i)(words)))
#define pair_bytes_of(pair) ((pair_bytes)_mm512_cvtepi16_epi8((__m512i)(pair)))
#define words_of(halves)    ((words)_mm512_cvtph_ps((__m256i)(halves)))
#define halves_of(words)    ((halves)_mm512_cvtps_ph((__m512)(words), _MM_FROUND_TO_NEAREST_INT))
#define larger(a, b)        ((words)_mm512_max_epu32((__m512i)(a), (__m512i)(b)))
#define smaller(a, b)       ((words)_mm512_min_epu32((__m512i)(a), (__m512i)(b)))
#define within(x, least, most)                                                                               \
    ((floats)_mm512_max_ps(_mm512_min_ps((__m512)(x), (__m512)(most)), (__m512)(least)))
#define larger_halves(a, b) ((pair)_mm512_max_epu16((__m512i)(a), (__m512i)(b)))
#define corrected(x, q, by, inverse)                                                                         \
    ((floats)_mm512_fmadd_ps(_mm512_fnmadd_ps((__m512)(q), (__m512)(by), (__m512)(x)), (__m512)(inverse),    \
                             (__m512)(q)))
#include "transports/quant/code_loops.h"

const struct ws_quant_code ws_quant_avx512 = WS_QUANT_CODE("avx512");
#endif
