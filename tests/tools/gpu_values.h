/* The value of an element of a version: gpu_rank fills with it, gpu_reader compares with it. */
#ifndef WS_TOOLS_GPU_VALUES_H
#define WS_TOOLS_GPU_VALUES_H
#include "tests/fixtures/unwatched.h"
#include <stdint.h>
#include <string.h>

/* width: of the element in memory. widened: the F32 whose conversion gives the 2-byte element. */
UNWATCHED static inline void gpu_value(void *out, uint64_t width, uint64_t version, uint64_t i, int widened)
{
    const uint16_t v16 = (uint16_t)((i * 31 + version * 7 + (i >> 9)) & 0x3FFF); /* finite as any float */
    const uint32_t v32 = widened ? (uint32_t)v16 << 16 : v16 * 65537U;
    if (width == 1)
        *(uint8_t *)out = (uint8_t)(v16 ^ v16 >> 7);
    else if (width == 2)
        memcpy(out, &v16, 2);
    else
        memcpy(out, &v32, 4);
}

#endif
