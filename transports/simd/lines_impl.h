/* What each version of the loops over lines provides; lines.c chooses one by the processor's features. */
#ifndef WS_TRANSPORTS_SIMD_LINES_IMPL_H
#define WS_TRANSPORTS_SIMD_LINES_IMPL_H
#include <stddef.h>
#include <stdint.h>

struct ws_lines_code {
    const char *name;
    uint64_t (*differ)(const void *a, const void *b, size_t n);
    void (*store)(void *dst, const void *src, uint64_t lines);
};
extern const struct ws_lines_code ws_lines_portable, ws_lines_avx2, ws_lines_avx512;
extern const struct ws_lines_code *const ws_lines_codes[]; /* by enum ws_vector */

#endif
