/* The delta's loops with vectors: included by block_avx2.c and block_avx512.c. */
#include "transports/delta/block_packing_vector.h"
#include "transports/delta/block_stripe.h"

WS_STRIPES_INLINE uint64_t differing(const unsigned char *a, const unsigned char *b, unsigned width)
{
    uint64_t mask = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < width; i++)
        mask |= ws_stripe_differ(ws_stripe_load(a + i * WS_STRIPE), ws_stripe_load(b + i * WS_STRIPE), width)
                << i * (WS_STRIPE / width);
    return mask;
}

WS_STRIPES_INLINE uint64_t compared(unsigned char *z, const unsigned char *a, const unsigned char *b,
                                    unsigned width)
{
    uint64_t mask = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < width; i++) {
        const ws_stripe x = ws_stripe_load(a + i * WS_STRIPE), y = ws_stripe_load(b + i * WS_STRIPE);
        mask |= ws_stripe_differ(x, y, width) << i * (WS_STRIPE / width);
        ws_stripe_store(z + i * WS_STRIPE, ws_stripe_changes(x, y, width));
    }
    return mask;
}

#include "transports/delta/block_loops.h"
