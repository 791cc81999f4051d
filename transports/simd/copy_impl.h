/* What each version of the copies provides; copy.c chooses one by the processor's features. */
#ifndef WS_TRANSPORTS_SIMD_COPY_IMPL_H
#define WS_TRANSPORTS_SIMD_COPY_IMPL_H
#include "transports/simd/convert.h"
#include <stddef.h>
#include <stdint.h>

struct ws_copy_code {
    const char *name;
    /* Stores n bytes without pulling dst into the cache; ordered before what the thread stores after order(). */
    void (*copy)(void *dst, const void *src, size_t n);
    uint64_t (*hash)(const void *p, size_t n); /* XXH3-64, seed 0 */
    void (*update)(void *state, const void *p, size_t n);
    /* Copies and adds the bytes to state, an XXH3_state_t, in one pass over memory. */
    void (*copy_update)(void *state, void *dst, const void *src, size_t n);
    void (*order)(void);
    void (*sums)(uint64_t *out, const void *p, size_t n);          /* ws_hash_sums */
    void (*join)(uint64_t *state, const uint64_t *sums, size_t n); /* ws_hash_join */
    /* copy_update and sums of n times WS_SUM_BYTES, dst being aligned to WS_STRIPE_BYTES. */
    void (*copy_sums)(void *state, uint64_t *out, void *dst, const void *src, size_t n);
    /* copy_update of elements that are converted: n bytes of dst, which is aligned to WS_STRIPE_BYTES. Returns how many it
     * has done, a multiple of WS_STRIPE_BYTES or 0, as it is not for every conversion, state and n. Adds the elements that
     * overflowed to *overflows. */
    size_t (*convert_update)(void *state, enum ws_conversion c, void *dst, const void *src, size_t n,
                             uint64_t *overflows);
};
/* The XXH3_state_t of a hasher, for a pass that goes on with it (stripes.h). */
struct ws_hasher;
void *ws_hasher_state(struct ws_hasher *h);
extern const struct ws_copy_code ws_copy_portable, ws_copy_avx2, ws_copy_avx512;
extern const struct ws_copy_code *const ws_copy_codes[]; /* by enum ws_vector */

#endif
