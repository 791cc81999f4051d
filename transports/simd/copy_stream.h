/* The body of a vector version: included by copy_avx2.c and copy_avx512.c, which define XXH_VECTOR. Each is compiled with
 * its own flags, so that loops and hash use that processor's widest registers.
 *
 * Prefetching a page ahead instead of 512 bytes: measured on Ice Lake, hashing then runs as fast as reading, and copying
 * with hashing at 0.95 of a copy without (0.77 with the library's own distance and pieces of 32 KiB). A
 * prefetch beyond the source's end reads nothing that the program could see, and faults nowhere. */
#define XXH_PREFETCH_DIST 4096
#define XXH_INLINE_ALL    /* so that the hash is built with these flags too */
#include "transports/simd/convert_stripe.h"
#include "transports/simd/copy_impl.h"
#include "transports/simd/copy_sums.h"
#include "transports/simd/stripes.h"
#include <immintrin.h>
#include <string.h>
#include <xxhash.h>

#define LINE_BYTES  64
#define PIECE_BYTES 1024 /* hashed, then stored while it is in the first-level cache */

static inline size_t to_line(const void *dst, size_t n)
{
    size_t head = (size_t)(-(uintptr_t)dst & (LINE_BYTES - 1));
    return head < n ? head : n;
}

/* Of an aligned dst; returns how many bytes, a multiple of LINE_BYTES. */
static inline size_t stream_lines(unsigned char *dst, const unsigned char *src, size_t n)
{
    size_t at = 0;
    for (; at + LINE_BYTES <= n; at += LINE_BYTES)
        ws_stripe_stream(dst + at, ws_stripe_load(src + at));
    return at;
}

static void copy(void *dst, const void *src, size_t n)
{
    size_t at = to_line(dst, n);
    memcpy(dst, src, at);
    at += stream_lines((unsigned char *)dst + at, (const unsigned char *)src + at, n - at);
    memcpy((unsigned char *)dst + at, (const unsigned char *)src + at, n - at);
}

static void order(void)
{
    _mm_sfence();
}

/* --- with the hash, whose lanes stay in registers --- */

/* The source's next stripe, as it is or converted: c is a constant. The compiler moves no prefetch away from its stripe:
 * together they would wait for each other, and for the stores (a quarter of the time of a conversion). */
WS_STRIPES_INLINE ws_stripe stripe_of(const unsigned char **from, enum ws_conversion c, masks *overflows)
{
    const size_t n = c == WS_SAME_TYPE ? WS_STRIPE : ws_convert_source_bytes(c, WS_STRIPE);
    const unsigned char *p = *from;
    *from += n;
    __asm__ volatile("" ::: "memory");
    __builtin_prefetch(p + XXH_PREFETCH_DIST);
    if (n > WS_STRIPE)
        __builtin_prefetch(p + XXH_PREFETCH_DIST + WS_STRIPE);
    return c == WS_SAME_TYPE ? ws_stripe_load(p) : ws_convert_stripe(p, c, overflows);
}

/* Stores n stripes, at least 5, to an aligned dst, and adds them to the state, whose hash is at a stripe's begin. */
WS_STRIPES_INLINE uint64_t store_stripes(XXH3_state_t *s, unsigned char *to, const unsigned char *from,
                                         size_t n, enum ws_conversion c)
{
    struct ws_lanes l = ws_lanes_resume(s);
    masks overflows = {0};
    ws_stripe stripe;
    for (size_t left = n - 1; left > 0;) { /* the last one may be the last of all */
        if (l.stripe == 0 && left >= WS_STRIPES_OF_KIB) {
#pragma GCC unroll 16
            for (size_t i = 0; i < WS_STRIPES_OF_KIB; i++) {
                stripe = stripe_of(&from, c, &overflows);
                l.lanes = ws_lanes_add(l.lanes, stripe, i);
                ws_stripe_stream(to + i * WS_STRIPE, stripe);
            }
            l.lanes = ws_lanes_scramble(l.lanes);
            to += WS_STRIPES_OF_KIB * WS_STRIPE;
            left -= WS_STRIPES_OF_KIB;
        } else {
            stripe = stripe_of(&from, c, &overflows);
            ws_lanes_next(&l, stripe);
            ws_stripe_stream(to, stripe);
            to += WS_STRIPE;
            left--;
        }
    }
    stripe = stripe_of(&from, c, &overflows);
    ws_stripe_stream(to, stripe);
    ws_lanes_pause(s, &l, stripe, n * WS_STRIPE);
    return sum(overflows);
}

/* A block's stripes are the lines of its memory. Where they are not, as the hash began elsewhere, each piece is hashed,
 * then stored while it is in the first-level cache. */
