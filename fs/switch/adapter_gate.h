/* Adapter gate: is a version what the engines of its model take it for? Adapters are loaded beside a target, and targets and
 * drafts are whole checkpoints: asked before any engine is called. */
#ifndef WS_FS_SWITCH_ADAPTER_GATE_H
#define WS_FS_SWITCH_ADAPTER_GATE_H
#include "fs/engines/controller.h"

/* Of a version that is here (else -ENOENT). *is_adapter: it is one, and engines load it as such: layouts need not be compared. -EINVAL: it
 * is not what they take it for; -EPROTO: it is an adapter that they cannot serve. */
WS_MUST_USE int ws_adapter_gate_check(struct ws_control *c, const struct ws_controller *ctl,
                                      struct ws_version *v, bool *is_adapter, struct ws_error *err);

#endif
