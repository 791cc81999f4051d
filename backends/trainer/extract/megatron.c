/* Megatron-core's GPTModel in the names of Hugging Face's Llama, Qwen2, Qwen3 and Qwen3-MoE. A rank holds
 * plain local tensors; how they are cut over the tensor-parallel group follows from the name. The rules, each
 * tried by comparing logits and bytes, are those of Megatron-core 0.16 and 0.19 with the local spec;
 * Transformer Engine's spec adds the fused layer norms and the grouped experts' names. What is not in the
 * table is refused by its name. */
#include "backends/trainer/extract/extract.h"
#include "transports/base/limits.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum cut { WHOLE, COLUMN, ROW, GLU }; /* GLU: [gate; up], both column-parallel */
enum form { PLAIN, EMBEDDING, OUTPUT, QKV, GATE_UP };
struct rule {
    const char *held; /* '#': a number */
    const char *file; /* below the layer, where held is in one; '#': the expert's global number */
    enum cut cut;
    enum form form;
    bool expert;
};
#define LAYER "decoder.layers.#."
static const struct rule rules[] = {
    {"embedding.word_embeddings.weight", "model.embed_tokens.weight", COLUMN, EMBEDDING, false},
    {"output_layer.weight", "lm_head.weight", COLUMN, OUTPUT, false},
    {"decoder.final_layernorm.weight", "model.norm.weight", WHOLE, PLAIN, false},
    {LAYER "input_layernorm.weight", "input_layernorm.weight", WHOLE, PLAIN, false},
    {LAYER "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", WHOLE, PLAIN, false},
    {LAYER "self_attention.linear_qkv.weight", "weight", COLUMN, QKV, false},
    {LAYER "self_attention.linear_qkv.bias", "bias", COLUMN, QKV, false},
    {LAYER "self_attention.linear_proj.weight", "self_attn.o_proj.weight", ROW, PLAIN, false},
    {LAYER "self_attention.q_layernorm.weight", "self_attn.q_norm.weight", WHOLE, PLAIN, false},
    {LAYER "self_attention.k_layernorm.weight", "self_attn.k_norm.weight", WHOLE, PLAIN, false},
    {LAYER "pre_mlp_layernorm.weight", "post_attention_layernorm.weight", WHOLE, PLAIN, false},
    {LAYER "mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", WHOLE, PLAIN, false},
    {LAYER "mlp.linear_fc1.weight", "mlp.", GLU, GATE_UP, false},
    {LAYER "mlp.linear_fc2.weight", "mlp.down_proj.weight", ROW, PLAIN, false},
    {LAYER "mlp.router.weight", "mlp.gate.weight", WHOLE, PLAIN, false},
    {LAYER "mlp.experts.local_experts.#.linear_fc1.weight", "mlp.experts.#.", GLU, GATE_UP, true},
    {LAYER "mlp.experts.local_experts.#.linear_fc2.weight", "mlp.experts.#.down_proj.weight", ROW, PLAIN,
     true},
    {LAYER "mlp.experts.linear_fc1.weight#", "mlp.experts.#.", GLU, GATE_UP, true},
    {LAYER "mlp.experts.linear_fc2.weight#", "mlp.experts.#.down_proj.weight", ROW, PLAIN, true},
};
#define N_RULES (sizeof(rules) / sizeof(rules[0]))

/* Families whose names these are, each compared with the published converters' tensors. Others share many of
 * them and mean something else by the rest. */
static const char *const model_types[] = {"llama", "qwen2", "qwen3", "qwen3_moe"};

/* What changes layouts or values in a way that no rule knows: an option that is set, or a held name. */
static const struct {
    const char *feature, *why;
} unknown_features[] = {
    {"attention_output_gate", "query, gate, key and value are interleaved"},
    {"moe_mlp_glu_interleave_size", "gate and up alternate in blocks"},
    {"moe_single_grouped_weight", "the experts are stacked in one tensor"},
    {"layernorm_zero_centered_gamma", "the norms are stored less one"},
    {"fp8", "weights are kept in FP8 with scales of their own"},
    {"fp8_param", "weights are kept in FP8 with scales of their own"},
    {"fp4", "weights are kept in FP4 with scales of their own"},
    {"multi_latent_attention", "its projections have names of their own"},
};
static const struct {
    const char *part, *why;
} unknown_names[] = {
    {"mlp.experts.weight1", "the legacy GroupedMLP keeps its experts transposed; build the model with "
                            "SequentialMLP or TEGroupedMLP (moe_use_legacy_grouped_gemm=False)"},
    {"mlp.experts.weight2", "the legacy GroupedMLP keeps its experts transposed; build the model with "
                            "SequentialMLP or TEGroupedMLP (moe_use_legacy_grouped_gemm=False)"},
    {"mtp.", "the layout of multi-token prediction is not known; leave its tensors out and give base="},
    {"shared_experts", "shared experts are not known"},
    {"router.expert_bias",
     "Qwen3-MoE's file has no bias of the router, and an engine would route without it; train with "
     "moe_router_enable_expert_bias=False"},
};

