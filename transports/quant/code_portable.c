/* The quantising loops for any processor: vectors of four, which compilers take apart where there are none. */
#define LANES 4
#include "transports/quant/code_vectors.h"
#include "transports/simd/convert_bits.h"

static inline words words_of(halves h)
{
    words w = {0};
    for (int i = 0; i < LANES; i++)
        w[i] = ws_f32_from_f16(h[i]);
    return w;
}

static inline halves halves_of(words w)
{
    halves h = {0};
    for (int i = 0; i < LANES; i++)
        h[i] = ws_f16_from_f32(w[i]);
    return h;
}

static inline bytes bytes_of(words w)
{
    return __builtin_convertvector(w, bytes);
}

static inline pair_bytes pair_bytes_of(pair x)
{
    return __builtin_convertvector(x, pair_bytes);
}

static inline words larger(words a, words b)
{
    const words which = (words)(a > b);
    return (which & a) | (~which & b);
}

static inline words smaller(words a, words b)
{
    const words which = (words)(a < b);
    return (which & a) | (~which & b);
}

static inline floats within(floats x, floats least, floats most)
{
    const words above = (words)(x > most), below = (words)(x < least);
    return (floats)(((words)most & above) | ((words)least & below) | ((words)x & ~(above | below)));
}

static inline pair larger_halves(pair a, pair b)
{
    const pair which = (pair)(a > b);
    return (which & a) | (~which & b);
}

static inline uint32_t largest_half(pair x)
{
    uint32_t found = 0;
    for (int i = 0; i < 2 * LANES; i++)
        found = x[i] > found ? x[i] : found;
    return found;
}

#include "transports/quant/code_loops.h"

const struct ws_quant_code ws_quant_portable = WS_QUANT_CODE("portable");
