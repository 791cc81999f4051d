/* Load: one load that is believed only where this load alone can have made what the engine says after it.
 * Over the kinds' tables, for a switch and for an update without a mount. */
#ifndef WS_ENGINE_LOAD_H
#define WS_ENGINE_LOAD_H
#include "backends/engine/engine.h"

/* Waits for the end of what the engine was told before, has it say another version where it names this one
 * already, and loads. Where the reply is lost, it is asked: 0, or the load's own errors. *told: it heard of
 * the load; false: it goes on as it was, by its former version. Before the call: it has heard of one already,
 * and may not hold what it names: then that is not put back. Blocking; the caller has paused it. */
WS_MUST_USE int ws_engine_load(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                               const char *path, const char *version, bool *told, struct ws_error *err);
/* After the resume: is it still the server that was told to load? One that was started anew since says
 * another version. 0; -EREMOTEIO; the errors of ops->serving: cannot tell is no. Without a version: 0. */
WS_MUST_USE int ws_engine_confirm(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                                  const char *version, struct ws_error *err);

#endif
