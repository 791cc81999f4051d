/* Lines: memory by cache lines of 64 bytes, up to 64 of them (a page) as the bits of one word. Which lines differ, and
 * stores of some of them. AVX-512, AVX2 or portable code, chosen once at run time; all give the same. Pure functions
 * over memory, thread safe. */
#ifndef WS_TRANSPORTS_SIMD_LINES_H
#define WS_TRANSPORTS_SIMD_LINES_H
#include <stddef.h>
#include <stdint.h>

#define WS_LINE_BYTES      64
#define WS_LINE_PAGE_LINES 64
#define WS_LINE_PAGE_BYTES (WS_LINE_BYTES * (size_t)WS_LINE_PAGE_LINES)

/* Bit i is set where line i of a and b differs; n: lines, at most WS_LINE_PAGE_LINES. */
uint64_t ws_lines_differ(const void *a, const void *b, size_t n);
/* Copies the lines whose bits are set, by streaming stores. dst: aligned to WS_LINE_BYTES. Another thread may see what is
 * stored next before these bytes, until ws_copy_order was called. */
void ws_lines_store(void *dst, const void *src, uint64_t lines);
const char *ws_lines_code(void); /* "avx512", "avx2", "portable"; WSYNC_COPY=... overrides for tests */

#endif
