/* A stripe out of elements of another type, in registers: for a pass that hashes it and stores it. */
#ifndef WS_TRANSPORTS_SIMD_CONVERT_STRIPE_H
#define WS_TRANSPORTS_SIMD_CONVERT_STRIPE_H
#include "transports/simd/convert.h"
#include "transports/simd/convert_vectors.h"
#include "transports/simd/stripes.h"
#include <string.h>

#ifdef __AVX512F__
typedef __m512i converted; /* as wide as a vector of words */

WS_STRIPES_INLINE converted join_halves(halves low, halves high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
}

/* The low halves of both. */
WS_STRIPES_INLINE converted pack_words(words low, words high)
{
    const __m512i in_order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    return _mm512_permutexvar_epi64(in_order, _mm512_packus_epi32((__m512i)low, (__m512i)high));
}
#else
typedef __m256i converted;

WS_STRIPES_INLINE converted join_halves(halves low, halves high)
{
    return _mm256_set_m128i((__m128i)high, (__m128i)low);
}

WS_STRIPES_INLINE converted pack_words(words low, words high)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
}
#endif

WS_STRIPES_INLINE words words_at(const unsigned char *p)
{
    words x;
    memcpy(&x, p, sizeof(x));
    return x;
}

WS_STRIPES_INLINE halves halves_at(const unsigned char *p)
{
    halves x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/* Bytes of the source for n bytes that are stored. */
WS_STRIPES_INLINE size_t ws_convert_source_bytes(enum ws_conversion c, size_t n)
{
    if (c == WS_F32_TO_BF16 || c == WS_F32_TO_F16)
        return 2 * n;
    return c == WS_BF16_TO_F32 || c == WS_F16_TO_F32 ? n / 2 : n;
}

WS_STRIPES_INLINE converted convert_part(const unsigned char *p, enum ws_conversion c, masks *overflows)
{
    const unsigned char *q = p + ws_convert_source_bytes(c, sizeof(converted) / 2);
    switch (c) {
    case WS_F32_TO_BF16:
        return pack_words(bf16_bits_of(words_at(p), overflows), bf16_bits_of(words_at(q), overflows));
    case WS_F32_TO_F16:
        return join_halves(f16_of(words_at(p), overflows), f16_of(words_at(q), overflows));
    case WS_BF16_TO_F32:
        return (converted)words_of_bf16(halves_at(p));
    case WS_F16_TO_F32:
        return (converted)words_of(halves_at(p));
    case WS_BF16_TO_F16:
        return join_halves(f16_of(words_of_bf16(halves_at(p)), overflows),
                           f16_of(words_of_bf16(halves_at(q)), overflows));
    default: /* WS_F16_TO_BF16 */
        return pack_words(bf16_bits_of(words_of(halves_at(p)), overflows),
                          bf16_bits_of(words_of(halves_at(q)), overflows));
    }
}

/* c: a constant, one of those between f32, bf16 and f16. *overflows: counts lane by lane (sum). */
WS_STRIPES_INLINE ws_stripe ws_convert_stripe(const unsigned char *p, enum ws_conversion c, masks *overflows)
{
#ifdef __AVX512F__
    return convert_part(p, c, overflows);
#else
    const unsigned char *q = p + ws_convert_source_bytes(c, WS_STRIPE / 2);
    return (ws_stripe){convert_part(p, c, overflows), convert_part(q, c, overflows)};
#endif
}

#endif
