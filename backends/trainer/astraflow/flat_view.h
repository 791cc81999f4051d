/* Buffer: a version as AstraFlow's receivers see it: one buffer, the tensors of all shard files one after
 * another without gaps. The data section of a safetensors file has no gaps either, so the buffer is those
 * sections in the order of the files, and nothing is copied. Any thread, while the version is held. */
#ifndef WS_TRAINER_ASTRAFLOW_FLAT_VIEW_H
#define WS_TRAINER_ASTRAFLOW_FLAT_VIEW_H
#include "transports/protocol/catalog.h"
#include <sys/uio.h>

struct ws_buffer {
    uint64_t total_bytes;
    size_t n_parts;
    struct iovec *parts; /* in the hold's memory */
    char layout[17];     /* equal for equal names, dtypes, shapes and order */
    char alien[256];     /* a tensor whose dtype receivers cannot write, and that dtype; empty: none */
};
/* *meta: tensors_meta of their protocol, [[name, [shape, dtype]], ...]; new reference; NULL: not wanted. */
WS_MUST_USE int ws_buffer_new(struct ws_buffer **out, const struct ws_hold *hold, json_t **meta,
                              struct ws_error *err);
void ws_buffer_free(struct ws_buffer *b); /* NULL is fine */

#endif
