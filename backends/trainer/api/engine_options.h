/* Engine options: a caller's wsync_engine as the target of a kind's functions. */
#ifndef WS_TRAINER_API_ENGINE_OPTIONS_H
#define WS_TRAINER_API_ENGINE_OPTIONS_H
#include "backends/engine/engine.h"
#include "backends/trainer/wsync.h"

/* Finds the kind's functions and fills of *t url, keys, ca_file, pause_mode and cache; the texts stay the
 * caller's. -EINVAL: no such kind, pause mode or cache here. The url is not checked. */
WS_MUST_USE int ws_engine_options_read(const wsync_engine *e, const struct ws_engine_ops **ops,
                                       struct ws_engine_target *t, struct ws_error *err);

#endif
