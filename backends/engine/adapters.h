/* Adapters: what vLLM and SGLang have in common. Both list their adapters beside the model that they serve, each with
 * the path that it was loaded from, and that list decides whether a load or an unload has happened. For the kinds' own
 * files; blocking; any thread. */
#ifndef WS_ENGINE_ADAPTERS_H
#define WS_ENGINE_ADAPTERS_H
#include "backends/engine/call.h"

/* All of them but those whose names are too long for wsync to have given them. */
WS_MUST_USE int ws_adapters_list(const struct ws_engine_target *t, struct ws_engine_adapters *out,
                                 struct ws_error *err);
/* After a load, and what the server said to it: 0 where it lists the name with this path. -EREMOTEIO: it does not, or with
 * another path. */
WS_MUST_USE int ws_adapters_confirm_loaded(const struct ws_engine_target *t, const char *name,
                                           const char *path, const char *said, struct ws_error *err);
/* After an unload: 0 where it does not list the name. */
WS_MUST_USE int ws_adapters_confirm_unloaded(const struct ws_engine_target *t, const char *name,
                                             const char *said, struct ws_error *err);

#endif
