/* Adapter config: what the adapter_config.json of a LoRA adapter says (PEFT's file), and whether a kind of engine
 * serves it as it was trained. Engines do not look at all of it: SGLang scales each adapter by lora_alpha / r,
 * whatever else its file says, and answers with success. So the file is judged before any engine is called.
 *
 * Pure: no file is opened and no engine is asked, because the path that an engine is given may lead elsewhere from
 * here; the caller has the file's bytes. Any thread. */
#ifndef WS_ENGINE_ADAPTER_CONFIG_H
#define WS_ENGINE_ADAPTER_CONFIG_H
#include "transports/base/error.h"
#include "transports/format/adapter_files.h"
#include <stddef.h>

#define WS_MAX_ADAPTER_CONFIG_BYTES (1UL << 20)

/* Who is to serve it. */
struct ws_adapter_server {
    const char *kind;  /* "vllm", "sglang"; NULL: any, so what none of them serves is refused */
    unsigned max_rank; /* the largest that it takes; 0: not known */
    const char *base;  /* what base_model_name_or_path has to say; NULL: anything */
};
struct ws_adapter_config {
    unsigned rank;   /* the largest of r and of rank_pattern */
    char base[1024]; /* base_model_name_or_path; empty: it says none */
};
/* json: the file's bytes, n of them. out may be NULL. -EBADMSG: no adapter_config.json of a LoRA adapter, -EPROTO: it is one,
 * and this server would refuse it or would serve something else than was trained; err names the key. */
WS_MUST_USE int ws_adapter_check(const char *json, size_t n, const struct ws_adapter_server *server,
                                 struct ws_adapter_config *out, struct ws_error *err);

#endif
