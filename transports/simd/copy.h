/* Copies of weights: streaming stores that do not pull the destination into the cache, and hashing
 * in the same pass. AVX-512, AVX2 or portable code, chosen once at run time; all give the same bytes.
 * Pure functions over memory, thread safe. Hashes are XXH3-64 (seed 0) of whole blocks. */
#ifndef WS_TRANSPORTS_SIMD_COPY_H
#define WS_TRANSPORTS_SIMD_COPY_H
#include <stddef.h>
#include <stdint.h>

void ws_copy(void *dst, const void *src, size_t n); /* n may be 0; no overlap */
/* For many short copies whose bytes are not read soon: always streams. */
void ws_copy_stream(void *dst, const void *src, size_t n);
uint64_t ws_hash(const void *p, size_t n);
uint64_t ws_copy_hash(void *dst, const void *src, size_t n);
const char *ws_copy_code(void); /* "avx512", "avx2", "portable"; WSYNC_COPY=... overrides for tests */

/* A hash over a transfer's pieces: each is stored where it belongs and hashed in the same pass. */
struct ws_hasher;
struct ws_hasher *ws_hasher_new(void); /* NULL: no memory */
void ws_hasher_reset(struct ws_hasher *h);
void ws_hasher_copy(struct ws_hasher *h, void *dst, const void *src, size_t n);
void ws_hasher_add(struct ws_hasher *h, const void *p, size_t n); /* hashes, without a copy */
uint64_t ws_hasher_digest(const struct ws_hasher *h);
void ws_hasher_free(struct ws_hasher *h);

#endif
