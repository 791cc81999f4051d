/* Share: what the ranks of one node write, laid out as a version of its own (transports/format/node_part.h),
 * where a trainer spans several nodes. */
#ifndef WS_TRAINER_TENSOR_NODE_PLACEMENT_H
#define WS_TRAINER_TENSOR_NODE_PLACEMENT_H
#include "backends/trainer/tensor/placement.h"

/* whole: of all ranks, made of regs just now. node_of[rank]: the node that each rank is on; this node is
 * `index` of `count`. In the entries of this node's ranks file_index, tensor.begin and writes become those of
 * the share: each piece that is written is a dense tensor there. */
WS_MUST_USE int ws_share_make(const struct ws_placement *whole, struct ws_registration *const *regs,
                              unsigned world_size, const unsigned *node_of, unsigned index, unsigned count,
                              struct ws_placement **out, struct ws_error *err);

#endif
