/* The delta's loops with AVX-512: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

static inline __m512i part(const unsigned char *p, size_t i)
{
    return _mm512_loadu_si512((const void *)(p + 64 * i));
}

static inline uint64_t differing_1(const unsigned char *a, const unsigned char *b)
{
    return _mm512_cmpneq_epi8_mask(part(a, 0), part(b, 0));
}

static inline uint64_t differing_2(const unsigned char *a, const unsigned char *b)
{
    return (uint64_t)_mm512_cmpneq_epi16_mask(part(a, 0), part(b, 0)) |
           (uint64_t)_mm512_cmpneq_epi16_mask(part(a, 1), part(b, 1)) << 32;
}

static inline uint64_t differing_4(const unsigned char *a, const unsigned char *b)
{
    uint64_t mask = 0;
    for (size_t i = 0; i < 4; i++)
        mask |= (uint64_t)_mm512_cmpneq_epi32_mask(part(a, i), part(b, i)) << 16 * i;
    return mask;
}

#include "transports/delta/block_loops.h"

const struct ws_delta_block_impl ws_delta_block_avx512 = WS_DELTA_BLOCK_IMPL("avx512");
#endif
