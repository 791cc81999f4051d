/* The body of each version: included by compare_page_avx2.c and compare_page_avx512.c, which define
 *   compare_line(z, s, base)   the 32 elements of a stripe and those at base: bit i is set where element i differs, and z[i]
 *                              becomes its zigzagged change less one */
#include "transports/delta/compare_page_impl.h"
#include <string.h>

#define AHEAD    4096
#define KIBS     (WS_LINE_PAGE_BYTES / 1024)
#define ELEMENTS 32 /* of a line */

/* Four at a time whether there are four or not, because a branch on each bit would be guessed wrong too often. */
WS_STRIPES_INLINE size_t emit(uint32_t *at, uint32_t *changes, uint64_t mask, uint32_t first,
                              const uint16_t *z)
{
    const size_t n = (size_t)__builtin_popcountll(mask);
    size_t i = 0;
    do {
        for (size_t k = 0; k < 4; k++) {
            const uint32_t e = (uint32_t)__builtin_ctzll(mask | (uint64_t)1 << 63);
            mask &= mask - 1;
            at[i + k] = first + e;
            changes[i + k] = z[e];
        }
        i += 4;
    } while (__builtin_expect(i < n, 0));
    return n;
}

/* Can the hash go on stripe by stripe, with the page's first at the beginning of a KiB? */
static bool can_resume(const XXH3_state_t *s)
{
    return s->bufferedSize > 0 && s->bufferedSize % WS_STRIPE == 0 &&
           (s->nbStripesSoFar + s->bufferedSize / WS_STRIPE) % WS_STRIPES_OF_KIB == 0;
}

/* The last stripe is not taken in: it may be the last of all. The compiler moves no prefetch away from its line: together
 * they would wait for each other. */
WS_STRIPES_INLINE void pass(XXH3_state_t *s, const struct ws_compare_page *p, uint16_t *z, uint64_t *masks,
                            bool stores)
{
    struct ws_lanes l = ws_lanes_resume(s);
    ws_stripe stripe = l.lanes;
    for (size_t kib = 0; kib < KIBS; kib++) {
        const unsigned char *src = p->src + kib * 1024, *base = p->base + kib * 1024;
#pragma GCC unroll 16
        for (size_t i = 0; i < WS_STRIPES_OF_KIB; i++) {
            const size_t line = kib * WS_STRIPES_OF_KIB + i;
            __asm__ volatile("" ::: "memory");
            __builtin_prefetch(src + i * WS_STRIPE + AHEAD);
            __builtin_prefetch(base + i * WS_STRIPE + AHEAD);
            stripe = ws_stripe_load(src + i * WS_STRIPE);
            if (i + 1 < WS_STRIPES_OF_KIB || kib + 1 < KIBS)
                l.lanes = ws_lanes_add(l.lanes, stripe, i);
            if (stores)
                ws_stripe_stream(p->to + line * WS_STRIPE, stripe);
            const uint64_t mask = compare_line(z + line * ELEMENTS, stripe, base + i * WS_STRIPE);
            masks[line / 2] = i % 2 ? masks[line / 2] | mask << 32 : mask;
        }
        if (kib + 1 < KIBS)
            l.lanes = ws_lanes_scramble(l.lanes);
    }
    l.stripe = WS_STRIPES_OF_KIB - 1;
    ws_lanes_pause(s, &l, stripe, WS_LINE_PAGE_BYTES);
}

static bool compare_page(void *state, struct ws_compare_page *p)
{
    uint16_t z[WS_COMPARE_PAGE_ELEMENTS] __attribute__((aligned(64)));
    uint64_t masks[WS_LINE_PAGE_LINES / 2], lines = 0;
    size_t n = 0;
    if (!can_resume(state))
        return false;
    if (p->to)
        pass(state, p, z, masks, true);
    else
        pass(state, p, z, masks, false);
    for (size_t k = 0; k < WS_LINE_PAGE_LINES / 2; k++) {
        lines |= (uint64_t)((uint32_t)masks[k] != 0) << 2 * k | (uint64_t)(masks[k] >> 32 != 0)
                                                                    << (2 * k + 1);
        n += emit(p->at + n, p->changes + n, masks[k], p->first + (uint32_t)k * 2 * ELEMENTS,
                  z + k * 2 * ELEMENTS);
    }
    p->n = n;
    p->lines = lines;
    return true;
}
