/* Filter: of which blocks a client wants a delta's records, where it has only some blocks of the version (need=). In a request it is
 * text, "GAP.N,GAP.N,...": runs of N blocks, each after GAP others; blocks are counted over all files, from 0, in the
 * order of the target's manifest. It may name more blocks than are wanted, so that it fits into a request. */
#ifndef WS_TRANSPORTS_DELTA_FILTER_H
#define WS_TRANSPORTS_DELTA_FILTER_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WS_DELTA_FILTER_CHARS 6000 /* nginx takes 8 KiB of a request's line */

struct ws_delta_filter;
/* The text of n characters. -EINVAL: it is no filter, or longer than WS_DELTA_FILTER_CHARS; -ENOMEM. The caller frees it. */
WS_MUST_USE int ws_delta_filter_parse(const char *text, size_t n, struct ws_delta_filter **out);
void ws_delta_filter_free(struct ws_delta_filter *f); /* NULL is fine */
bool ws_delta_filter_has(const struct ws_delta_filter *f, uint64_t block);
/* The text for those of n_blocks that are wanted; runs that are close to each other become one where it would be too long.
 * malloc'ed; NULL: no memory. */
char *ws_delta_filter_text(bool (*wants)(void *arg, uint64_t block), void *arg, uint64_t n_blocks);

#endif
