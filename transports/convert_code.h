/* What each version of the conversions provides; convert.c picks one by what the processor can do. */
#ifndef WS_TRANSPORTS_CONVERT_CODE_H
#define WS_TRANSPORTS_CONVERT_CODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <cpuid.h>
#endif

typedef uint64_t ws_convert_fn(void *dst, const void *src, size_t n); /* returns the overflows */
struct ws_convert_code {
    const char *name;
    ws_convert_fn *f32_to_bf16, *f32_to_f16, *bf16_to_f32, *f16_to_f32;
};
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
/* __builtin_cpu_supports does not know F16C in every compiler. */
static inline bool ws_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif
extern const struct ws_convert_code ws_convert_portable, ws_convert_avx2, ws_convert_avx512;

#endif
