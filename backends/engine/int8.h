/* INT8: may an engine be told to load INT8 weights (W8A8)? On a CPU vLLM's kernel keeps a pointer to the scales that it was made
 * from. A reload makes a new kernel from new scales, copies these into the old tensors and frees the new ones (0.32): wrong
 * answers from then on, and no error. wsync's extension and its back end keep them. Pure. */
#ifndef WS_ENGINE_INT8_H
#define WS_ENGINE_INT8_H
#include "backends/engine/engine.h"
#include "transports/format/safetensors.h"

/* headers: those of the version's files. name: of the engine, for people. -EPROTO: the weights are INT8, and the engine
 * (facts) frees their scales, or does not say what it was started with; how to start it. */
WS_MUST_USE int ws_int8_check(const struct ws_engine_facts *facts, const char *name,
                              struct ws_safetensors *const *headers, size_t n, struct ws_error *err);

#endif
