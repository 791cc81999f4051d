/* ULP distance: how far two versions of a tensor are apart, element by element.
 *
 * In floating-point types the distance of two elements is counted in units in the last place: how many
 * representable numbers lie between them (0 and -0 are the same number but other bits: changed, at distance
 * 0; NaNs and infinities lie behind the largest number). For integers it is the difference. Of types that are
 * packed below a byte, bytes are compared and counted as elements; of complex ones, the two parts. Source:
 * Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic, 1991. */
#ifndef WS_TRANSPORTS_DELTA_ULP_DISTANCE_H
#define WS_TRANSPORTS_DELTA_ULP_DISTANCE_H
#include "transports/base/workers.h"
#include "transports/simd/dtype.h"
#include <stddef.h>

struct ws_ulp_distance {
    uint64_t elements, changed; /* changed: in any bit */
    uint64_t largest;           /* distance */
};
/* One tensor in two versions. */
struct ws_ulp_pair {
    enum ws_dtype dtype;
    const unsigned char *a, *b;
    uint64_t bytes;
    struct ws_ulp_distance out;
};
/* Fills `out` of each pair, on all workers. -ENOMEM. */
WS_MUST_USE int ws_ulp_distances(struct ws_ulp_pair *pairs, size_t n, struct ws_workers *workers);

#endif
