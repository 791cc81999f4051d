/* Adapter tensors: do the tensors of adapter_model.safetensors make the adapter that its config describes? Engines
 * load half of one without a word: vLLM does not look whether each A has its B. Pure. Any thread. */
#ifndef WS_ENGINE_ADAPTER_TENSORS_H
#define WS_ENGINE_ADAPTER_TENSORS_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <jansson.h>

/* config: the object of an adapter_config.json that ws_adapter_check took. 0: the tensors are pairs of PEFT's lora_A
 * and lora_B, of ranks that the config has; -EBADMSG names one that is not. */
WS_MUST_USE int ws_adapter_check_tensors(const json_t *config, const struct ws_safetensors *st,
                                         struct ws_error *err);

#endif
