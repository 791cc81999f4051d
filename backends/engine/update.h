/* Update: one engine from what it serves to a path, for those who have no mount; the caller keeps the
 * version. A mount's switch is the same over many engines, with a way back for all of them. */
#ifndef WS_ENGINE_UPDATE_H
#define WS_ENGINE_UPDATE_H
#include "backends/engine/engine.h"

/* Asks, pauses, loads, confirms, empties the caches, resumes. When the load fails, what it served before is
 * loaded back (twice at most, where it can be known) and it is resumed; an engine without a confirmed load is
 * never resumed. *pause_seconds: from the pause to the resume; may be NULL. Errors: those of ops->load and
 * ops->pause; the sentence says how it was left. */
WS_MUST_USE int ws_engine_update(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                                 const char *path, const char *version, double *pause_seconds,
                                 struct ws_error *err);

#endif
