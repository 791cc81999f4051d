#include "transports/simd/copy.h"
#include "transports/base/cpu_features.h"
#include "transports/simd/copy_impl.h"
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state as a plain value */
#include <xxhash.h>

#define STAGE_BYTES  4096UL       /* of converted elements */
#define STREAM_BYTES (16UL << 10) /* shorter copies go through the cache: they are read again soon */

const struct ws_copy_code *const ws_copy_codes[] = {
    [WS_PORTABLE] = &ws_copy_portable,
#ifdef WS_HAS_VECTORS
    [WS_AVX2] = &ws_copy_avx2,
    [WS_AVX512] = &ws_copy_avx512,
#endif
};

static const struct ws_copy_code *the_code(void)
{
    static struct ws_cpu_choice choice = {.variable = "WSYNC_COPY"};
    return ws_copy_codes[ws_cpu_choose(&choice)];
}

const char *ws_copy_code(void)
{
    return the_code()->name;
}

void ws_copy(void *dst, const void *src, size_t n)
{
    if (n < STREAM_BYTES) {
        if (n)
            memcpy(dst, src, n);
    } else {
        ws_copy_stream(dst, src, n);
    }
}

void ws_copy_unordered(void *dst, const void *src, size_t n)
{
    if (n > 0)
        the_code()->copy(dst, src, n);
}

void ws_copy_order(void)
{
    the_code()->order();
}

void ws_copy_stream(void *dst, const void *src, size_t n)
{
    ws_copy_unordered(dst, src, n);
    ws_copy_order();
}

uint64_t ws_hash(const void *p, size_t n)
{
    return the_code()->hash(p, n);
}

void ws_hash_sums(uint64_t *out, const void *p, size_t n)
{
    the_code()->sums(out, p, n);
}

void ws_hash_join(uint64_t *state, const uint64_t *sums, size_t n)
{
    the_code()->join(state, sums, n);
}

struct ws_hasher {
    XXH3_state_t state;
};

struct ws_hasher *ws_hasher_new(void)
{
    struct ws_hasher *h = aligned_alloc(64, (sizeof(*h) + 63) & ~63UL);
    if (h)
        ws_hasher_reset(h);
    return h;
}

void *ws_hasher_state(struct ws_hasher *h)
{
    return &h->state;
}

void ws_hasher_reset(struct ws_hasher *h)
{
    XXH3_INITSTATE(&h->state);
    (void)XXH3_64bits_reset(&h->state);
}

void ws_hasher_copy_unordered(struct ws_hasher *h, void *dst, const void *src, size_t n)
{
    if (n > 0)
        the_code()->copy_update(&h->state, dst, src, n);
}

void ws_hasher_copy_sums(struct ws_hasher *h, uint64_t *out, void *dst, const void *src, size_t n)
{
    assert((uintptr_t)dst % WS_STRIPE_BYTES == 0);
    the_code()->copy_sums(&h->state, out, dst, src, n);
}

void ws_hasher_copy(struct ws_hasher *h, void *dst, const void *src, size_t n)
{
    ws_hasher_copy_unordered(h, dst, src, n);
    ws_copy_order();
}

/* By way of the first-level cache. */
static uint64_t convert_staged(struct ws_hasher *h, enum ws_conversion c, unsigned char *dst,
                               const unsigned char *src, size_t n)
{
    unsigned char stage[STAGE_BYTES] __attribute__((aligned(64)));
    const size_t in = ws_conversion_src_bytes(c), out = ws_conversion_dst_bytes(c), most = STAGE_BYTES / out;
    uint64_t overflows = 0;
    for (size_t part; n > 0; n -= part, src += part * in, dst += part * out) {
        part = n < most ? n : most;
        overflows += ws_convert(c, stage, src, part);
        ws_hasher_copy_unordered(h, dst, stage, part * out);
    }
    return overflows;
}

uint64_t ws_hasher_convert(struct ws_hasher *h, enum ws_conversion c, void *dst, const void *src, size_t n)
{
    const size_t in = ws_conversion_src_bytes(c), out = ws_conversion_dst_bytes(c);
    const size_t to_line = (size_t)(-(uintptr_t)dst % WS_STRIPE_BYTES) / out,
                 head = n < to_line ? n : to_line;
    unsigned char *to = dst;
    const unsigned char *from = src;
    assert((uintptr_t)dst % out == 0);
    uint64_t overflows = convert_staged(h, c, to, from, head);
    const size_t done = head + the_code()->convert_update(&h->state, c, to + head * out, from + head * in,
                                                          (n - head) * out, &overflows) /
                                   out;
    overflows += convert_staged(h, c, to + done * out, from + done * in, n - done);
    ws_copy_order();
    return overflows;
}

void ws_hasher_add(struct ws_hasher *h, const void *p, size_t n)
{
    the_code()->update(&h->state, p, n);
}

uint64_t ws_hasher_digest(const struct ws_hasher *h)
{
    return XXH3_64bits_digest(&h->state);
}

void ws_hasher_free(struct ws_hasher *h)
{
    free(h);
}

uint64_t ws_copy_hash(void *dst, const void *src, size_t n)
{
    struct ws_hasher h __attribute__((aligned(64)));
    ws_hasher_reset(&h);
    ws_hasher_copy(&h, dst, src, n);
    return ws_hasher_digest(&h);
}
