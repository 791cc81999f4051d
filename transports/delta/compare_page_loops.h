/* The body of each version: included by compare_page_avx2.c and compare_page_avx512.c, each compiled with its own flags. */
#include "transports/delta/block_emit.h"
#include "transports/delta/block_stripe.h"
#include "transports/delta/compare_page_impl.h"
#include <string.h>

#define AHEAD 4096
#define KIBS  (WS_LINE_PAGE_BYTES / 1024)

/* Can the hash go on stripe by stripe, with the page's first at the beginning of a KiB? */
static bool can_resume(const XXH3_state_t *s)
{
    return s->bufferedSize > 0 && s->bufferedSize % WS_STRIPE == 0 &&
           (s->nbStripesSoFar + s->bufferedSize / WS_STRIPE) % WS_STRIPES_OF_KIB == 0;
}

/* 64 elements are as many stripes as an element has bytes. The last stripe is not taken in: it may be the last of all. The
 * compiler moves no prefetch away from its line: together they would wait for each other. width, stores: constants. */
WS_STRIPES_INLINE void pass(XXH3_state_t *s, struct ws_compare_page *p, unsigned width, bool stores)
{
    unsigned char z[WS_DELTA_AT_ONCE * 4] __attribute__((aligned(64)));
    struct ws_lanes l = ws_lanes_resume(s);
    ws_stripe stripe = l.lanes;
    uint64_t lines = 0, mask = 0;
    size_t n = 0;
    for (size_t kib = 0; kib < KIBS; kib++) {
        const unsigned char *src = p->src + kib * 1024, *base = p->base + kib * 1024;
        unsigned char *to = stores ? p->to + kib * 1024 : NULL;
        const uint32_t first = p->first + (uint32_t)(kib * 1024 / width);
#pragma GCC unroll 16
        for (size_t i = 0; i < WS_STRIPES_OF_KIB; i++) {
            __asm__ volatile("" ::: "memory");
            __builtin_prefetch(src + i * WS_STRIPE + AHEAD);
            __builtin_prefetch(base + i * WS_STRIPE + AHEAD);
            stripe = ws_stripe_load(src + i * WS_STRIPE);
            if (i + 1 < WS_STRIPES_OF_KIB || kib + 1 < KIBS)
                l.lanes = ws_lanes_add(l.lanes, stripe, i);
            if (stores)
                ws_stripe_stream(to + i * WS_STRIPE, stripe);
            const ws_stripe old = ws_stripe_load(base + i * WS_STRIPE);
            const size_t k = i % width;
            const uint64_t differ = ws_stripe_differ(old, stripe, width);
            ws_stripe_store(z + k * WS_STRIPE, ws_stripe_changes(old, stripe, width));
            lines |= (uint64_t)(differ != 0) << (kib * WS_STRIPES_OF_KIB + i);
            mask = k == 0 ? differ : mask | differ << k * (WS_DELTA_AT_ONCE / width);
            if (k + 1 == width)
                n += ws_delta_emit(p->at + n, p->changes + n, mask,
                                   first + (uint32_t)(i / width * WS_DELTA_AT_ONCE), z, width);
        }
        if (kib + 1 < KIBS)
            l.lanes = ws_lanes_scramble(l.lanes);
    }
    l.stripe = WS_STRIPES_OF_KIB - 1;
    ws_lanes_pause(s, &l, stripe, WS_LINE_PAGE_BYTES);
    p->n = n;
    p->lines = lines;
}

static bool compare_page(void *state, struct ws_compare_page *p)
{
    if (!can_resume(state))
        return false;
    switch (p->width * 2 + (p->to != NULL)) {
#define CASE(width)                                                                                          \
    case (width)*2:                                                                                          \
        pass(state, p, width, false);                                                                        \
        return true;                                                                                         \
    case (width)*2 + 1:                                                                                      \
        pass(state, p, width, true);                                                                         \
        return true
        CASE(1);
        CASE(2);
        CASE(4);
#undef CASE
    default:
        return false;
    }
}