/* Does the name match, with numbers for '#'? numbers: of the first two. */
static bool match(const char *pattern, const char *name, uint64_t numbers[2])
{
    unsigned n = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (*pattern != *name++)
                return false;
            continue;
        }
        if (!isdigit((unsigned char)*name))
            return false;
        char *end;
        numbers[n++] = strtoull(name, &end, 10);
        name = end;
    }
    return *name == '\0';
}

static unsigned size_of(const wsync_parallel *p)
{
    return p->size ? p->size : 1;
}

static bool is_known_type(const char *type)
{
    for (size_t i = 0; i < sizeof(model_types) / sizeof(model_types[0]); i++)
        if (strcmp(type, model_types[i]) == 0)
            return true;
    return false;
}

static int check(const wsync_extract_options *o, const struct ws_hf_config *c, struct ws_error *err)
{
    const wsync_parallel *groups[] = {&o->tensor, &o->expert, &o->expert_tensor};
    if (!o->hf_config)
        return ws_error_set(err, EINVAL,
                            "a Megatron model needs hf_config, the folder of its Hugging Face "
                            "config.json: heads, vocabulary and sizes are taken from there");
    if (!is_known_type(c->model_type))
        return ws_error_set(
            err, EOPNOTSUPP,
            "%s has the model_type '%s', and Megatron's tensors are known here for llama, qwen2, "
            "qwen3 and qwen3_moe only: convert them yourself and publish them by name "
            "(wsync.tensors, wsync_put)",
            o->hf_config, c->model_type);
    if (!c->heads || !c->head_dim || !c->vocab_size)
        return ws_error_set(err, EINVAL,
                            "%s does not say num_attention_heads, head_dim or hidden_size, and "
                            "vocab_size",
                            o->hf_config);
    for (unsigned i = 0; i < 3; i++)
        if (groups[i]->rank >= size_of(groups[i]))
            return ws_error_set(err, EINVAL, "rank %u of a parallel group of %u makes no sense",
                                groups[i]->rank, size_of(groups[i]));
    for (size_t i = 0; i < o->n_features; i++)
        for (size_t k = 0; k < sizeof(unknown_features) / sizeof(unknown_features[0]); k++)
            if (strcmp(o->features[i], unknown_features[k].feature) == 0)
                return ws_error_set(err, EOPNOTSUPP,
                                    "this Megatron model has %s: %s, and that layout is not known here",
                                    o->features[i], unknown_features[k].why);
    return 0;
}

/* The name in the file. */
static int name_of(const struct rule *r, const wsync_held *h, uint64_t expert,
                   char out[WS_MAX_TENSOR_NAME + 1])
{
    const char *number = strchr(r->file, '#');
    int n = 0;
    if (strncmp(r->held, LAYER, strlen(LAYER)) == 0)
        n = snprintf(out, WS_MAX_TENSOR_NAME + 1, "model.layers.%u.", h->layer - 1);
    if (number)
        n += snprintf(out + n, (size_t)(WS_MAX_TENSOR_NAME + 1 - n), "%.*s%" PRIu64 "%s",
                      (int)(number - r->file), r->file, expert, number + 1);
    else
        n += snprintf(out + n, (size_t)(WS_MAX_TENSOR_NAME + 1 - n), "%s", r->file);
    return n;
}

/* The group's tensor of a local one. */
static int unshard(const struct rule *r, const wsync_held *h, const wsync_parallel *group,
                   struct ws_extracted *out, struct ws_error *err)
{
    unsigned dim = r->cut == ROW, size = size_of(group);
    if (h->n_dims <= dim || h->n_dims > 2)
        return ws_error_set(err, EINVAL, "%s has %u dimensions", h->name, h->n_dims);
    out->fused.n_dims = h->n_dims;
    memcpy(out->fused.shape, h->shape, sizeof(out->fused.shape));
    if (r->cut == WHOLE)
        return 0;
    if (r->cut == GLU && h->shape[0] % 2)
        return ws_error_set(err, EINVAL,
                            "%s has %" PRIu64 " rows; gate and up would be an even number: is "
                            "the model without gated linear units? Such a one is not known here",
                            h->name, h->shape[0]);
    out->fused.shape[dim] *= size;
    out->n_placements = 1;
    out->placements[0] = (wsync_placement){.kind = r->cut == GLU ? WSYNC_STRIDED_SHARD : WSYNC_SHARD,
                                           .dim = dim,
                                           .split_factor = 2,
                                           .size = size,
                                           .coordinate = group->rank};
    return 0;
}

