/* One element's conversion, in integers, so that no rounding mode matters (but for the sums): for the CPU's portable
 * version and for kernels, which define WS_BITS (the specifiers of such a function). */
#ifndef WS_TRANSPORTS_SIMD_CONVERT_BITS_H
#define WS_TRANSPORTS_SIMD_CONVERT_BITS_H
#include <stdbool.h>
#include <stdint.h>

#ifndef WS_BITS
#define WS_BITS static inline
#endif

#define WS_BITS_SIGN     0x80000000U
#define WS_BITS_INFINITE 0x7f800000U /* f32's; what is above it is no number */

WS_BITS uint16_t ws_bf16_from_f32(uint32_t x)
{
    if ((x & ~WS_BITS_SIGN) > WS_BITS_INFINITE)
        return (uint16_t)((x & WS_BITS_SIGN) >> 16 | 0x7fc0);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

WS_BITS uint16_t ws_f16_from_f32(uint32_t x)
{
    const uint32_t sign = (x & WS_BITS_SIGN) >> 16, a = x & ~WS_BITS_SIGN;
    if (a > WS_BITS_INFINITE)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* 65520: half a step above the largest, a tie goes to the even one, infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000) /* 2^-14: the exponent is rebiased, a carry goes into it */
        return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
    if (a < 0x33000000) /* below half of 2^-24, the smallest */
        return (uint16_t)sign;
    const uint32_t shift = 126 - (a >> 23), significand = (a & 0x7fffff) | 0x800000;
    const uint32_t q = significand >> shift, rest = significand & ((1U << shift) - 1),
                   half = 1U << (shift - 1);
    return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1)))));
}

WS_BITS uint32_t ws_f32_from_bf16(uint16_t h)
{
    return (uint32_t)h << 16;
}

WS_BITS uint32_t ws_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, m = h & 0x3ff;
    if (exponent == 0x1f)
        return sign | WS_BITS_INFINITE | m << 13 | (m ? 0x400000U : 0);
    if (exponent > 0)
        return sign | (exponent + 112) << 23 | m << 13;
    if (m == 0)
        return sign;
#ifdef __CUDA_ARCH__
    const uint32_t up = (uint32_t)__clz((int)m) - 21;
#else
    const uint32_t up = (uint32_t)__builtin_clz(m) - 21; /* until bit 10 is set, which is the hidden one */
#endif
    return sign | (113 - up) << 23 | (m << up & 0x3ff) << 13;
}

/* x + 1. Of a NaN the quiet one with its sign. */
WS_BITS uint32_t ws_f32_plus_one(uint32_t x)
{
    union {
        uint32_t bits;
        float number;
    } y;
    if ((x & ~WS_BITS_SIGN) > WS_BITS_INFINITE)
        return (x & WS_BITS_SIGN) | 0x7fc00000U;
    y.bits = x;
    y.number += 1.0F;
    return y.bits;
}

/* Did the finite x become infinite? */
WS_BITS bool ws_bf16_overflows(uint32_t x, uint16_t y)
{
    return (y & 0x7fff) == 0x7f80 && (x & ~WS_BITS_SIGN) < WS_BITS_INFINITE;
}

WS_BITS bool ws_f16_overflows(uint32_t x, uint16_t y)
{
    return (y & 0x7fff) == 0x7c00 && (x & ~WS_BITS_SIGN) < WS_BITS_INFINITE;
}

/* Types by number, as WS_..._PLUS_1 count them. */
enum { WS_BITS_F32, WS_BITS_BF16, WS_BITS_F16, WS_BITS_TYPES };

WS_BITS uint32_t ws_bits_to_f32(uint32_t type, uint32_t v)
{
    return type == WS_BITS_F32    ? v
           : type == WS_BITS_BF16 ? ws_f32_from_bf16((uint16_t)v)
                                  : ws_f32_from_f16((uint16_t)v);
}

WS_BITS uint32_t ws_bits_from_f32(uint32_t type, uint32_t x, uint32_t *overflows)
{
    if (type == WS_BITS_F32)
        return x;
    const uint16_t y = type == WS_BITS_BF16 ? ws_bf16_from_f32(x) : ws_f16_from_f32(x);
    *overflows += type == WS_BITS_BF16 ? ws_bf16_overflows(x, y) : ws_f16_overflows(x, y);
    return y;
}

/* 1 is added in the source's type, whose nearest value then becomes the other's. */
WS_BITS uint32_t ws_bits_plus_one(uint32_t from, uint32_t to, uint32_t v, uint32_t *overflows)
{
    const uint32_t sum = ws_bits_from_f32(from, ws_f32_plus_one(ws_bits_to_f32(from, v)), overflows);
    return from == to ? sum : ws_bits_from_f32(to, ws_bits_to_f32(from, sum), overflows);
}

#endif
