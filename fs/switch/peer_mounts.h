/* Peer mounts: the mounts of other nodes that an engine of this mount reads (an engine that spans nodes reads
 * each node's own mount). The agent passes on to them that they fetch a version; they must have it before the
 * engine is paused. */
#ifndef WS_FS_SWITCH_PEER_MOUNTS_H
#define WS_FS_SWITCH_PEER_MOUNTS_H
#include "fs/switch/switch.h"

/* Waits until every mount that engines of the model name (mounts=) has the complete version. -ETIMEDOUT, -EINTR
 * and -ECANCELED name a mount that has not; -EREMOTEIO: one cannot; -ENOENT: no source of the model is an
 * agent. */
WS_MUST_USE int ws_peer_mounts_wait(struct ws_control *c, const struct ws_switch_item *p,
                                    const struct ws_switch_options *o, struct ws_error *err);

#endif
