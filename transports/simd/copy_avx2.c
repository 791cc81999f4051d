/* Copies with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include "transports/simd/copy_stream.h"

const struct ws_copy_code ws_copy_avx2 = {"avx2", copy, hash, update,    copy_update,
                                          order,  sums, join, copy_sums, convert_update};
#endif
