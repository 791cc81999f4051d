/* Flat view: a version as AstraFlow's receivers see it: one buffer, the tensors of all shard files one after
 * another without gaps. The data section of a safetensors file has no gaps either, so the view is those
 * sections in the order of the files, and nothing is copied. Any thread, while the version is leased. */
#ifndef WS_TRAINER_ASTRAFLOW_FLAT_VIEW_H
#define WS_TRAINER_ASTRAFLOW_FLAT_VIEW_H
#include "transports/protocol/catalog.h"
#include <sys/uio.h>

struct ws_flat_view {
    uint64_t total_bytes;
    size_t n_parts;
    struct iovec *parts;   /* in the lease's memory */
    char layout[17];       /* equal for equal names, dtypes, shapes and order */
    char unsupported[256]; /* a tensor whose dtype receivers cannot write, and that dtype; empty: none */
};
/* *meta: tensors_meta of their protocol, [[name, [shape, dtype]], ...]; new reference; NULL: not wanted. */
WS_MUST_USE int ws_flat_view_new(struct ws_flat_view **out, const struct ws_lease *lease, json_t **meta,
                                 struct ws_error *err);
void ws_flat_view_free(struct ws_flat_view *b); /* NULL is fine */

#endif
