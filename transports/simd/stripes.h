/* Stripes: the 64 bytes that XXH3 takes in at once, and its lanes, kept in registers by a pass over memory that loads each
 * line anyway. For code that is compiled with AVX2's or AVX-512's flags; the steps are those of the library
 * (XXH3_accumulate_512 and XXH3_scrambleAcc), for its own secret. */
#ifndef WS_TRANSPORTS_SIMD_STRIPES_H
#define WS_TRANSPORTS_SIMD_STRIPES_H
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

#define WS_STRIPE           64 /* bytes */
#define WS_STRIPES_OF_KIB   16 /* then the lanes are scrambled */
#define WS_STRIPES_SCRAMBLE (sizeof(XXH3_kSecret) - WS_STRIPE)
#define WS_STRIPES_INLINE   static inline __attribute__((always_inline))

#ifdef __AVX512F__
typedef __m512i ws_stripe;

WS_STRIPES_INLINE ws_stripe ws_stripe_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

WS_STRIPES_INLINE void ws_stripe_store(void *p, ws_stripe s)
{
    _mm512_storeu_si512(p, s);
}

/* Past the cache, to an aligned address. */
WS_STRIPES_INLINE void ws_stripe_stream(void *p, ws_stripe s)
{
    _mm512_stream_si512(p, s);
}

WS_STRIPES_INLINE __m512i ws_lanes_of_part(__m512i lanes, __m512i s, __m512i key)
{
    const __m512i keyed = _mm512_xor_si512(s, key);
    const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    const __m512i swapped = _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2));
    return _mm512_add_epi64(product, _mm512_add_epi64(lanes, swapped));
}

WS_STRIPES_INLINE __m512i ws_lanes_scramble_part(__m512i lanes, __m512i key)
{
    const __m512i prime = _mm512_set1_epi32((int)XXH_PRIME32_1);
    const __m512i keyed = _mm512_xor_si512(_mm512_xor_si512(lanes, _mm512_srli_epi64(lanes, 47)), key);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(keyed, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(keyed, prime), _mm512_slli_epi64(high, 32));
}

WS_STRIPES_INLINE ws_stripe ws_lanes_add_keyed(ws_stripe lanes, ws_stripe s, const unsigned char *key)
{
    return ws_lanes_of_part(lanes, s, _mm512_loadu_si512(key));
}

WS_STRIPES_INLINE ws_stripe ws_lanes_scramble(ws_stripe lanes)
{
    return ws_lanes_scramble_part(lanes, _mm512_loadu_si512(XXH3_kSecret + WS_STRIPES_SCRAMBLE));
}
#else
typedef struct {
    __m256i low, high;
} ws_stripe;

WS_STRIPES_INLINE ws_stripe ws_stripe_load(const void *p)
{
    return (ws_stripe){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}

WS_STRIPES_INLINE void ws_stripe_store(void *p, ws_stripe s)
{
    _mm256_storeu_si256(p, s.low);
    _mm256_storeu_si256((__m256i *)p + 1, s.high);
}

/* Past the cache, to an aligned address. */
WS_STRIPES_INLINE void ws_stripe_stream(void *p, ws_stripe s)
{
    _mm256_stream_si256(p, s.low);
    _mm256_stream_si256((__m256i *)p + 1, s.high);
}

WS_STRIPES_INLINE __m256i ws_lanes_of_part(__m256i lanes, __m256i s, __m256i key)
{
    const __m256i keyed = _mm256_xor_si256(s, key);
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const __m256i swapped = _mm256_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(product, _mm256_add_epi64(lanes, swapped));
}

WS_STRIPES_INLINE __m256i ws_lanes_scramble_part(__m256i lanes, __m256i key)
{
    const __m256i prime = _mm256_set1_epi32((int)XXH_PRIME32_1);
    const __m256i keyed = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), key);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(keyed, prime), _mm256_slli_epi64(high, 32));
}

