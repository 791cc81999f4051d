/* CPU reload: may a vLLM be told to load these weights where it runs on a CPU? There it starts on them and cannot reload them (0.32):
 * it answers wrong from then on, and reports no error. wsync's extension and its back end mend both.
 * - INT8 (W8A8): its kernel keeps a pointer to the scales that it was made from. A reload makes a new kernel from new
 *   scales, copies these into the old tensors and frees the new ones.
 * - Experts that are not quantised: its kernel wants them packed. A reload leaves them as they are in the file.
 * Pure. */
#ifndef WS_ENGINE_CPU_RELOAD_H
#define WS_ENGINE_CPU_RELOAD_H
#include "backends/engine/engine.h"
#include "transports/format/safetensors.h"

/* headers: those of the version's files. name: of the engine, for people. -EPROTO: the engine (facts) cannot reload weights
 * that the version has, or does not say what it was started with; how to start it. */
WS_MUST_USE int ws_cpu_reload_check(const struct ws_engine_facts *facts, const char *name,
                                    struct ws_safetensors *const *headers, size_t n, struct ws_error *err);

#endif
