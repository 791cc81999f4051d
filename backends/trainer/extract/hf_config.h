/* Config: what the extractors need of a model's config.json (Hugging Face's names). 0: not in the file. */
#ifndef WS_TRAINER_EXTRACT_HF_CONFIG_H
#define WS_TRAINER_EXTRACT_HF_CONFIG_H
#include "transports/base/error.h"
#include "transports/simd/dtype.h"
#include <stdbool.h>

struct ws_hf_config {
    uint64_t hidden_size, layers, heads, kv_heads, head_dim, intermediate_size, moe_intermediate_size,
        experts, shared_experts, vocab_size;
    uint64_t mtp_layers; /* of multi-token prediction; not among `layers` */
    /* of multi-head latent attention */
    uint64_t q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    /* of linear attention, and of the expert beside it that all tokens have */
    uint64_t linear_key_heads, linear_key_head_dim, linear_value_heads, linear_value_head_dim, linear_kernel,
        shared_expert_size;
    /* of Mamba's mixers, and of the shared experts beside them */
    uint64_t mamba_heads, mamba_head_dim, mamba_groups, mamba_state, mamba_kernel, moe_shared_expert_size;
    char model_type[64]; /* empty: it does not say */
    bool is_within; /* of the text_config within a model of another type, whose tensors have other names */
    bool tied;      /* the output layer is the embedding */
    bool has_dtype;
    enum ws_dtype dtype;
};
/* path: config.json or its folder. A model of text and images keeps these below text_config. -ENOENT,
 * -EBADMSG. */
WS_MUST_USE int ws_hf_config_read(const char *path, struct ws_hf_config *out, struct ws_error *err);

#endif
