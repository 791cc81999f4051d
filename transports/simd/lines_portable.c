/* Loops over lines for any processor. */
#include <stdint.h>
#include <string.h>

static inline uint64_t line_differs(const unsigned char *a, const unsigned char *b)
{
    uint64_t x[8], y[8], any = 0;
    memcpy(x, a, sizeof(x));
    memcpy(y, b, sizeof(y));
    for (unsigned i = 0; i < 8; i++)
        any |= x[i] ^ y[i];
    return any != 0;
}

static inline void store_line(unsigned char *dst, const unsigned char *src)
{
    memcpy(dst, src, 64);
}

#include "transports/simd/lines_loops.h"

const struct ws_lines_code ws_lines_portable = {"portable", differ, store};