static void copy_update(void *state, void *dst, const void *src, size_t n)
{
    unsigned char *d = dst;
    const unsigned char *s = src;
    size_t at = to_line(dst, n);
    memcpy(d, s, at);
    (void)XXH3_64bits_update(state, s, at);
    if (ws_lanes_can_resume(state, n - at)) {
        const size_t stripes = (n - at) / WS_STRIPE;
        (void)store_stripes(state, d + at, s + at, stripes, WS_SAME_TYPE);
        at += stripes * WS_STRIPE;
    }
    for (size_t piece; n - at >= LINE_BYTES; at += piece) {
        piece = n - at < PIECE_BYTES ? (n - at) & ~(size_t)(LINE_BYTES - 1) : PIECE_BYTES;
        (void)XXH3_64bits_update(state, s + at, piece);
        (void)stream_lines(d + at, s + at, piece);
    }
    memcpy(d + at, s + at, n - at);
    (void)XXH3_64bits_update(state, s + at, n - at);
}

static size_t convert_update(void *state, enum ws_conversion c, void *dst, const void *src, size_t n,
                             uint64_t *overflows)
{
    n -= n % WS_STRIPE;
    if (!ws_lanes_can_resume(state, n))
        return 0;
    switch (c) {
#define CASE(conversion)                                                                                     \
    case conversion:                                                                                         \
        *overflows += store_stripes(state, dst, src, n / WS_STRIPE, conversion);                             \
        return n
        CASE(WS_F32_TO_BF16);
        CASE(WS_F32_TO_F16);
        CASE(WS_BF16_TO_F32);
        CASE(WS_F16_TO_F32);
        CASE(WS_BF16_TO_F16);
        CASE(WS_F16_TO_BF16);
#undef CASE
    default:
        return 0;
    }
}

/* --- with sums ---
 *
 * Two hashes whose steps begin elsewhere are made in one pass of copying: each line is loaded, stored, and added to
 * both, so that the hashes are made while stores wait for memory. The library's functions take the bytes of a state apart
 * by themselves, so its fields are brought here to where they have taken in whole stripes, and back. */

static inline void next_stripe(uint64_t *acc, size_t *stripe, const unsigned char *p)
{
    XXH3_accumulate_512(acc, p, XXH3_kSecret + *stripe * XXH_SECRET_CONSUME_RATE);
    if (++*stripe == WS_SUM_BYTES / XXH_STRIPE_LEN) {
        XXH3_scrambleAcc(acc, XXH3_kSecret + sizeof(XXH3_kSecret) - XXH_STRIPE_LEN);
        *stripe = 0;
    }
}

/* Has the state take in what it has in its buffer, and of src what lacks to a stripe: returns how much that was. More
 * bytes follow. */
static inline size_t empty_buffer(XXH3_state_t *s, uint64_t *acc, const unsigned char *src)
{
    const size_t lacks = (size_t)-s->bufferedSize % XXH_STRIPE_LEN, n = s->bufferedSize + lacks;
    memcpy(s->buffer + s->bufferedSize, src, lacks);
    for (size_t at = 0; at < n; at += XXH_STRIPE_LEN)
        next_stripe(acc, &s->nbStripesSoFar, s->buffer + at);
    s->bufferedSize = 0;
    return lacks;
}

/* The n bytes at p are behind all that the state has taken in: at least one and at most a stripe, after a stripe. */
static inline void fill_buffer(XXH3_state_t *s, const unsigned char *p, size_t n)
{
    memcpy(s->buffer + sizeof(s->buffer) - XXH_STRIPE_LEN, p - XXH_STRIPE_LEN, XXH_STRIPE_LEN);
    memcpy(s->buffer, p, n);
    s->bufferedSize = (XXH32_hash_t)n;
}

static void copy_sums(void *state, uint64_t *out, void *dst, const void *src, size_t n)
{
    XXH3_state_t *s = state;
    const unsigned char *from = src, *end = from + n * WS_SUM_BYTES;
    unsigned char *to = dst;
    uint64_t acc[WS_SUM_WORDS] __attribute__((aligned(64)));
    if (n == 0)
        return;
    memcpy(acc, s->acc, sizeof(acc));
    const unsigned char *behind = from + empty_buffer(s, acc, from); /* what the state has not taken in */
    size_t stripe = s->nbStripesSoFar;
    for (size_t kib = 0; kib < n; kib++, out += WS_SUM_WORDS) {
        uint64_t sum[WS_SUM_WORDS] __attribute__((aligned(64))) = {0};
        for (size_t i = 0; i < WS_SUM_BYTES / XXH_STRIPE_LEN; i++, from += LINE_BYTES, to += LINE_BYTES) {
            ws_stripe_stream(to, ws_stripe_load(from));
            XXH3_accumulate_512(sum, from, XXH3_kSecret + i * XXH_SECRET_CONSUME_RATE);
            if (kib + i == 0) /* the last stripe is left, or some of it: it may be the last of all */
                continue;
            next_stripe(acc, &stripe, behind);
            behind += XXH_STRIPE_LEN;
        }
        memcpy(out, sum, sizeof(sum));
    }
    memcpy(s->acc, acc, sizeof(acc));
    s->nbStripesSoFar = stripe;
    s->totalLen += n * WS_SUM_BYTES;
    fill_buffer(s, behind, (size_t)(end - behind));
}

static void update(void *state, const void *p, size_t n)
{
    (void)XXH3_64bits_update(state, p, n);
}

static uint64_t hash(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}
