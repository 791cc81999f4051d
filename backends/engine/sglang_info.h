/* What an SGLang was started with, and its schedulers' state. May hold keys: nobody logs it, and only what is named is
 * looked at. */
#ifndef WS_ENGINE_SGLANG_INFO_H
#define WS_ENGINE_SGLANG_INFO_H
#include "backends/engine/call.h"

/* As ws_call_get. Its scheduler answers, so only after a running load. */
WS_MUST_USE int ws_sglang_info(const struct ws_engine_target *t, struct ws_http_reply *reply,
                               struct ws_error *err);

#endif
