/* Copies for any processor. */
#define XXH_INLINE_ALL
#include "transports/copy_code.h"
#include <string.h>
#include <xxhash.h>

static void stream_copy(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n);
}

static uint64_t hash(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

static void update(void *state, const void *p, size_t n)
{
    (void)XXH3_64bits_update(state, p, n);
}

const struct ws_copy_code ws_copy_portable = {"portable", stream_copy, hash, update};
