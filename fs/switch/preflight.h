/* Preflight: do a model's engines answer? Asked before a release is committed, and before one that failed here
 * is tried again, so that an engine that is down costs no other engine a pause. */
#ifndef WS_FS_SWITCH_PREFLIGHT_H
#define WS_FS_SWITCH_PREFLIGHT_H
#include "fs/engines/controller.h"

/* 0: as many answer as the model's commit setting needs. -EHOSTUNREACH, -ETIMEDOUT, -EREMOTEIO, ...: which
 * does not. */
WS_MUST_USE int ws_preflight(struct ws_control *c, struct ws_controller *ctl, struct ws_error *err);

#endif
