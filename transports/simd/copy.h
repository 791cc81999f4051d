/* Copies of weights: streaming stores that do not pull the destination into the cache, and hashing
 * in the same pass. AVX-512, AVX2 or portable code, chosen once at run time; all give the same bytes.
 * Pure functions over memory, thread safe. Hashes are XXH3-64 (seed 0) of whole blocks. */
#ifndef WS_TRANSPORTS_SIMD_COPY_H
#define WS_TRANSPORTS_SIMD_COPY_H
#include "transports/simd/convert.h"
#include <stddef.h>
#include <stdint.h>

void ws_copy(void *dst, const void *src, size_t n); /* n may be 0; no overlap */
/* For many short copies whose bytes are not read soon: always streams. */
void ws_copy_stream(void *dst, const void *src, size_t n);
/* The same for one of many, and ws_hasher_copy: another thread may see what is stored next before these bytes, until
 * ws_copy_order was called. Waiting after each short copy would take as long as the copies. */
void ws_copy_unordered(void *dst, const void *src, size_t n);
void ws_copy_order(void);
uint64_t ws_hash(const void *p, size_t n);
uint64_t ws_copy_hash(void *dst, const void *src, size_t n);
/* What the hash of a block is joined of (sums.h): a sum of WS_SUM_WORDS words for each of n times WS_SUM_BYTES. */
#define WS_SUM_BYTES    1024
#define WS_SUM_WORDS    8
#define WS_STRIPE_BYTES 64
void ws_hash_sums(uint64_t *out, const void *p, size_t n);
/* Goes on with a hash's state by n sums. Both aligned to WS_STRIPE_BYTES. */
void ws_hash_join(uint64_t *state, const uint64_t *sums, size_t n);
const char *ws_copy_code(void); /* "avx512", "avx2", "portable"; WSYNC_COPY=... overrides for tests */

/* A hash over a transfer's pieces: each is stored where it belongs and hashed in the same pass. */
struct ws_hasher;
struct ws_hasher *ws_hasher_new(void); /* NULL: no memory */
void ws_hasher_reset(struct ws_hasher *h);
void ws_hasher_copy(struct ws_hasher *h, void *dst, const void *src, size_t n);
void ws_hasher_copy_unordered(struct ws_hasher *h, void *dst, const void *src, size_t n);
/* ws_hasher_copy_unordered of n times WS_SUM_BYTES, and their sums, in one pass. dst: aligned to WS_STRIPE_BYTES. */
void ws_hasher_copy_sums(struct ws_hasher *h, uint64_t *out, void *dst, const void *src, size_t n);
/* The same as ws_convert of n elements to a buffer and ws_hasher_copy from there: returns the overflows. dst: aligned to its
 * elements. */
uint64_t ws_hasher_convert(struct ws_hasher *h, enum ws_conversion c, void *dst, const void *src, size_t n);
void ws_hasher_add(struct ws_hasher *h, const void *p, size_t n); /* hashes, without a copy */
uint64_t ws_hasher_digest(const struct ws_hasher *h);
void ws_hasher_free(struct ws_hasher *h);

#endif
