/* Element widths: how wide a file's elements are, extent by extent; a delta compares elements of these widths. */
#ifndef WS_TRANSPORTS_FORMAT_ELEMENT_WIDTHS_H
#define WS_TRANSPORTS_FORMAT_ELEMENT_WIDTHS_H
#include "transports/format/safetensors.h"

/* Elements of one width from `begin` (an offset in the file) to the next extent or the end of the file. */
struct ws_element_width_extent {
    uint64_t begin;
    unsigned width; /* 1, 2 or 4 bytes; wider types are taken as several of 4 */
};
struct ws_element_widths {
    size_t n;
    struct ws_element_width_extent extents[]; /* ascending; the first begins at 0 */
};

/* st NULL: a file that is no safetensors, all bytes. Immutable, may be shared by threads; free() frees it.
 * NULL: no memory. */
struct ws_element_widths *ws_element_widths_new(const struct ws_safetensors *st);
/* The extent that holds the byte at `offset`. */
const struct ws_element_width_extent *ws_element_widths_at(const struct ws_element_widths *w,
                                                           uint64_t offset);

#endif
