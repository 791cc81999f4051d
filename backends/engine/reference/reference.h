/* Reference engine: a small server with SGLang's or vLLM's routes that truly loads safetensors folders the
 * way the real engines read them, without a GPU and without Python. For tests, for the demo and for users who
 * try out a deployment. It keeps its own copy of the weights, of a draft model too, and loads adapters. */
#ifndef WS_ENGINE_REFERENCE_REFERENCE_H
#define WS_ENGINE_REFERENCE_REFERENCE_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct ws_reference_options {
    const char *listen;     /* "127.0.0.1:30000", port 0: any */
    const char *model_path; /* loaded at start; required */
    const char *api;        /* whose routes: "sglang" (NULL too) or "vllm" */
    const char *api_key;    /* NULL: none */
    const char *refuse;     /* weight_version that is answered 400 */
    bool lie;               /* answer such a load with success, and load nothing */
    unsigned slow_ms;       /* added to each load */
    unsigned busy;          /* how many flushes of its cache are refused, as if requests were in the way */
    const char
        *die_at; /* "pause", "open", "load", "reply", "wake", "continue", "adapter" (it is loaded, and not yet
                              * answered), "draft" (likewise): exits there; NULL: never */
    unsigned refuse_resumes; /* vLLM's: so many are refused, as while a pause is under way */
    unsigned workers;        /* SGLang's tokenizer workers; over 1: queries reach one that got no load */
    const char *load_format; /* SGLang's: "dummy" refuses loads that name no other; NULL: auto */
    bool realistic;          /* a load that fails ends it (sglang) or costs it its weights (vllm) */
    unsigned max_lora_rank;  /* of adapters; 0: it was started without adapters */
    const char
        *refuse_adapter; /* the name of an adapter whose load is refused; with lie: answered with success */
    const char *draft_path; /* of a draft model, loaded at start; NULL: it has none */
    bool
        transfers; /* vLLM: the weight-transfer back end of wsync is configured; SGLang: its plug-in is there */
    unsigned patch_workers;  /* so many have wsync's package and patch what they hold; 0: none has */
    const char *patch_fault; /* of reference_patch.h; NULL: none */
    unsigned api_servers;    /* vLLM's; over 1: its metrics do not say when it was started */
};
struct ws_reference;
WS_MUST_USE int ws_reference_new(struct ws_reference **out, const struct ws_reference_options *o,
                                 struct ws_error *err);
unsigned ws_reference_port(const struct ws_reference *r);
void ws_reference_free(struct ws_reference *r);

#endif
