/* The pass over a page with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include "transports/delta/compare_page_loops.h"

bool ws_compare_page_avx2(void *state, struct ws_compare_page *p)
{
    return compare_page(state, p);
}
#endif
