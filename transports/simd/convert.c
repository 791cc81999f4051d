#include "transports/simd/convert.h"
#include "transports/base/cpu_features.h"
#include "transports/simd/convert_bits.h"
#include "transports/simd/convert_impl.h"
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define VIA_ELEMENTS 1024 /* of f32 between two narrow types: stays in the first-level cache */

const struct ws_convert_code *const ws_convert_codes[] = {
    [WS_PORTABLE] = &ws_convert_portable,
#ifdef WS_HAS_VECTORS
    [WS_AVX2] = &ws_convert_avx2,
    [WS_AVX512] = &ws_convert_avx512,
#endif
};

static const struct ws_convert_code *the_code(void)
{
    static struct ws_cpu_choice choice = {.variable = "WSYNC_CONVERT"};
    return ws_convert_codes[ws_cpu_choose(&choice)];
}

const char *ws_convert_code(void)
{
    return the_code()->name;
}

static const struct {
    enum ws_dtype from, to;
} conversions[] = {
    [WS_F32_TO_BF16] = {WS_F32, WS_BF16},
    [WS_F32_TO_F16] = {WS_F32, WS_F16},
    [WS_BF16_TO_F32] = {WS_BF16, WS_F32},
    [WS_F16_TO_F32] = {WS_F16, WS_F32},
    [WS_BF16_TO_F16] = {WS_BF16, WS_F16},
    [WS_F16_TO_BF16] = {WS_F16, WS_BF16},
#define PLUS_1(type)                                                                                         \
    [WS_##type##_PLUS_1_TO_F32] = {WS_##type, WS_F32}, [WS_##type##_PLUS_1_TO_BF16] = {WS_##type, WS_BF16},  \
    [WS_##type##_PLUS_1_TO_F16] = {WS_##type, WS_F16}
    PLUS_1(F32),
    PLUS_1(BF16),
    PLUS_1(F16),
};
_Static_assert(sizeof(conversions) / sizeof(conversions[0]) == WS_CONVERSION_COUNT, "each has its row");

static int find(enum ws_dtype from, enum ws_dtype to, int first, int end, enum ws_conversion *out)
{
    for (int c = first; c < end; c++)
        if (conversions[c].from == from && conversions[c].to == to)
            *out = (enum ws_conversion)c;
    return *out == WS_SAME_TYPE ? -EINVAL : 0;
}

int ws_conversion_find(enum ws_dtype from, enum ws_dtype to, enum ws_conversion *out)
{
    *out = WS_SAME_TYPE;
    return from == to ? 0 : find(from, to, WS_F32_TO_BF16, WS_F32_PLUS_1_TO_F32, out);
}

int ws_conversion_find_plus_1(enum ws_dtype from, enum ws_dtype to, enum ws_conversion *out)
{
    *out = WS_SAME_TYPE;
    return find(from, to, WS_F32_PLUS_1_TO_F32, WS_CONVERSION_COUNT, out);
}

size_t ws_conversion_src_bytes(enum ws_conversion c)
{
    assert(c > WS_SAME_TYPE && c < WS_CONVERSION_COUNT);
    return ws_dtype_bits(conversions[c].from) / 8;
}

size_t ws_conversion_dst_bytes(enum ws_conversion c)
{
    assert(c > WS_SAME_TYPE && c < WS_CONVERSION_COUNT);
    return ws_dtype_bits(conversions[c].to) / 8;
}

/* f32 holds every bf16 and every f16, so the second step rounds the exact value. */
static uint64_t via_f32(ws_convert_fn *widen, ws_convert_fn *narrow, void *dst, const void *src, size_t n)
{
    float wide[VIA_ELEMENTS];
    uint64_t overflows = 0;
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < VIA_ELEMENTS ? n - at : VIA_ELEMENTS;
        (void)widen(wide, (const unsigned char *)src + 2 * at, part);
        overflows += narrow((unsigned char *)dst + 2 * at, wide, part);
    }
    return overflows;
}

/* One by one: what is stored less one is small. */
static uint64_t plus_1(enum ws_conversion c, void *dst, const void *src, size_t n)
{
    const unsigned kind = (unsigned)c - WS_F32_PLUS_1_TO_F32, from = kind / WS_BITS_TYPES,
                   to = kind % WS_BITS_TYPES;
    const size_t in = ws_dtype_bits(conversions[c].from) / 8, out = ws_dtype_bits(conversions[c].to) / 8;
    uint64_t overflows = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = 0, over = 0;
        uint16_t half;
        if (in == sizeof(v)) {
            memcpy(&v, (const unsigned char *)src + in * i, sizeof(v));
        } else {
            memcpy(&half, (const unsigned char *)src + in * i, sizeof(half));
            v = half;
        }
        v = ws_bits_plus_one(from, to, v, &over);
        half = (uint16_t)v;
        memcpy((unsigned char *)dst + out * i, out == sizeof(v) ? (const void *)&v : (const void *)&half,
               out);
        overflows += over;
    }
    return overflows;
}

uint64_t ws_convert(enum ws_conversion c, void *dst, const void *src, size_t n)
{
    const struct ws_convert_code *k = the_code();
    switch (c) {
    case WS_F32_TO_BF16:
        return k->f32_to_bf16(dst, src, n);
    case WS_F32_TO_F16:
        return k->f32_to_f16(dst, src, n);
    case WS_BF16_TO_F32:
        return k->bf16_to_f32(dst, src, n);
    case WS_F16_TO_F32:
        return k->f16_to_f32(dst, src, n);
    case WS_BF16_TO_F16:
        return via_f32(k->bf16_to_f32, k->f32_to_f16, dst, src, n);
    case WS_F16_TO_BF16:
        return via_f32(k->f16_to_f32, k->f32_to_bf16, dst, src, n);
    case WS_SAME_TYPE:
    case WS_CONVERSION_COUNT:
        break;
    default:
        return plus_1(c, dst, src, n);
    }
    assert(!"a conversion");
    return 0;
}
