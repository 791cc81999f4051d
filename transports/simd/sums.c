#include "transports/simd/sums.h"
#include "transports/base/limits.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL /* for the steps that its functions are made of */
#include <xxhash.h>

#define KIBS (WS_BLOCK_BYTES / WS_SUM_BYTES)

struct ws_sums {
    uint64_t of[KIBS][WS_SUM_WORDS] __attribute__((aligned(64)));
    atomic_uchar known[KIBS]; /* bytes, as a locked instruction would wait for streaming stores to end */
};

/* The kernel gives it zeroed, so nothing is known of any block; page by page it would take as long as hashing a block. */
struct ws_sums *ws_sums_new(unsigned n)
{
    const size_t len = n * sizeof(struct ws_sums);
    struct ws_sums *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (all == MAP_FAILED)
        return NULL;
    (void)madvise(all, len, MADV_HUGEPAGE);
    return all;
}

struct ws_sums *ws_sums_at(struct ws_sums *all, unsigned i)
{
    return &all[i];
}

void ws_sums_free(struct ws_sums *all, unsigned n)
{
    if (all)
        (void)munmap(all, n * sizeof(*all));
}

static void mark(struct ws_sums *s, size_t kib, bool known)
{
    atomic_store_explicit(&s->known[kib], known, memory_order_relaxed);
}

static bool is_known(const struct ws_sums *s, size_t kib)
{
    return atomic_load_explicit(&s->known[kib], memory_order_relaxed);
}

void ws_sums_reset(struct ws_sums *s)
{
    for (size_t i = 0; i < KIBS; i++)
        atomic_init(&s->known[i], false);
}

/* Of a KiB that is changed in part nothing is known. */
void ws_sums_add(struct ws_sums *s, size_t at, const void *bytes, size_t n)
{
    const size_t end = at + n, first = (at + WS_SUM_BYTES - 1) / WS_SUM_BYTES, last = end / WS_SUM_BYTES;

    if (n == 0)
        return;
    assert(end <= WS_BLOCK_BYTES);
    if (at % WS_SUM_BYTES)
        mark(s, at / WS_SUM_BYTES, false);
    if (end % WS_SUM_BYTES)
        mark(s, last, false);
    if (first < last)
        ws_hash_sums(s->of[first], (const unsigned char *)bytes + (first * WS_SUM_BYTES - at), last - first);
    for (size_t kib = first; kib < last; kib++)
        mark(s, kib, true);
}

/* --- copies --- */

static size_t hold(struct ws_sums_seam *m, const unsigned char *p, size_t n)
{
    const size_t lacks = WS_SUM_BYTES - m->has, here = n < lacks ? n : lacks;

    memcpy(m->bytes + m->has, p, here);
    m->has += here;
    return here;
}

void ws_sums_flush(struct ws_sums_seam *seam, struct ws_hasher *h)
{
    if (!seam->of)
        return;
    if (seam->has == WS_SUM_BYTES)
        ws_hasher_copy_sums(h, seam->of->of[seam->kib], seam->to, seam->bytes, 1);
    else
        ws_hasher_copy_unordered(h, seam->to, seam->bytes, seam->has);
    mark(seam->of, seam->kib, seam->has == WS_SUM_BYTES);
    seam->of = NULL;
}

/* Has what is held go on with the n bytes of the block from `at` on, or copies it. Returns how many of them it took. */
static size_t go_on(struct ws_sums *s, struct ws_sums_seam *seam, struct ws_hasher *h, size_t at,
                    const unsigned char *p, size_t n)
{
    size_t took = 0;

    if (seam->of == s && seam->kib * WS_SUM_BYTES + seam->has == at)
        took = hold(seam, p, n);
    if (took == 0 || seam->has == WS_SUM_BYTES)
        ws_sums_flush(seam, h);
    return took;
}

void ws_sums_copy(struct ws_sums *s, struct ws_sums_seam *seam, struct ws_hasher *h, size_t at, void *dst,
                  const void *src, size_t n)
{
    const unsigned char *p = src;
    unsigned char *to = dst;

    assert(at + n <= WS_BLOCK_BYTES);
    if (n == 0)
        return;
    const size_t took = seam->of ? go_on(s, seam, h, at, p, n) : 0;
    at += took;
    p += took;
    to += took;
    n -= took;
    const size_t lacks = (size_t)-at % WS_SUM_BYTES, head = n < lacks ? n : lacks,
                 kibs = (n - head) / WS_SUM_BYTES, first = (at + head) / WS_SUM_BYTES,
                 middle = kibs * WS_SUM_BYTES, tail = n - head - middle;
    if (head > 0) { /* its KiB began otherwise */
        ws_hasher_copy_unordered(h, to, p, head);
        mark(s, at / WS_SUM_BYTES, false);
    }
    if (kibs > 0)
        ws_hasher_copy_sums(h, s->of[first], to + head, p + head, kibs);
    for (size_t i = 0; i < kibs; i++)
        mark(s, first + i, true);
    if (tail > 0) {
        seam->of = s;
        seam->kib = first + kibs;
        seam->has = 0;
        seam->to = to + head + middle;
        (void)hold(seam, p + head + middle, tail);
    }
}

uint64_t ws_sums_hash(const struct ws_sums *s, const void *block, size_t len)
{
    const unsigned char *p = block;
    uint64_t state[WS_SUM_WORDS] __attribute__((aligned(64))) = XXH3_INIT_ACC;

    if (len <= WS_SUM_BYTES)
        return ws_hash(block, len);
    const size_t full = (len - 1) / WS_SUM_BYTES; /* the last byte is always in the rest */
    for (size_t kib = 0; kib < full; kib++) {
        const size_t first = kib;
        while (kib < full && is_known(s, kib))
            kib++;
        ws_hash_join(state, s->of[first], kib - first);
        if (kib == full)
            break;
        uint64_t again[WS_SUM_WORDS] __attribute__((aligned(64)));
        ws_hash_sums(again, p + kib * WS_SUM_BYTES, 1);
        ws_hash_join(state, again, 1);
    }
    const size_t stripes = (len - 1 - full * WS_SUM_BYTES) / XXH_STRIPE_LEN;
    for (size_t i = 0; i < stripes; i++)
        XXH3_accumulate_512(state, p + full * WS_SUM_BYTES + i * XXH_STRIPE_LEN,
                            XXH3_kSecret + i * XXH_SECRET_CONSUME_RATE);
    XXH3_accumulate_512(state, p + len - XXH_STRIPE_LEN,
                        XXH3_kSecret + sizeof(XXH3_kSecret) - XXH_STRIPE_LEN - XXH_SECRET_LASTACC_START);
    return XXH3_mergeAccs(state, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, (uint64_t)len * XXH_PRIME64_1);
}
