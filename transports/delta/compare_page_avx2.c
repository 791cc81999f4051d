/* The pass over a page with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include "transports/simd/stripes.h"

WS_STRIPES_INLINE __m256i compare_half(uint16_t *z, __m256i s, __m256i b)
{
    const __m256i d = _mm256_sub_epi16(s, b),
                  zigzag = _mm256_xor_si256(_mm256_add_epi16(d, d), _mm256_srai_epi16(d, 15));
    _mm256_store_si256((__m256i *)(void *)z, _mm256_sub_epi16(zigzag, _mm256_set1_epi16(1)));
    return _mm256_cmpeq_epi16(s, b);
}

WS_STRIPES_INLINE uint64_t compare_line(uint16_t *z, ws_stripe s, const unsigned char *base)
{
    const ws_stripe b = ws_stripe_load(base);
    const __m256i low = compare_half(z, s.low, b.low), high = compare_half(z + 16, s.high, b.high),
                  equal = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    return (uint32_t)~_mm256_movemask_epi8(equal);
}

#include "transports/delta/compare_page_loops.h"

bool ws_compare_page_avx2(void *state, struct ws_compare_page *p)
{
    return compare_page(state, p);
}
#endif
