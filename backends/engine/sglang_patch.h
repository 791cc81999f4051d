/* Patches of an SGLang: one stage, asked of all schedulers (patch.h). */
#ifndef WS_ENGINE_SGLANG_PATCH_H
#define WS_ENGINE_SGLANG_PATCH_H
#include "backends/engine/patch.h"

/* As the slot of the table, without the server's own record of version and path. */
WS_MUST_USE int ws_sglang_patch(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                                struct ws_engine_patch_reply *out, struct ws_error *err);

#endif
