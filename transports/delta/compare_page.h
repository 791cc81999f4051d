/* Compare page: a page of elements of one width, hashed, compared with what it was, and stored in one pass over memory. For a
 * caller that does the same by ws_hasher_*, ws_lines_* and ws_delta_block_find_changes where this cannot: it gives the same
 * results. AVX-512 or AVX2. */
#ifndef WS_TRANSPORTS_DELTA_COMPARE_PAGE_H
#define WS_TRANSPORTS_DELTA_COMPARE_PAGE_H
#include "transports/simd/copy.h"
#include "transports/simd/lines.h"
#include <stdbool.h>

struct ws_compare_page {
    struct ws_hasher *hasher; /* takes in the page */
    /* Gets the page, unordered (ws_copy_order); aligned to WS_LINE_BYTES. NULL: nothing is stored. */
    unsigned char *to;
    const unsigned char *src, *base;
    unsigned width; /* 1, 2 or 4 */
    uint32_t first; /* the number of the page's first element */
    /* Places and changes are put here, as by ws_delta_block_find_changes: room for a page and WS_DELTA_SLACK. */
    uint32_t *at, *changes;
    /* out */
    size_t n;
    uint64_t lines; /* that differ */
};
/* false: this processor, or the hash as it stands, cannot: nothing was done. */
bool ws_compare_page(struct ws_compare_page *p);

#endif
