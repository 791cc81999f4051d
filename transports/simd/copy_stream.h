/* The body of a vector version: included by copy_avx2.c and copy_avx512.c, which define XXH_VECTOR and
 * stream_line(dst, src), the non-temporal store of 64 bytes to an aligned address. Each is compiled with
 * its own flags, so that loops and hash use that processor's widest registers.
 *
 * Prefetching a page ahead instead of 512 bytes: measured on Ice Lake, hashing then runs as fast as reading, and copying
 * with hashing at 0.95 of a copy without (0.77 with the library's own distance and pieces of 32 KiB). A
 * prefetch beyond the source's end reads nothing that the program could see, and faults nowhere. */
#define XXH_PREFETCH_DIST 4096
#define XXH_INLINE_ALL    /* so that the hash is built with these flags too */
#include "transports/simd/copy_impl.h"
#include "transports/simd/copy_sums.h"
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
        stream_line(dst + at, src + at);
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

static void copy_update(void *state, void *dst, const void *src, size_t n)
{
    unsigned char *d = dst;
    const unsigned char *s = src;
    size_t at = to_line(dst, n);
    memcpy(d, s, at);
    (void)XXH3_64bits_update(state, s, at);
    for (size_t piece; n - at >= LINE_BYTES; at += piece) {
        piece = n - at < PIECE_BYTES ? (n - at) & ~(size_t)(LINE_BYTES - 1) : PIECE_BYTES;
        (void)XXH3_64bits_update(state, s + at, piece);
        (void)stream_lines(d + at, s + at, piece);
    }
    memcpy(d + at, s + at, n - at);
    (void)XXH3_64bits_update(state, s + at, n - at);
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
            stream_line(to, from);
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
