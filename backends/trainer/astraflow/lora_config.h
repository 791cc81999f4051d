/* LoRA config: what AstraFlow's receivers are told of a version that is an adapter: its rank and the rest, out of which they
 * write an adapter_config.json of their own. They take an adapter whole, never a delta. Any thread, while the
 * version is leased. */
#ifndef WS_TRAINER_ASTRAFLOW_LORA_CONFIG_H
#define WS_TRAINER_ASTRAFLOW_LORA_CONFIG_H
#include "transports/protocol/catalog.h"

/* Has the version an adapter's two files? */
bool ws_lora_config_is_of(const struct ws_manifest *m);
/* *out: {"peft_type", "r", "lora_alpha", "target_modules"}, a new reference; NULL: the version is no adapter.
 * -EBADMSG, -EPROTO: its config is none that their receivers could pass on. */
WS_MUST_USE int ws_lora_config_read(const struct ws_lease *lease, json_t **out, struct ws_error *err);

#endif
