/* The body of each version of the loops over lines: included by lines_portable.c, lines_avx2.c and lines_avx512.c, which
 * define
 *   line_differs(a, b)     do 64 bytes differ? 0 or 1
 *   store_line(dst, src)   the store of 64 bytes to an aligned address */
#include "transports/simd/lines.h"
#include "transports/simd/lines_impl.h"

#define AHEAD 4096 /* as copies do: a page ahead hides the memory's latency */

static uint64_t differ(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    uint64_t lines = 0;
    for (size_t i = 0; i < n; i++, x += WS_LINE_BYTES, y += WS_LINE_BYTES) {
        __builtin_prefetch(y + AHEAD);
        lines |= line_differs(x, y) << i;
    }
    return lines;
}

static void store(void *dst, const void *src, uint64_t lines)
{
    for (; lines; lines &= lines - 1) {
        const size_t at = (size_t)__builtin_ctzll(lines) * WS_LINE_BYTES;
        store_line((unsigned char *)dst + at, (const unsigned char *)src + at);
    }
}
