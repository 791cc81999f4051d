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
    _mm_sfence();
    memcpy((unsigned char *)dst + at, (const unsigned char *)src + at, n - at);
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
    _mm_sfence();
    memcpy(d + at, s + at, n - at);
    (void)XXH3_64bits_update(state, s + at, n - at);
}

static void update(void *state, const void *p, size_t n)
{
    (void)XXH3_64bits_update(state, p, n);
}

static uint64_t hash(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}
