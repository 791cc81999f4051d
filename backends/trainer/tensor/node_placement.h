/* Node placement: where a trainer spans several nodes, what the ranks of one node write, laid out as a
 * version of its own (transports/format/node_part.h). Pure functions. */
#ifndef WS_TRAINER_TENSOR_NODE_PLACEMENT_H
#define WS_TRAINER_TENSOR_NODE_PLACEMENT_H
#include "backends/trainer/tensor/placement.h"

/* whole: the placement of all ranks, just made from regs. node_of[rank]: the node of each rank; this node is
 * `index` of `count`. Sets file_index, tensor.begin and writes in the entries of this node's ranks to those
 * of the node's placement, where each written piece is a dense tensor. */
WS_MUST_USE int ws_node_placement_make(const struct ws_placement *whole, struct ws_registration *const *regs,
                                       unsigned world_size, const unsigned *node_of, unsigned index,
                                       unsigned count, struct ws_placement **out, struct ws_error *err);

#endif
