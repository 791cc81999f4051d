/* Load: one load of an engine, believed only where what the engine reports afterwards can come from this load
 * alone. It works on any kind's table, for a mount's switch and for an update without a mount. */
#ifndef WS_ENGINE_LOAD_H
#define WS_ENGINE_LOAD_H
#include "backends/engine/engine.h"

/* What the engine reports, once it has finished earlier requests whose callers have given up. Asked before the pause,
 * ws_engine_load needs not ask in it. */
WS_MUST_USE int ws_engine_settle(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                                 struct ws_engine_serving *out, struct ws_error *err);
/* Waits until the engine has finished earlier requests, gives it another version where it reports this one
 * already, and loads. Where the reply is lost, asks the engine what it serves. Returns 0, or the load's own
 * errors.
 *
 * before: the version that ws_engine_settle told, if nothing was sent since that changes it; NULL: it is asked.
 *
 * *sent on return: the engine got the load; false: it goes on as it was, under its former version. *sent
 * before the call: it got one already, so it may not hold what it reports, and its version is not put back.
 * Blocking; the caller has paused the engine. */
WS_MUST_USE int ws_engine_load(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                               const char *path, const char *version, const char *before, bool *sent,
                               struct ws_error *err);
/* After the resume: is it still the server that got the load? One that was restarted since reports another
 * version. 0; -EREMOTEIO: it is not; the errors of ops->serving: it cannot be told, which means no. An engine
 * that reports no version: 0. */
WS_MUST_USE int ws_engine_confirm(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                                  const char *version, struct ws_error *err);

/* The version that a label of an engine names. While the engine loads what it had already, and after that failed, it
 * is labelled "loading VERSION", so that an old answer is not taken for a confirmation. Points into label. */
const char *ws_engine_labelled_version(const char *label);

#endif
