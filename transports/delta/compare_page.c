#include "transports/delta/compare_page.h"
#include "transports/base/cpu_features.h"
#include "transports/delta/compare_page_impl.h"
#include "transports/simd/copy_impl.h"
#include <assert.h>
#include <stddef.h>

bool ws_compare_page(struct ws_compare_page *p)
{
    static ws_compare_page_fn *const codes[] = {
        [WS_PORTABLE] = NULL,
#ifdef WS_HAS_VECTORS
        [WS_AVX2] = ws_compare_page_avx2,
        [WS_AVX512] = ws_compare_page_avx512,
#endif
    };
    static struct ws_cpu_choice choice = {.variable = "WSYNC_DELTA"};
    ws_compare_page_fn *code = codes[ws_cpu_choose(&choice)];
    assert(!p->to || (uintptr_t)p->to % WS_LINE_BYTES == 0);
    return code && code(ws_hasher_state(p->hasher), p);
}
