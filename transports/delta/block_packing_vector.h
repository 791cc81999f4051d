/* Numbers packed into bits, eight at a time with AVX2's vectors: eight numbers are as many bytes as each has bits, so that
 * no eight depend on those before them. */
#ifndef WS_TRANSPORTS_DELTA_BLOCK_PACKING_VECTOR_H
#define WS_TRANSPORTS_DELTA_BLOCK_PACKING_VECTOR_H
#include "transports/delta/block_impl.h"
#include "transports/delta/block_packing.h"
#include <immintrin.h>

#define EIGHT       8
#define PACK_MOST   15 /* bits, of which 4 numbers have less than a word */
#define UNPACK_MOST 25 /* that lie in 4 bytes wherever they begin */
#define MANY_PLACES 0x80000000U
#define LONG_GAP    0xf0000000U /* a gap with one of these bits: eight of them may go over 2^32 */

static inline __m256i eight(const uint32_t *v)
{
    return _mm256_loadu_si256((const void *)v);
}

static void gaps(uint32_t *at, size_t n)
{
    const __m256i one = _mm256_set1_epi32(1);
    for (; n > EIGHT; n -= EIGHT) {
        uint32_t *v = at + n - EIGHT;
        _mm256_storeu_si256((void *)v, _mm256_sub_epi32(_mm256_sub_epi32(eight(v), eight(v - 1)), one));
    }
    gaps_before(at, n);
}

/* Sums within four, of four to four, and of all before. */
static uint64_t places(uint32_t *v, size_t n)
{
    const __m256i one = _mm256_set1_epi32(1), third = _mm256_set1_epi32(3), last = _mm256_set1_epi32(7);
    __m256i before = _mm256_set1_epi32(-1);
    uint64_t end = 0;
    size_t i = 0;
    for (; i + EIGHT <= n && end < MANY_PLACES; i += EIGHT) {
        const __m256i gap = eight(v + i);
        if (!_mm256_testz_si256(gap, _mm256_set1_epi32((int)LONG_GAP)))
            break;
        __m256i x = _mm256_add_epi32(gap, one);
        x = _mm256_add_epi32(x, _mm256_bslli_epi128(x, 4));
        x = _mm256_add_epi32(x, _mm256_bslli_epi128(x, 8));
        const __m256i four = _mm256_permutevar8x32_epi32(x, third);
        x = _mm256_add_epi32(x, _mm256_blend_epi32(_mm256_setzero_si256(), four, 0xf0));
        x = _mm256_add_epi32(x, before);
        before = _mm256_permutevar8x32_epi32(x, last);
        end = (uint64_t)(uint32_t)_mm256_extract_epi32(x, 7) + 1;
        _mm256_storeu_si256((void *)(v + i), x);
    }
    return places_from(v + i, n - i, end);
}

/* Two numbers become one of twice the bits, and these again. */
static inline void pack_eight(unsigned char *out, __m256i x, unsigned bits)
{
    const __m128i once = _mm_cvtsi32_si128((int)bits), twice = _mm_cvtsi32_si128(2 * (int)bits);
    const __m256i odd = _mm256_sll_epi64(_mm256_srli_epi64(x, 32), once),
                  pairs = _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi64x(UINT32_MAX)), odd),
                  fours = _mm256_or_si256(pairs, _mm256_sll_epi64(_mm256_bsrli_epi128(pairs, 8), twice));
    const uint64_t low = (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(fours)),
                   high = (uint64_t)_mm_cvtsi128_si64(_mm256_extracti128_si256(fours, 1));
    const uint64_t words[2] = {low | high << 4 * bits, high >> (64 - 4 * bits)};
    memcpy(out, words, sizeof(words));
}

static void pack(unsigned char *out, const uint32_t *v, size_t n, unsigned bits)
{
    const unsigned char *end = out + ((uint64_t)n * bits + 7) / 8;
    const __m256i mask = _mm256_set1_epi32((int)((1U << (bits & 31)) - 1));
    size_t i = 0;
    if (bits > 0 && bits <= PACK_MOST)
        for (; i + EIGHT <= n && end - out >= 16; i += EIGHT, out += bits)
            pack_eight(out, _mm256_and_si256(eight(v + i), mask), bits);
    pack_rest(out, v + i, n - i, bits);
}

/* Where the four bytes lie in which each of eight numbers begins, and at which bit: of the first four from the beginning
 * on, of the others from the byte in which the fifth begins. */
struct unpack_plan {
    __m256i bytes, shift, mask;
};

static struct unpack_plan plan_unpack(unsigned bits)
{
    unsigned char bytes[32];
    uint32_t shift[EIGHT];
    for (unsigned i = 0; i < EIGHT; i++) {
        const unsigned bit = i < 4 ? i * bits : 4 * bits % 8 + (i - 4) * bits;
        shift[i] = bit % 8;
        for (unsigned k = 0; k < 4; k++)
            bytes[4 * i + k] = (unsigned char)(bit / 8 + k);
    }
    return (struct unpack_plan){_mm256_loadu_si256((const void *)bytes), eight(shift),
                                _mm256_set1_epi32((int)((1U << bits) - 1))};
}

static void unpack(uint32_t *out, const unsigned char *in, size_t n, unsigned bits)
{
    const unsigned char *end = in + ((uint64_t)n * bits + 7) / 8 + WS_DELTA_PAD_BYTES;
    size_t i = 0;
    if (bits > 0 && bits <= UNPACK_MOST) {
        const struct unpack_plan p = plan_unpack(bits);
        for (; i + EIGHT <= n && end - in >= 16 + bits / 2; i += EIGHT, in += bits) {
            const __m256i x = _mm256_set_m128i(_mm_loadu_si128((const void *)(in + bits / 2)),
                                               _mm_loadu_si128((const void *)in));
            const __m256i y = _mm256_srlv_epi32(_mm256_shuffle_epi8(x, p.bytes), p.shift);
            _mm256_storeu_si256((void *)(out + i), _mm256_and_si256(y, p.mask));
        }
    }
    unpack_rest(out + i, in, n - i, bits);
}

/* Bit i: of 64 numbers number i has more than `bits` (0 to 31). */
static inline uint64_t longer(const uint32_t *v, unsigned bits)
{
    const __m128i by = _mm_cvtsi32_si128((int)bits);
    uint64_t mask = 0;
    for (unsigned i = 0; i < 64; i += EIGHT) {
        const __m256i none = _mm256_cmpeq_epi32(_mm256_srl_epi32(eight(v + i), by), _mm256_setzero_si256());
        mask |= (uint64_t)(~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(none)) & 0xffU) << i;
    }
    return mask;
}

#endif
