/* The delta's loops with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

static inline __m256i part(const unsigned char *p, size_t i)
{
    return _mm256_loadu_si256((const void *)(p + 32 * i));
}

/* Of 32 elements that were compared two bytes wide in x and y: a bit an element. */
static inline uint64_t bits_of(__m256i x, __m256i y)
{
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(x, y), 0xd8);
    return ~(uint32_t)_mm256_movemask_epi8(both) & 0xffffffffU;
}

static inline uint64_t differing_1(const unsigned char *a, const unsigned char *b)
{
    uint64_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(part(a, 0), part(b, 0)));
    uint64_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(part(a, 1), part(b, 1)));
    return ~(low | high << 32);
}

static inline uint64_t differing_2(const unsigned char *a, const unsigned char *b)
{
    __m256i e[4];
    for (size_t i = 0; i < 4; i++)
        e[i] = _mm256_cmpeq_epi16(part(a, i), part(b, i));
    return bits_of(e[0], e[1]) | bits_of(e[2], e[3]) << 32;
}

static inline uint64_t differing_4(const unsigned char *a, const unsigned char *b)
{
    uint64_t mask = 0;
    for (size_t i = 0; i < 8; i++) {
        const __m256i equal = _mm256_cmpeq_epi32(part(a, i), part(b, i));
        mask |= (uint64_t)(~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(equal)) & 0xffU) << 8 * i;
    }
    return mask;
}

#include "transports/delta/block_loops.h"

const struct ws_delta_block_impl ws_delta_block_avx2 = WS_DELTA_BLOCK_IMPL("avx2");
#endif
