/* Conversions for any processor, in integers, so that no rounding mode matters. */
#include "transports/convert_code.h"
#include <string.h>

#define SIGN     0x80000000U
#define INFINITE 0x7f800000U /* f32's; what is above it is no number */

static uint16_t bf16_of(uint32_t x)
{
    if ((x & ~SIGN) > INFINITE)
        return (uint16_t)((x & SIGN) >> 16 | 0x7fc0);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

static uint16_t f16_of(uint32_t x)
{
    uint32_t sign = (x & SIGN) >> 16, a = x & ~SIGN;
    if (a > INFINITE)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* 65520: half a step above the largest, a tie goes to the even one, infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000) /* 2^-14: the exponent is rebiased, a carry goes into it */
        return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
    if (a < 0x33000000) /* below half of 2^-24, the smallest */
        return (uint16_t)sign;
    uint32_t shift = 126 - (a >> 23), significand = (a & 0x7fffff) | 0x800000;
    uint32_t q = significand >> shift, rest = significand & ((1U << shift) - 1), half = 1U << (shift - 1);
    return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1)))));
}

static uint32_t f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, m = h & 0x3ff;
    if (exponent == 0x1f)
        return sign | INFINITE | m << 13 | (m ? 0x400000U : 0);
    if (exponent > 0)
        return sign | (exponent + 112) << 23 | m << 13;
    if (m == 0)
        return sign;
    uint32_t up = (uint32_t)__builtin_clz(m) - 21; /* until bit 10 is set, which is the hidden one */
    return sign | (113 - up) << 23 | (m << up & 0x3ff) << 13;
}

#define NARROW(name, convert, infinite)                                                                      \
    static uint64_t name(void *dst, const void *src, size_t n)                                               \
    {                                                                                                        \
        uint64_t overflows = 0;                                                                              \
        for (size_t i = 0; i < n; i++) {                                                                     \
            uint32_t x;                                                                                      \
            memcpy(&x, (const unsigned char *)src + 4 * i, sizeof(x));                                       \
            uint16_t y = convert(x);                                                                         \
            overflows += (y & 0x7fff) == (infinite) && (x & ~SIGN) < INFINITE;                               \
            memcpy((unsigned char *)dst + 2 * i, &y, sizeof(y));                                             \
        }                                                                                                    \
        return overflows;                                                                                    \
    }
NARROW(f32_to_bf16, bf16_of, 0x7f80)
NARROW(f32_to_f16, f16_of, 0x7c00)

#define WIDEN(name, convert)                                                                                 \
    static uint64_t name(void *dst, const void *src, size_t n)                                               \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++) {                                                                     \
            uint16_t x;                                                                                      \
            memcpy(&x, (const unsigned char *)src + 2 * i, sizeof(x));                                       \
            uint32_t y = convert(x);                                                                         \
            memcpy((unsigned char *)dst + 4 * i, &y, sizeof(y));                                             \
        }                                                                                                    \
        return 0;                                                                                            \
    }
#define f32_of_bf16(x) ((uint32_t)(x) << 16)
WIDEN(bf16_to_f32, f32_of_bf16)
WIDEN(f16_to_f32, f32_of_f16)

const struct ws_convert_code ws_convert_portable = {"portable", f32_to_bf16, f32_to_f16, bf16_to_f32,
                                                    f16_to_f32};
