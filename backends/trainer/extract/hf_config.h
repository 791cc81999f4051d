/* Config: what the extractors need of a model's config.json (Hugging Face's names). 0: not in the file. */
#ifndef WS_TRAINER_EXTRACT_HF_CONFIG_H
#define WS_TRAINER_EXTRACT_HF_CONFIG_H
#include "transports/base/error.h"
#include "transports/simd/dtype.h"
#include <stdbool.h>

struct ws_hf_config {
    uint64_t hidden_size, heads, kv_heads, head_dim, intermediate_size, moe_intermediate_size, experts,
        vocab_size;
    char model_type[64]; /* empty: it does not say */
    bool tied;           /* the output layer is the embedding */
    bool has_dtype;
    enum ws_dtype dtype;
};
/* path: config.json or its folder. A model of text and images keeps these below text_config. -ENOENT,
 * -EBADMSG. */
WS_MUST_USE int ws_hf_config_read(const char *path, struct ws_hf_config *out, struct ws_error *err);

#endif
