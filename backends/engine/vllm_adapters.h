/* Adapters of a vLLM: the functions of its table (engine.h), and what it has to be started with. */
#ifndef WS_ENGINE_VLLM_ADAPTERS_H
#define WS_ENGINE_VLLM_ADAPTERS_H
#include "backends/engine/engine.h"

WS_MUST_USE int ws_vllm_adapter_load(const struct ws_engine_target *t, const char *name, const char *path,
                                     struct ws_error *err);
WS_MUST_USE int ws_vllm_adapter_unload(const struct ws_engine_target *t, const char *name,
                                       struct ws_error *err);
WS_MUST_USE int ws_vllm_adapters(const struct ws_engine_target *t, struct ws_engine_adapters *out,
                                 struct ws_error *err);

#endif
