/* What each version of the conversions provides; convert.c chooses one by the processor's features. */
#ifndef WS_TRANSPORTS_SIMD_CONVERT_IMPL_H
#define WS_TRANSPORTS_SIMD_CONVERT_IMPL_H
#include <stddef.h>
#include <stdint.h>

typedef uint64_t ws_convert_fn(void *dst, const void *src, size_t n); /* returns the overflows */
struct ws_convert_code {
    const char *name;
    ws_convert_fn *f32_to_bf16, *f32_to_f16, *bf16_to_f32, *f16_to_f32;
};
extern const struct ws_convert_code ws_convert_portable, ws_convert_avx2, ws_convert_avx512;
extern const struct ws_convert_code *const ws_convert_codes[]; /* by enum ws_vector */

#endif
