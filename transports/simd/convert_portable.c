/* Conversions for any processor. */
#include "transports/simd/convert_bits.h"
#include "transports/simd/convert_impl.h"
#include <string.h>

#define NARROW(name, convert, overflowed)                                                                    \
    static uint64_t name(void *dst, const void *src, size_t n)                                               \
    {                                                                                                        \
        uint64_t overflows = 0;                                                                              \
        for (size_t i = 0; i < n; i++) {                                                                     \
            uint32_t x;                                                                                      \
            memcpy(&x, (const unsigned char *)src + 4 * i, sizeof(x));                                       \
            uint16_t y = convert(x);                                                                         \
            overflows += overflowed(x, y);                                                                   \
            memcpy((unsigned char *)dst + 2 * i, &y, sizeof(y));                                             \
        }                                                                                                    \
        return overflows;                                                                                    \
    }
NARROW(f32_to_bf16, ws_bf16_from_f32, ws_bf16_overflows)
NARROW(f32_to_f16, ws_f16_from_f32, ws_f16_overflows)

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
WIDEN(bf16_to_f32, ws_f32_from_bf16)
WIDEN(f16_to_f32, ws_f32_from_f16)

const struct ws_convert_code ws_convert_portable = {"portable", f32_to_bf16, f32_to_f16, bf16_to_f32,
                                                    f16_to_f32};
