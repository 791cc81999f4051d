#include "backends/trainer/extract/megatron_sizes.h"

uint64_t ws_megatron_size(enum ws_megatron_size size, const struct ws_hf_config *c, const char **what)
{
#define CASE(name, text, number)                                                                             \
    case WS_MEGATRON_##name:                                                                                 \
        *what = (text);                                                                                      \
        return (number);
    switch (size) {
        CASE(ANY, "", 0)
        CASE(ONE, "1", 1)
        CASE(HIDDEN, "hidden_size", c->hidden_size)
        CASE(TWICE_HIDDEN, "2 * hidden_size", 2 * c->hidden_size)
        CASE(VOCABULARY_ROWS, "vocab_size", c->vocab_size)
        CASE(HEAD, "head_dim", c->head_dim)
        CASE(QUERIES, "num_attention_heads * head_dim", c->heads * c->head_dim)
        CASE(KEYS, "num_key_value_heads * head_dim", c->kv_heads * c->head_dim)
        CASE(INNER, "intermediate_size", c->intermediate_size)
        CASE(EXPERT_INNER, "moe_intermediate_size", c->moe_intermediate_size)
        CASE(SHARED_INNER, "n_shared_experts * moe_intermediate_size",
             c->shared_experts * c->moe_intermediate_size)
        CASE(EXPERTS, "the number of experts", c->experts)
        CASE(LATENT_QUERY, "q_lora_rank", c->q_lora_rank)
        CASE(LATENT_KV, "kv_lora_rank", c->kv_lora_rank)
        CASE(LATENT_KV_ROPE, "kv_lora_rank + qk_rope_head_dim",
             c->kv_lora_rank && c->qk_rope_head_dim ? c->kv_lora_rank + c->qk_rope_head_dim : 0)
        CASE(LATENT_QUERIES, "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)",
             c->heads * (c->qk_nope_head_dim + c->qk_rope_head_dim))
        CASE(DIRECT_QUERIES,
             "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim) of a model without q_lora_rank",
             c->q_lora_rank ? 0 : c->heads * (c->qk_nope_head_dim + c->qk_rope_head_dim))
        CASE(LATENT_KEYS_VALUES, "num_attention_heads * (qk_nope_head_dim + v_head_dim)",
             c->heads * (c->qk_nope_head_dim + c->v_head_dim))
        CASE(GATED_QUERIES, "2 * num_attention_heads * head_dim", 2 * c->heads * c->head_dim)
        CASE(ONE_SHARED_INNER, "shared_expert_intermediate_size", c->shared_expert_size)
        CASE(LINEAR_KEY_HEADS, "linear_num_key_heads", c->linear_key_heads)
        CASE(LINEAR_KEYS, "linear_num_key_heads * linear_key_head_dim",
             c->linear_key_heads * c->linear_key_head_dim)
        CASE(LINEAR_VALUE_HEADS, "linear_num_value_heads", c->linear_value_heads)
        CASE(LINEAR_VALUE_HEAD, "linear_value_head_dim", c->linear_value_head_dim)
        CASE(LINEAR_VALUES, "linear_num_value_heads * linear_value_head_dim",
             c->linear_value_heads * c->linear_value_head_dim)
        CASE(LINEAR_KERNEL, "linear_conv_kernel_dim", c->linear_kernel)
        CASE(SHARED_SIZE, "moe_shared_expert_intermediate_size", c->moe_shared_expert_size)
        CASE(MAMBA_INNER, "mamba_num_heads * mamba_head_dim", c->mamba_heads * c->mamba_head_dim)
        CASE(MAMBA_STATES, "n_groups * ssm_state_size", c->mamba_groups * c->mamba_state)
        CASE(MAMBA_HEADS, "mamba_num_heads", c->mamba_heads)
        CASE(MAMBA_KERNEL, "conv_kernel", c->mamba_kernel)
    case WS_MEGATRON_ATTENTION:
        *what = c->kv_lora_rank ? "num_attention_heads * v_head_dim" : "num_attention_heads * head_dim";
        return c->heads * (c->kv_lora_rank ? c->v_head_dim : c->head_dim);
    }
    return 0;
#undef CASE
}
