/* What a vLLM was started with, of which a switch depends: its draft model, its adapters, whether it sleeps, and whether a reload can work. */
#ifndef WS_ENGINE_VLLM_CONFIG_H
#define WS_ENGINE_VLLM_CONFIG_H
#include "backends/engine/engine.h"

/* Fills facts->draft, loads_draft, max_adapter_rank, stays_awake, frees_int8_scales and leaves_experts; where it does not say what it was started with,
 * with what that means; known becomes false where it does not answer in time. Waits as long as a load may take: the first answer of a server takes seconds. */
void ws_vllm_config_read(const struct ws_engine_target *t, struct ws_engine_facts *facts);

#endif
