/* The pass over a page with AVX-512: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 3 /* XXH_AVX512 */
#include "transports/simd/stripes.h"

WS_STRIPES_INLINE uint64_t compare_line(uint16_t *z, ws_stripe s, const unsigned char *base)
{
    const __m512i b = _mm512_loadu_si512(base), d = _mm512_sub_epi16(s, b),
                  zigzag = _mm512_xor_si512(_mm512_add_epi16(d, d), _mm512_srai_epi16(d, 15));
    _mm512_store_si512(z, _mm512_sub_epi16(zigzag, _mm512_set1_epi16(1)));
    return _mm512_cmpneq_epi16_mask(s, b);
}

#include "transports/delta/compare_page_loops.h"

bool ws_compare_page_avx512(void *state, struct ws_compare_page *p)
{
    return compare_page(state, p);
}
#endif
