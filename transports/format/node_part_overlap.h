/* Overlap: do any two pieces of parts have an element of a tensor in common? Pieces are sorted; where the
 * intervals of some meet, each marks its elements in a bitmap of that interval. So even for hostile input the time is that of copying the pieces, and never that of comparing all with all.
 */
#ifndef WS_TRANSPORTS_FORMAT_NODE_PART_OVERLAP_H
#define WS_TRANSPORTS_FORMAT_NODE_PART_OVERLAP_H
#include "transports/format/node_part.h"
#include <stdatomic.h>

/* A piece that is not empty and lies in its tensor. */
struct ws_node_part_span {
    const struct ws_tensor *tensor;
    const struct ws_node_part_piece *piece;
    const char *from; /* for people: whose piece it is */
    uint64_t begin,
        end; /* ws_node_part_span_init: its first element in the flattened tensor, and behind its last */
};
struct ws_node_part_span ws_node_part_span_init(const struct ws_tensor *t, const struct ws_node_part_piece *p,
                                                const char *from);
/* Puts them into another order. -EBADMSG: two overlap, with their tensor's name, and whose one of them is; -ECANCELED: *stop, which may
 * be NULL. */
WS_MUST_USE int ws_node_part_check_overlap(struct ws_node_part_span *laid, size_t n, const atomic_bool *stop,
                                           struct ws_error *err);

#endif
