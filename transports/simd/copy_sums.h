/* The sums of each version of the copies, by the steps that the library's functions are made of: included with
 * XXH_INLINE_ALL and XXH_VECTOR defined. */
#include "transports/simd/copy.h"
#include <string.h>
#include <xxhash.h>

static void sums(uint64_t *out, const void *p, size_t n)
{
    const unsigned char *s = p;
    for (size_t kib = 0; kib < n; kib++, out += WS_SUM_WORDS, s += WS_SUM_BYTES) {
        uint64_t sum[WS_SUM_WORDS] __attribute__((aligned(64))) = {0};
        for (size_t i = 0; i < WS_SUM_BYTES / XXH_STRIPE_LEN; i++)
            XXH3_accumulate_512(sum, s + i * XXH_STRIPE_LEN, XXH3_kSecret + i * XXH_SECRET_CONSUME_RATE);
        memcpy(out, sum, sizeof(sum));
    }
}

/* All words of a sum: as wide as the library's steps, whose stores it follows. */
typedef uint64_t sum_words __attribute__((vector_size(WS_SUM_WORDS * sizeof(uint64_t)), may_alias));

static void join(uint64_t *state, const uint64_t *sums, size_t n)
{
    sum_words here = *(const sum_words *)(const void *)state;
    const sum_words *sum = (const sum_words *)(const void *)sums;
    for (size_t i = 0; i < n; i++) {
        here += sum[i];
        XXH3_scrambleAcc(&here, XXH3_kSecret + sizeof(XXH3_kSecret) - XXH_STRIPE_LEN);
    }
    *(sum_words *)(void *)state = here;
}
