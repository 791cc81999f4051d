/* What each version of the pass over a page provides; compare_page.c chooses one by the processor's features. */
#ifndef WS_TRANSPORTS_DELTA_COMPARE_PAGE_IMPL_H
#define WS_TRANSPORTS_DELTA_COMPARE_PAGE_IMPL_H
#include "transports/delta/compare_page.h"

/* state: the hasher's XXH3_state_t. */
typedef bool ws_compare_page_fn(void *state, struct ws_compare_page *p);
extern ws_compare_page_fn ws_compare_page_avx2, ws_compare_page_avx512;

#endif
