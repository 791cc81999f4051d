/* Neighbours: the mounts of other nodes that an engine of ours reads (an engine that spans nodes reads each
 * node's own mount). They are asked by way of the agent to fetch a version, and must have it before the
 * engine is paused. */
#ifndef WS_FS_SWITCH_PEER_MOUNTS_H
#define WS_FS_SWITCH_PEER_MOUNTS_H
#include "fs/switch/switch.h"

/* Until every mount that engines of the model name (mounts=) has the version, complete. -ETIMEDOUT, -EINTR,
 * -ECANCELED, with which one has not; -EREMOTEIO: one cannot; -ENOENT: no source of the model is an agent. */
WS_MUST_USE int ws_neighbours_wait(struct ws_control *c, const struct ws_switch_part *p,
                                   const struct ws_switch_options *o, struct ws_error *err);

#endif
