/* Loops over lines with AVX-512: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <immintrin.h>
#include <stdint.h>

static inline uint64_t line_differs(const unsigned char *a, const unsigned char *b)
{
    return _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b)) != 0;
}

static inline void store_line(unsigned char *dst, const unsigned char *src)
{
    _mm512_stream_si512((void *)dst, _mm512_loadu_si512(src));
}

#include "transports/simd/lines_loops.h"

const struct ws_lines_code ws_lines_avx512 = {"avx512", differ, store};
#endif