static int expect(const wsync_held *h, const char *what, uint64_t here, uint64_t config, struct ws_error *err)
{
    if (config && here != config)
        return ws_error_set(err, EINVAL,
                            "%s: all ranks together have %" PRIu64 " of %s, and config.json says %" PRIu64
                            ": another model's config, or a parallel group that is not given right?",
                            h->name, here, what, config);
    return 0;
}

static int split(const struct rule *r, const struct ws_hf_config *c, const wsync_held *h, const char *name,
                 struct ws_fused *f, struct ws_error *err)
{
    char names[3][WS_MAX_TENSOR_NAME + 32];
    int rc = 0;
    switch (r->form) {
    case EMBEDDING:
    case OUTPUT:
        return ws_fused_rows(f, name, c->vocab_size, err);
    case QKV: {
        const char *all[3] = {names[0], names[1], names[2]};
        for (unsigned i = 0; i < 3; i++)
            snprintf(names[i], sizeof(names[i]), "model.layers.%u.self_attn.%c_proj.%s", h->layer - 1,
                     "qkv"[i], r -> file);
        return ws_fused_qkv(f, all, c->heads, c->kv_heads, c->head_dim, err);
    }
    case GATE_UP: {
        static const char *const two[] = {"gate_proj.weight", "up_proj.weight"};
        wsync_fusion fusion = {.names = two, .n_names = 2, .dim = 0};
        rc = expect(h, "the inner size, twice,", f->shape[0],
                    2 * (r->expert ? c->moe_intermediate_size : c->intermediate_size), err);
        return rc < 0 ? rc : ws_fused_stack(f, &fusion, name, strlen(name), err);
    }
    case PLAIN:
        break;
    }
    if (r->cut == ROW && strstr(r->file, "down_proj"))
        rc = expect(h, "the inner size", f->shape[1],
                    r->expert ? c->moe_intermediate_size : c->intermediate_size, err);
    else if (r->cut == ROW)
        rc = expect(h, "the heads' sizes", f->shape[1], c->heads * c->head_dim, err);
    return rc < 0 ? rc : ws_fused_plain(f, name);
}

static int refuse(const wsync_held *h, const char *name, struct ws_error *err)
{
    for (size_t i = 0; i < sizeof(unknown_names) / sizeof(unknown_names[0]); i++)
        if (strstr(name, unknown_names[i].part))
            return ws_error_set(err, EOPNOTSUPP, "%s cannot be published: %s", h->name, unknown_names[i].why);
    return ws_error_set(err, EOPNOTSUPP,
                        "%s is no tensor of a Megatron GPTModel that is known here (Llama, Qwen2, Qwen3, "
                        "Qwen3-MoE): its layout would be a guess",
                        h->name);
}

static int describe(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                    struct ws_extracted *out, struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1];
    const char *held = h->name;
    uint64_t numbers[2] = {0}, expert = 0;
    const struct rule *r = NULL;
    while (strncmp(held, "module.", 7) == 0) /* DDP, Float16Module */
        held += 7;
    for (size_t i = 0; i < N_RULES && !r; i++)
        if (match(rules[i].held, held, numbers))
            r = &rules[i];
    if (!r)
        return refuse(h, held, err);
    if (strncmp(r->held, LAYER, strlen(LAYER)) == 0 && h->layer == 0)
        return ws_error_set(err, EINVAL, "%s comes without the number of its layer", h->name);
    if (r->form == OUTPUT && c->tied) {
        out->skip = true;
        return 0;
    }
    if (r->expert) {
        uint64_t each = c->experts / size_of(&o->expert);
        if (c->experts == 0 || c->experts % size_of(&o->expert) || numbers[1] >= each)
            return ws_error_set(err, EINVAL,
                                "%s: %" PRIu64 " experts over %u expert-parallel ranks are %" PRIu64
                                " each, and this is number %" PRIu64,
                                h->name, c->experts, size_of(&o->expert), each, numbers[1]);
        expert = o->expert.rank * each + numbers[1];
    }
    if (name_of(r, h, expert, name) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, E2BIG, "the name of %s is too long", h->name);
    int rc = unshard(r, h, r->expert ? &o->expert_tensor : &o->tensor, out, err);
    return rc < 0 ? rc : split(r, c, h, name, &out->fused, err);
}

const struct ws_extractor_ops ws_extract_megatron = {
    .name = "megatron", .check = check, .describe = describe};
