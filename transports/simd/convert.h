/* Conversions of floating-point elements: trainers keep master weights in f32, engines load bf16 or f16.
 *
 * To a narrower type: rounded to nearest, ties to even; subnormals are correct; a value that is too large becomes
 * infinite and is counted. Every NaN becomes one quiet NaN with its sign kept (bf16 0x7fc0, f16 0x7e00): libraries
 * agree on no pattern (torch's bf16 is 0xffff on a CPU and 0x7fff on a GPU), and one fixed pattern makes equal
 * sources equal bytes. To a wider type: exact; a NaN keeps its payload, and f16's becomes quiet, as the processor's
 * instruction does it. Between bf16 and f16: by way of f32, rounded once. PLUS_1: 1 is added first, and rounded to the
 * source's type, as a framework does that stores a norm's weights less one; a NaN becomes the quiet one above.
 *
 * AVX-512, AVX2 with F16C or portable code, chosen once at run time; all give the same bytes and counts. Pure
 * functions, thread safe; neither side needs an alignment. */
#ifndef WS_TRANSPORTS_SIMD_CONVERT_H
#define WS_TRANSPORTS_SIMD_CONVERT_H
#include "transports/base/error.h"
#include "transports/simd/dtype.h"
#include <stddef.h>
#include <stdint.h>

enum ws_conversion {
    WS_SAME_TYPE, /* the same type: bytes as they are */
    WS_F32_TO_BF16,
    WS_F32_TO_F16,
    WS_BF16_TO_F32,
    WS_F16_TO_F32,
    WS_BF16_TO_F16,
    WS_F16_TO_BF16,
    WS_F32_PLUS_1_TO_F32,
    WS_F32_PLUS_1_TO_BF16,
    WS_F32_PLUS_1_TO_F16,
    WS_BF16_PLUS_1_TO_F32,
    WS_BF16_PLUS_1_TO_BF16,
    WS_BF16_PLUS_1_TO_F16,
    WS_F16_PLUS_1_TO_F32,
    WS_F16_PLUS_1_TO_BF16,
    WS_F16_PLUS_1_TO_F16,
    WS_CONVERSION_COUNT
};

/* -EINVAL: there is none between these. */
WS_MUST_USE int ws_conversion_find(enum ws_dtype from, enum ws_dtype to, enum ws_conversion *out);
/* The same with 1 added. */
WS_MUST_USE int ws_conversion_find_plus_1(enum ws_dtype from, enum ws_dtype to, enum ws_conversion *out);
static inline int ws_conversion_is_plus_1(enum ws_conversion c)
{
    return c >= WS_F32_PLUS_1_TO_F32 && c < WS_CONVERSION_COUNT;
}
size_t ws_conversion_src_bytes(enum ws_conversion c); /* of an element; not of WS_SAME_TYPE */
size_t ws_conversion_dst_bytes(enum ws_conversion c);
/* n elements; no overlap. Returns how many finite ones became infinite. Not for WS_SAME_TYPE. */
uint64_t ws_convert(enum ws_conversion c, void *dst, const void *src, size_t n);
const char *ws_convert_code(void); /* "avx512", "avx2", "portable"; WSYNC_CONVERT=... overrides for tests */

#endif
