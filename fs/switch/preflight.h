/* Muster: are a model's engines there and well? Asked before a release is committed, and before one that
 * failed here is tried again, so that an engine that is down costs nobody a pause. */
#ifndef WS_FS_SWITCH_PREFLIGHT_H
#define WS_FS_SWITCH_PREFLIGHT_H
#include "fs/engines/controller.h"

/* 0: as many answer as the model's commit setting needs. -EHOSTUNREACH, -ETIMEDOUT, -EREMOTEIO, ...: which
 * does not. */
WS_MUST_USE int ws_muster(struct ws_control *c, struct ws_desk *d, struct ws_error *err);

#endif
