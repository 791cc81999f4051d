/* Of two stripes (simd/stripes.h) which elements differ, and by how much: for every loop that compares two versions, with
 * AVX2's or AVX-512's flags. Widths are constants: 1, 2 or 4 bytes. */
#ifndef WS_TRANSPORTS_DELTA_BLOCK_STRIPE_H
#define WS_TRANSPORTS_DELTA_BLOCK_STRIPE_H
#include "transports/simd/stripes.h"

#ifdef __AVX512F__
/* GCC 12 extends a mask to 64 bits as it spills it, by a store of its own 16 or 32 bits, and then reads 64 (seen with
 * -fsanitize=thread). A mask that is in a general register before it is extended does not get there. */
#define WS_MASK_IN_REGISTER(mask) __asm__("" : "+r"(mask))

/* Bit i: element i of the stripe differs. */
WS_STRIPES_INLINE uint64_t ws_stripe_differ(ws_stripe a, ws_stripe b, unsigned width)
{
    if (width == 1)
        return _mm512_cmpneq_epi8_mask(a, b);
    if (width == 2) {
        uint32_t of_2 = _mm512_cmpneq_epi16_mask(a, b);
        WS_MASK_IN_REGISTER(of_2);
        return of_2;
    }
    uint16_t of_4 = _mm512_cmpneq_epi32_mask(a, b);
    WS_MASK_IN_REGISTER(of_4);
    return of_4;
}

/* The change of each element from a to b: its zigzag less one; of an equal one all bits. */
WS_STRIPES_INLINE ws_stripe ws_stripe_changes(ws_stripe a, ws_stripe b, unsigned width)
{
    if (width == 1) {
        const __m512i d = _mm512_sub_epi8(b, a), sign = _mm512_movm_epi8(_mm512_movepi8_mask(d));
        return _mm512_sub_epi8(_mm512_xor_si512(_mm512_add_epi8(d, d), sign), _mm512_set1_epi8(1));
    }
    if (width == 2) {
        const __m512i d = _mm512_sub_epi16(b, a), sign = _mm512_srai_epi16(d, 15);
        return _mm512_sub_epi16(_mm512_xor_si512(_mm512_add_epi16(d, d), sign), _mm512_set1_epi16(1));
    }
    const __m512i d = _mm512_sub_epi32(b, a), sign = _mm512_srai_epi32(d, 31);
    return _mm512_sub_epi32(_mm512_xor_si512(_mm512_add_epi32(d, d), sign), _mm512_set1_epi32(1));
}
#else
WS_STRIPES_INLINE uint64_t ws_stripe_differ(ws_stripe a, ws_stripe b, unsigned width)
{
    if (width == 1) {
        const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a.low, b.low)),
                       high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a.high, b.high));
        return ~(low | (uint64_t)high << 32);
    }
    if (width == 2) {
        const __m256i low = _mm256_cmpeq_epi16(a.low, b.low), high = _mm256_cmpeq_epi16(a.high, b.high),
                      both = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
        return (uint32_t)~_mm256_movemask_epi8(both);
    }
    const __m256i low = _mm256_cmpeq_epi32(a.low, b.low), high = _mm256_cmpeq_epi32(a.high, b.high);
    const unsigned equal = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low)) |
                           (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8;
    return ~equal & 0xffffU;
}

WS_STRIPES_INLINE __m256i ws_stripe_changes_part(__m256i a, __m256i b, unsigned width)
{
    if (width == 1) {
        const __m256i d = _mm256_sub_epi8(b, a), sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), d);
        return _mm256_sub_epi8(_mm256_xor_si256(_mm256_add_epi8(d, d), sign), _mm256_set1_epi8(1));
    }
    if (width == 2) {
        const __m256i d = _mm256_sub_epi16(b, a), sign = _mm256_srai_epi16(d, 15);
        return _mm256_sub_epi16(_mm256_xor_si256(_mm256_add_epi16(d, d), sign), _mm256_set1_epi16(1));
    }
    const __m256i d = _mm256_sub_epi32(b, a), sign = _mm256_srai_epi32(d, 31);
    return _mm256_sub_epi32(_mm256_xor_si256(_mm256_add_epi32(d, d), sign), _mm256_set1_epi32(1));
}

WS_STRIPES_INLINE ws_stripe ws_stripe_changes(ws_stripe a, ws_stripe b, unsigned width)
{
    return (ws_stripe){ws_stripe_changes_part(a.low, b.low, width),
                       ws_stripe_changes_part(a.high, b.high, width)};
}
#endif

#endif
