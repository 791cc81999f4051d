/* Copies with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include <immintrin.h>

static inline void stream_line(unsigned char *dst, const unsigned char *src)
{
    const __m256i *from = (const void *)src;
    __m256i *to = (void *)dst, low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
}

#include "transports/simd/copy_stream.h"

const struct ws_copy_code ws_copy_avx2 = {"avx2", copy, hash, update,   copy_update,
                                          order,  sums, join, copy_sums};
#endif
