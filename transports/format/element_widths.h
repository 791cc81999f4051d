/* Widths: how wide the elements of a file are, place by place, which is how a delta compares them. */
#ifndef WS_TRANSPORTS_FORMAT_ELEMENT_WIDTHS_H
#define WS_TRANSPORTS_FORMAT_ELEMENT_WIDTHS_H
#include "transports/format/safetensors.h"

/* Elements of one width from `begin` (an offset in the file) to the next run or the end of the file. */
struct ws_width_run {
    uint64_t begin;
    unsigned width; /* 1, 2 or 4 bytes; wider types are taken as several of 4 */
};
struct ws_widths {
    size_t n;
    struct ws_width_run runs[]; /* ascending; the first begins at 0 */
};

/* st NULL: a file that is no safetensors, all bytes. Immutable, may be shared by threads; free() frees it.
 * NULL: no memory. */
struct ws_widths *ws_widths_new(const struct ws_safetensors *st);
/* The run that the byte at `offset` belongs to. */
const struct ws_width_run *ws_widths_at(const struct ws_widths *w, uint64_t offset);

#endif
