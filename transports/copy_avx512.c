/* Copies with AVX-512: built with its compiler flags, called only where the processor has it. */
#include "transports/copy_code.h"
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 3 /* XXH_AVX512 */
#define XXH_INLINE_ALL
#include <immintrin.h>
#include <string.h>
#include <xxhash.h>

static void stream_copy(void *dst, const void *src, size_t n)
{
    unsigned char *d = dst;
    const unsigned char *s = src;
    size_t head = (size_t)(-(uintptr_t)d & 63);
    if (n < 256) {
        memcpy(d, s, n);
        return;
    }
    memcpy(d, s, head);
    d += head;
    s += head;
    n -= head;
    for (; n >= 256; n -= 256, d += 256, s += 256) {
        for (size_t i = 0; i < 256; i += 64) {
            __m512i x = _mm512_loadu_si512(s + i);
            _mm512_stream_si512((void *)(d + i), x);
        }
    }
    _mm_sfence();
    memcpy(d, s, n);
}

static uint64_t hash(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

static void update(void *state, const void *p, size_t n)
{
    (void)XXH3_64bits_update(state, p, n);
}

const struct ws_copy_code ws_copy_avx512 = {"avx512", stream_copy, hash, update};
#endif
