/* What each vector version of the copies provides; copy.c picks one. One stream_copy stores n bytes without
 * pulling dst into the cache and ends with a fence; one digest is XXH3-64 of a whole buffer. */
#ifndef WS_TRANSPORTS_COPY_CODE_H
#define WS_TRANSPORTS_COPY_CODE_H
#include <stddef.h>
#include <stdint.h>

struct ws_hash_state; /* an XXH3 state, 64-byte aligned */
struct ws_copy_code {
    const char *name;
    void (*stream_copy)(void *dst, const void *src, size_t n);
    uint64_t (*hash)(const void *p, size_t n);
    void (*update)(void *state, const void *p, size_t n); /* state: XXH3_state_t */
};
extern const struct ws_copy_code ws_copy_portable, ws_copy_avx2, ws_copy_avx512;

#endif
