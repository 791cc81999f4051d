/* Sizes of Megatron's tensors, as config.json gives them. */
#ifndef WS_TRAINER_EXTRACT_MEGATRON_SIZES_H
#define WS_TRAINER_EXTRACT_MEGATRON_SIZES_H
#include "backends/trainer/extract/hf_config.h"

/* A number of a tensor's rows or columns, by config.json. */
enum ws_megatron_size {
    WS_MEGATRON_ANY, /* config.json does not say */
    WS_MEGATRON_ONE,
    WS_MEGATRON_HIDDEN,
    WS_MEGATRON_TWICE_HIDDEN,
    WS_MEGATRON_VOCABULARY_ROWS,
    WS_MEGATRON_HEAD,
    WS_MEGATRON_QUERIES,
    WS_MEGATRON_KEYS,
    WS_MEGATRON_ATTENTION, /* what goes into the output projection */
    WS_MEGATRON_INNER,
    WS_MEGATRON_EXPERT_INNER,
    WS_MEGATRON_SHARED_INNER,
    WS_MEGATRON_EXPERTS,
    WS_MEGATRON_LATENT_QUERY,
    WS_MEGATRON_LATENT_KV,
    WS_MEGATRON_LATENT_KV_ROPE,
    WS_MEGATRON_LATENT_QUERIES, /* of all heads, by latent attention */
    WS_MEGATRON_DIRECT_QUERIES, /* the same, of a model whose queries are not compressed */
    WS_MEGATRON_LATENT_KEYS_VALUES,
    WS_MEGATRON_GATED_QUERIES,
    WS_MEGATRON_ONE_SHARED_INNER, /* of the one shared expert that has a size of its own */
    WS_MEGATRON_LINEAR_KEY_HEADS, /* of linear attention */
    WS_MEGATRON_LINEAR_KEYS,
    WS_MEGATRON_LINEAR_VALUE_HEADS,
    WS_MEGATRON_LINEAR_VALUE_HEAD,
    WS_MEGATRON_LINEAR_VALUES,
    WS_MEGATRON_LINEAR_KERNEL,
    WS_MEGATRON_SHARED_SIZE, /* of all shared experts, given as one number */
    WS_MEGATRON_MAMBA_INNER,
    WS_MEGATRON_MAMBA_STATES,
    WS_MEGATRON_MAMBA_HEADS,
    WS_MEGATRON_MAMBA_KERNEL
};

/* 0: config.json does not say; *what: its keys, for people. */
uint64_t ws_megatron_size(enum ws_megatron_size size, const struct ws_hf_config *c, const char **what);

#endif
