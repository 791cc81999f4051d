#include "transports/simd/lines.h"
#include "transports/base/cpu_features.h"
#include "transports/simd/lines_impl.h"
#include <assert.h>

const struct ws_lines_code *const ws_lines_codes[] = {
    [WS_PORTABLE] = &ws_lines_portable,
#ifdef WS_HAS_VECTORS
    [WS_AVX2] = &ws_lines_avx2,
    [WS_AVX512] = &ws_lines_avx512,
#endif
};

static const struct ws_lines_code *the_code(void)
{
    static struct ws_cpu_choice choice = {.variable = "WSYNC_COPY"};
    return ws_lines_codes[ws_cpu_choose(&choice)];
}

const char *ws_lines_code(void)
{
    return the_code()->name;
}

uint64_t ws_lines_differ(const void *a, const void *b, size_t n)
{
    assert(n <= WS_LINE_PAGE_LINES);
    return the_code()->differ(a, b, n);
}

void ws_lines_store(void *dst, const void *src, uint64_t lines)
{
    assert((uintptr_t)dst % WS_LINE_BYTES == 0);
    the_code()->store(dst, src, lines);
}
