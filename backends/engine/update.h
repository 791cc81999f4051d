/* Update: takes one engine from what it serves to a path, for callers without a mount, who keep the version's
 * files. A mount's switch does the same for many engines, with a way back for all of them. */
#ifndef WS_ENGINE_UPDATE_H
#define WS_ENGINE_UPDATE_H
#include "backends/engine/engine.h"

/* Probes, pauses, loads, empties the caches, resumes and confirms. When the load fails, it loads what the
 * engine served before (two tries, where that is known) and resumes it. An engine without a confirmed load is
 * never resumed. *pause_seconds: from the pause to the resume; may be NULL. Errors: those of ops->load and
 * ops->pause; the message says in which state the engine was left. Blocking; any thread. */
WS_MUST_USE int ws_engine_update(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                                 const char *path, const char *version, double *pause_seconds,
                                 struct ws_error *err);

#endif
