/* Copies with AVX-512: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 3 /* XXH_AVX512 */
#include "transports/simd/copy_stream.h"

const struct ws_copy_code ws_copy_avx512 = {"avx512", copy, hash, update,    copy_update,
                                            order,    sums, join, copy_sums, convert_update};
#endif