WS_STRIPES_INLINE ws_stripe ws_lanes_add_keyed(ws_stripe lanes, ws_stripe s, const unsigned char *key)
{
    const ws_stripe k = ws_stripe_load(key);
    return (ws_stripe){ws_lanes_of_part(lanes.low, s.low, k.low),
                       ws_lanes_of_part(lanes.high, s.high, k.high)};
}

WS_STRIPES_INLINE ws_stripe ws_lanes_scramble(ws_stripe lanes)
{
    const ws_stripe k = ws_stripe_load(XXH3_kSecret + WS_STRIPES_SCRAMBLE);
    return (ws_stripe){ws_lanes_scramble_part(lanes.low, k.low), ws_lanes_scramble_part(lanes.high, k.high)};
}
#endif

/* Takes in stripe i (0 to 15) of a KiB; after stripe 15 the lanes are scrambled, unless nothing follows. */
WS_STRIPES_INLINE ws_stripe ws_lanes_add(ws_stripe lanes, ws_stripe s, size_t i)
{
    return ws_lanes_add_keyed(lanes, s, XXH3_kSecret + i * XXH_SECRET_CONSUME_RATE);
}

/* The last 64 bytes of all, which may be taken in already in part: in the place of their own stripe where they are one. */
WS_STRIPES_INLINE ws_stripe ws_lanes_add_last(ws_stripe lanes, ws_stripe s)
{
    return ws_lanes_add_keyed(lanes, s, XXH3_kSecret + WS_STRIPES_SCRAMBLE - XXH_SECRET_LASTACC_START);
}

/* Of no bytes. */
WS_STRIPES_INLINE ws_stripe ws_lanes_begin(void)
{
    static const uint64_t begin[] = XXH3_INIT_ACC;
    return ws_stripe_load(begin);
}

/* The hash of n bytes (over 240) that were all taken in. */
WS_STRIPES_INLINE uint64_t ws_lanes_end(ws_stripe lanes, size_t n)
{
    uint64_t sums[8] __attribute__((aligned(64)));
    ws_stripe_store(sums, lanes);
    return XXH3_mergeAccs(sums, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, (uint64_t)n * XXH_PRIME64_1);
}

/* --- where the library keeps a hash between two passes --- */

struct ws_lanes {
    ws_stripe lanes;
    size_t stripe; /* of the KiB: the next one */
};

WS_STRIPES_INLINE void ws_lanes_next(struct ws_lanes *l, ws_stripe s)
{
    l->lanes = ws_lanes_add(l->lanes, s, l->stripe);
    if (++l->stripe == WS_STRIPES_OF_KIB) {
        l->lanes = ws_lanes_scramble(l->lanes);
        l->stripe = 0;
    }
}

/* Can a pass go on with the state's hash stripe by stripe, for n bytes? It keeps the last of all that it is given, and of
 * 240 bytes and fewer all. */
WS_STRIPES_INLINE int ws_lanes_can_resume(const XXH3_state_t *s, size_t n)
{
    return s->bufferedSize % WS_STRIPE == 0 && n >= 5UL * WS_STRIPE;
}

/* At least one byte follows. */
WS_STRIPES_INLINE struct ws_lanes ws_lanes_resume(XXH3_state_t *s)
{
    struct ws_lanes l = {ws_stripe_load(s->acc), s->nbStripesSoFar};
    for (size_t at = 0; at < s->bufferedSize; at += WS_STRIPE)
        ws_lanes_next(&l, ws_stripe_load(s->buffer + at));
    return l;
}

/* n bytes were added since; l has taken in all but the last stripe of them. */
WS_STRIPES_INLINE void ws_lanes_pause(XXH3_state_t *s, const struct ws_lanes *l, ws_stripe last, size_t n)
{
    ws_stripe_store(s->acc, l->lanes);
    s->nbStripesSoFar = l->stripe;
    s->totalLen += n;
    ws_stripe_store(s->buffer, last);
    s->bufferedSize = WS_STRIPE;
}

#endif
