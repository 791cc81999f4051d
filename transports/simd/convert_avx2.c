/* Conversions with AVX2 and F16C: built with their compiler flags, called only where the processor has them.
 */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include "transports/simd/convert_loops.h"

const struct ws_convert_code ws_convert_avx2 = {"avx2", f32_to_bf16, f32_to_f16, bf16_to_f32, f16_to_f32};
#endif
