/* Transfer sessions of a vLLM: start, update, finish. One session at a time, of the target or of the draft model. */
#ifndef WS_ENGINE_VLLM_TRANSFER_H
#define WS_ENGINE_VLLM_TRANSFER_H
#include "backends/engine/engine.h"

/* The target's weights, for releases without /collective_rpc. */
WS_MUST_USE int ws_vllm_transfer(const struct ws_engine_target *t, const char *path, const char *version,
                                 struct ws_error *err);
/* The draft model's. -EPROTO: it has none, or no back end that loads one from a path. */
WS_MUST_USE int ws_vllm_transfer_draft(const struct ws_engine_target *t, const char *path,
                                       struct ws_error *err);
/* Do its workers answer what they are asked? Workers are read one after the other, up to the first that failed: what
 * those behind it answered stays, and becomes their reply to the next call. workers: how many answer; 0: not known.
 * -EREMOTEIO: they do not. */
WS_MUST_USE int ws_vllm_check_step(const struct ws_engine_target *t, size_t workers, struct ws_error *err);

#endif
