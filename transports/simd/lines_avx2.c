/* Loops over lines with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <immintrin.h>
#include <stdint.h>

static inline uint64_t line_differs(const unsigned char *a, const unsigned char *b)
{
    const __m256i *x = (const void *)a, *y = (const void *)b;
    const __m256i low = _mm256_xor_si256(_mm256_loadu_si256(x), _mm256_loadu_si256(y)),
                  high = _mm256_xor_si256(_mm256_loadu_si256(x + 1), _mm256_loadu_si256(y + 1)),
                  any = _mm256_or_si256(low, high);
    return !_mm256_testz_si256(any, any);
}

static inline void store_line(unsigned char *dst, const unsigned char *src)
{
    const __m256i *from = (const void *)src;
    __m256i *to = (void *)dst, low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
}

#include "transports/simd/lines_loops.h"

const struct ws_lines_code ws_lines_avx2 = {"avx2", differ, store};
#endif
