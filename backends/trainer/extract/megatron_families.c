/* The tables. Names and cuts are those of Megatron-core 0.16 and 0.19, of the local spec and of Transformer Engine's,
 * which fuses a norm into the projection behind it and has names of its own for grouped experts. Whole or cut is not
 * read off its partition attributes: it sets these on tensors that every rank has, too. */
#include "backends/trainer/extract/megatron_families.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Short words for this file's tables. */
#define COLUMN     WS_MEGATRON_COLUMN
#define ROW        WS_MEGATRON_ROW
#define EITHER     WS_MEGATRON_EITHER
#define LAYER      WS_MEGATRON_LAYER
#define SIZE(name) WS_MEGATRON_##name
#define TABLE(name)                                                                                          \
    static const struct ws_megatron_table name = {name##_rows, sizeof(name##_rows) / sizeof(name##_rows[0])}

/* Rows: a norm, which every rank has whole; a matrix; two matrices, one below the other; an expert's. */
#define NORM(name, file_name, size)                                                                          \
    {                                                                                                        \
        .held = (name), .parts = {{(file_name), SIZE(size)}}, .norm = true                                   \
    }
#define MATRIX(name, file_name, how, r, c)                                                                   \
    {                                                                                                        \
        .held = (name), .cut = (how), .parts = {{(file_name), SIZE(r)}}, .columns = SIZE(c)                  \
    }
#define STACK(name, first, first_rows, second, second_rows, c)                                               \
    {                                                                                                        \
        .held = (name), .cut = WS_MEGATRON_SECTIONS, .form = WS_MEGATRON_STACKED,                            \
        .parts = {{(first), SIZE(first_rows)}, {(second), SIZE(second_rows)}}, .columns = SIZE(c)            \
    }
#define EXPERT(fc1, fc2, gate, up, down, inner)                                                              \
    {.held = LAYER fc1,                                                                                      \
     .cut = WS_MEGATRON_SECTIONS,                                                                            \
     .form = WS_MEGATRON_STACKED,                                                                            \
     .parts = {{gate ".weight", SIZE(inner)}, {up ".weight", SIZE(inner)}},                                  \
     .columns = SIZE(HIDDEN),                                                                                \
     .expert = true},                                                                                        \
    {                                                                                                        \
        .held = LAYER fc2, .cut = ROW, .parts = {{down ".weight", SIZE(HIDDEN)}}, .columns = SIZE(inner),    \
        .expert = true                                                                                       \
    }
#define SEQUENTIAL(k) "mlp.experts.local_experts.#.linear_fc" k ".weight"
#define GROUPED(k)    "mlp.experts.linear_fc" k ".weight#" /* TEGroupedMLP */

static const struct ws_megatron_row common_rows[] = {
    {.held = "embedding.word_embeddings.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_VOCABULARY,
     .parts = {{"model.embed_tokens.weight", SIZE(VOCABULARY_ROWS)}},
     .columns = SIZE(HIDDEN)},
    {.held = "output_layer.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_OUTPUT,
     .parts = {{"lm_head.weight", SIZE(VOCABULARY_ROWS)}},
     .columns = SIZE(HIDDEN)},
    NORM("decoder.final_layernorm.weight", "model.norm.weight", HIDDEN),
    NORM(LAYER "input_layernorm.weight", "input_layernorm.weight", HIDDEN),
    MATRIX(LAYER "self_attention.linear_proj.weight", "self_attn.o_proj.weight", ROW, HIDDEN, ATTENTION),
    NORM(LAYER "pre_mlp_layernorm.weight", "post_attention_layernorm.weight", HIDDEN),
};
TABLE(common);

static const struct ws_megatron_row mlp_rows[] = {
    NORM(LAYER "mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", HIDDEN),
    STACK(LAYER "mlp.linear_fc1.weight", "mlp.gate_proj.weight", INNER, "mlp.up_proj.weight", INNER, HIDDEN),
    MATRIX(LAYER "mlp.linear_fc2.weight", "mlp.down_proj.weight", ROW, HIDDEN, INNER),
};
TABLE(mlp);

#define HEADS(name, what, c)                                                                                 \
    {                                                                                                        \
        .held = (name), .cut = COLUMN, .form = WS_MEGATRON_QKV,                                              \
        .parts = {{"self_attn.q_proj." what, SIZE(QUERIES)},                                                 \
                  {"self_attn.k_proj." what, SIZE(KEYS)},                                                    \
                  {"self_attn.v_proj." what, SIZE(KEYS)}},                                                   \
        .columns = SIZE(c)                                                                                   \
    }
static const struct ws_megatron_row attention_rows[] = {
    NORM(LAYER "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", HIDDEN),
    HEADS(LAYER "self_attention.linear_qkv.weight", "weight", HIDDEN),
    HEADS(LAYER "self_attention.linear_qkv.bias", "bias", ANY),
};
TABLE(attention);

static const struct ws_megatron_row head_norms_rows[] = {
    NORM(LAYER "self_attention.q_layernorm.weight", "self_attn.q_norm.weight", HEAD),
    NORM(LAYER "self_attention.k_layernorm.weight", "self_attn.k_norm.weight", HEAD),
};
TABLE(head_norms);

/* Multi-head latent attention. Of the down projections every rank has all with Transformer Engine, which does not
 * cut them, and a share with specs that do; mla_down_proj_fusion stacks the two, and cuts them. */
#define KV_A "self_attn.kv_a_proj_with_mqa.weight"
static const struct ws_megatron_row latent_rows[] = {
    MATRIX(LAYER "self_attention.linear_q_proj.weight", "self_attn.q_proj.weight", COLUMN, DIRECT_QUERIES,
           HIDDEN),
    MATRIX(LAYER "self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight", EITHER,
           LATENT_QUERY, HIDDEN),
    NORM(LAYER "self_attention.linear_q_up_proj.layer_norm_weight", "self_attn.q_a_layernorm.weight",
         LATENT_QUERY),
    NORM(LAYER "self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight", LATENT_QUERY),
    MATRIX(LAYER "self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight", COLUMN,
           LATENT_QUERIES, LATENT_QUERY),
    MATRIX(LAYER "self_attention.linear_kv_down_proj.weight", KV_A, EITHER, LATENT_KV_ROPE, HIDDEN),
    NORM(LAYER "self_attention.linear_kv_up_proj.layer_norm_weight", "self_attn.kv_a_layernorm.weight",
         LATENT_KV),
    NORM(LAYER "self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight", LATENT_KV),
    MATRIX(LAYER "self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight", COLUMN,
           LATENT_KEYS_VALUES, LATENT_KV),
    NORM(LAYER "self_attention.linear_qkv_down_proj.layer_norm_weight", "input_layernorm.weight", HIDDEN),
    STACK(LAYER "self_attention.linear_qkv_down_proj.weight", "self_attn.q_a_proj.weight", LATENT_QUERY, KV_A,
          LATENT_KV_ROPE, HIDDEN),
};
TABLE(latent);

#define EXPERTS(held)                                                                                        \
    EXPERT(held("1"), held("2"), "mlp.experts.#.gate_proj", "mlp.experts.#.up_proj",                         \
           "mlp.experts.#.down_proj", EXPERT_INNER)
static const struct ws_megatron_row experts_rows[] = {
    MATRIX(LAYER "mlp.router.weight", "mlp.gate.weight", WS_MEGATRON_WHOLE, EXPERTS, HIDDEN),
    EXPERTS(SEQUENTIAL),
    EXPERTS(GROUPED),
};
TABLE(experts);

#define MIXTRAL(held)                                                                                        \
    EXPERT(held("1"), held("2"), "block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3",           \
           "block_sparse_moe.experts.#.w2", INNER)
static const struct ws_megatron_row mixtral_rows[] = {
    MATRIX(LAYER "mlp.router.weight", "block_sparse_moe.gate.weight", WS_MEGATRON_WHOLE, EXPERTS, HIDDEN),
    MIXTRAL(SEQUENTIAL),
    MIXTRAL(GROUPED),
};
TABLE(mixtral);

/* Not cut as experts are, but over the tensor-parallel group. */
static const struct ws_megatron_row shared_experts_rows[] = {
    STACK(LAYER "mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.gate_proj.weight", SHARED_INNER,
          "mlp.shared_experts.up_proj.weight", SHARED_INNER, HIDDEN),
    MATRIX(LAYER "mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.down_proj.weight", ROW, HIDDEN,
           SHARED_INNER),
};
TABLE(shared_experts);

static const struct ws_megatron_row router_bias_rows[] = {
    {.held = LAYER "mlp.router.expert_bias",
     .parts = {{"mlp.gate.e_score_correction_bias", SIZE(EXPERTS)}},
     .f32 = true},
};
TABLE(router_bias);

/* Qwen3-Next and Qwen3.5: attention whose queries have gates, and layers of linear attention (gated delta net), of which
 * Qwen3-Next's file has query, key, value and gate of each key head together. Its module of transformers', which slime and miles put in place of
 * Megatron's, is on all ranks whole. */
#define LINEAR(what) "linear_attn." what
#define QKVZ         LINEAR("in_proj_qkvz.weight")
#define BA           LINEAR("in_proj_ba.weight")
#define THEIRS(what, size, c)                                                                                \
    MATRIX(LAYER "self_attention." LINEAR(what), LINEAR(what), WS_MEGATRON_WHOLE, size, c)
static const struct ws_megatron_row gated_rows[] = {
    NORM(LAYER "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", HIDDEN),
    {.held = LAYER "self_attention.linear_qkv.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_GATED_QKV,
     .parts = {{"self_attn.q_proj.weight", SIZE(GATED_QUERIES)},
               {"self_attn.k_proj.weight", SIZE(KEYS)},
               {"self_attn.v_proj.weight", SIZE(KEYS)}},
     .columns = SIZE(HIDDEN)},
    NORM(LAYER "self_attention.in_proj.layer_norm_weight", "input_layernorm.weight", HIDDEN),
    {.held = LAYER "self_attention.conv1d.weight",
     .cut = WS_MEGATRON_SECTIONS,
     .form = WS_MEGATRON_GROUPS,
     .parts = {{LINEAR("conv1d.weight"), SIZE(LINEAR_KEYS)},
               {LINEAR("conv1d.weight"), SIZE(LINEAR_KEYS)},
               {LINEAR("conv1d.weight"), SIZE(LINEAR_VALUES)}},
     .columns = SIZE(ONE),
     .depth = SIZE(LINEAR_KERNEL),
     .groups = SIZE(ONE)},
    MATRIX(LAYER "self_attention.A_log", LINEAR("A_log"), COLUMN, LINEAR_VALUE_HEADS, ANY),
    MATRIX(LAYER "self_attention.dt_bias", LINEAR("dt_bias"), COLUMN, LINEAR_VALUE_HEADS, ANY),
    {.held = LAYER "self_attention.out_norm.weight",
     .parts = {{LINEAR("norm.weight"), SIZE(LINEAR_VALUE_HEAD)}},
     .norm = true,
     .factor = true},
    MATRIX(LAYER "self_attention.out_proj.weight", LINEAR("out_proj.weight"), ROW, HIDDEN, LINEAR_VALUES),
    MATRIX(LAYER "self_attention.input_layernorm.weight", "input_layernorm.weight", WS_MEGATRON_WHOLE, HIDDEN,
           ANY),
    {.held = LAYER "self_attention." LINEAR("conv1d.weight"),
     .parts = {{LINEAR("conv1d.weight"), SIZE(ANY)}},
     .columns = SIZE(ONE),
     .depth = SIZE(LINEAR_KERNEL)},
    THEIRS("A_log", LINEAR_VALUE_HEADS, ANY),
    THEIRS("dt_bias", LINEAR_VALUE_HEADS, ANY),
    THEIRS("norm.weight", LINEAR_VALUE_HEAD, ANY),
    THEIRS("out_proj.weight", HIDDEN, LINEAR_VALUES),
};
TABLE(gated);

static const struct ws_megatron_row qwen3_next_rows[] = {
    {.held = LAYER "self_attention.in_proj.weight",
     .cut = WS_MEGATRON_SECTIONS,
     .form = WS_MEGATRON_GROUPS,
     .parts = {{QKVZ, SIZE(LINEAR_KEYS)},
               {QKVZ, SIZE(LINEAR_KEYS)},
               {QKVZ, SIZE(LINEAR_VALUES)},
               {QKVZ, SIZE(LINEAR_VALUES)},
               {BA, SIZE(LINEAR_VALUE_HEADS)},
               {BA, SIZE(LINEAR_VALUE_HEADS)}},
     .columns = SIZE(HIDDEN),
     .groups = SIZE(LINEAR_KEY_HEADS)},
    THEIRS("in_proj_qkvz.weight", ANY, HIDDEN),
    THEIRS("in_proj_ba.weight", ANY, HIDDEN),
};
TABLE(qwen3_next);

/* The one shared expert of both, which has a gate. */
static const struct ws_megatron_row gated_expert_rows[] = {
    MATRIX(LAYER "mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight", WS_MEGATRON_WHOLE, ONE,
           HIDDEN),
    STACK(LAYER "mlp.shared_experts.linear_fc1.weight", "mlp.shared_expert.gate_proj.weight",
          ONE_SHARED_INNER, "mlp.shared_expert.up_proj.weight", ONE_SHARED_INNER, HIDDEN),
    MATRIX(LAYER "mlp.shared_experts.linear_fc2.weight", "mlp.shared_expert.down_proj.weight", ROW, HIDDEN,
           ONE_SHARED_INNER),
};
TABLE(gated_expert);

/* Qwen3.5's file has them as Megatron has, in four tensors. */
#define QKV LINEAR("in_proj_qkv.weight")
static const struct ws_megatron_row qwen3_5_rows[] = {
    {.held = LAYER "self_attention.in_proj.weight",
     .cut = WS_MEGATRON_SECTIONS,
     .form = WS_MEGATRON_GROUPS,
     .parts = {{QKV, SIZE(LINEAR_KEYS)},
               {QKV, SIZE(LINEAR_KEYS)},
               {QKV, SIZE(LINEAR_VALUES)},
               {LINEAR("in_proj_z.weight"), SIZE(LINEAR_VALUES)},
               {LINEAR("in_proj_b.weight"), SIZE(LINEAR_VALUE_HEADS)},
               {LINEAR("in_proj_a.weight"), SIZE(LINEAR_VALUE_HEADS)}},
     .columns = SIZE(HIDDEN),
     .groups = SIZE(ONE)},
    THEIRS("in_proj_qkv.weight", ANY, HIDDEN),
    THEIRS("in_proj_z.weight", LINEAR_VALUES, HIDDEN),
    THEIRS("in_proj_b.weight", LINEAR_VALUE_HEADS, HIDDEN),
    THEIRS("in_proj_a.weight", LINEAR_VALUE_HEADS, HIDDEN),
};
TABLE(qwen3_5);

/* GLM-4 without experts: the file has gate and up in one tensor; its norms behind the layers are forks' of Megatron, by the
 * file's names. */
static const struct ws_megatron_row glm4_rows[] = {
    NORM(LAYER "mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", HIDDEN),
    {.held = LAYER "mlp.linear_fc1.weight",
     .cut = WS_MEGATRON_SECTIONS,
     .form = WS_MEGATRON_GROUPS,
     .parts = {{"mlp.gate_up_proj.weight", SIZE(INNER)}, {"mlp.gate_up_proj.weight", SIZE(INNER)}},
     .columns = SIZE(HIDDEN),
     .groups = SIZE(ONE)},
    MATRIX(LAYER "mlp.linear_fc2.weight", "mlp.down_proj.weight", ROW, HIDDEN, INNER),
    NORM(LAYER "post_self_attn_layernorm.weight", "post_self_attn_layernorm.weight", HIDDEN),
    NORM(LAYER "post_mlp_layernorm.weight", "post_mlp_layernorm.weight", HIDDEN),
};
TABLE(glm4);

/* Gemma 2 and 3 in Megatron-Bridge's modules: norms before and behind attention and MLP. Its table comes first, since the file's
 * post_attention_layernorm is another one than that of other families. */
static const struct ws_megatron_row gemma_rows[] = {
    NORM(LAYER "mlp.linear_fc1.layer_norm_weight", "pre_feedforward_layernorm.weight", HIDDEN),
    NORM(LAYER "pre_mlp_layernorm.weight", "pre_feedforward_layernorm.weight", HIDDEN),
    NORM(LAYER "self_attention.linear_proj.post_layernorm.weight", "post_attention_layernorm.weight", HIDDEN),
    NORM(LAYER "mlp.linear_fc2.post_layernorm.weight", "post_feedforward_layernorm.weight", HIDDEN),
};
TABLE(gemma);

/* Nemotron-H: a layer is a mixer and its norm, which Transformer Engine fuses into the projection behind it. Of Mamba the file has
 * gate, input, B, C and time steps one below the other, as Megatron has, but not cut. Newer releases of Megatron keep the
 * convolution's tensors in the mixer itself. */
#define MIXER "mixer."
#define MAMBA_CONV(name, what, c, d)                                                                         \
    {                                                                                                        \
        .held = LAYER MIXER name, .cut = WS_MEGATRON_SECTIONS, .form = WS_MEGATRON_GROUPS,                   \
        .parts = {{MIXER "conv1d." what, SIZE(MAMBA_INNER)},                                                 \
                  {MIXER "conv1d." what, SIZE(MAMBA_STATES)},                                                \
                  {MIXER "conv1d." what, SIZE(MAMBA_STATES)}},                                               \
        .columns = SIZE(c), .depth = SIZE(d), .groups = SIZE(ONE)                                            \
    }
#define NEMOTRON_EXPERT(name)                                                                                \
    {.held = LAYER name("1"),                                                                                \
     .cut = COLUMN,                                                                                          \
     .parts = {{MIXER "experts.#.up_proj.weight", SIZE(EXPERT_INNER)}},                                      \
     .columns = SIZE(HIDDEN),                                                                                \
     .expert = true},                                                                                        \
    {                                                                                                        \
        .held = LAYER name("2"), .cut = ROW, .parts = {{MIXER "experts.#.down_proj.weight", SIZE(HIDDEN)}},  \
        .columns = SIZE(EXPERT_INNER), .expert = true                                                        \
    }
static const struct ws_megatron_row nemotron_h_rows[] = {
    {.held = "embedding.word_embeddings.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_VOCABULARY,
     .parts = {{"backbone.embeddings.weight", SIZE(VOCABULARY_ROWS)}},
     .columns = SIZE(HIDDEN)},
    {.held = "output_layer.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_OUTPUT,
     .parts = {{"lm_head.weight", SIZE(VOCABULARY_ROWS)}},
     .columns = SIZE(HIDDEN)},
    NORM("decoder.final_norm.weight", "backbone.norm_f.weight", HIDDEN),
    NORM(LAYER "mixer.in_proj.layer_norm_weight", "norm.weight", HIDDEN),
    NORM(LAYER "norm.weight", "norm.weight", HIDDEN),
    {.held = LAYER "mixer.in_proj.weight",
     .cut = WS_MEGATRON_SECTIONS,
     .form = WS_MEGATRON_GROUPS,
     .parts = {{MIXER "in_proj.weight", SIZE(MAMBA_INNER)},
               {MIXER "in_proj.weight", SIZE(MAMBA_INNER)},
               {MIXER "in_proj.weight", SIZE(MAMBA_STATES)},
               {MIXER "in_proj.weight", SIZE(MAMBA_STATES)},
               {MIXER "in_proj.weight", SIZE(MAMBA_HEADS)}},
     .columns = SIZE(HIDDEN),
     .groups = SIZE(ONE)},
    MAMBA_CONV("conv1d.weight", "weight", ONE, MAMBA_KERNEL),
    MAMBA_CONV("conv1d_weight", "weight", ONE, MAMBA_KERNEL),
    MAMBA_CONV("conv1d.bias", "bias", ANY, ANY),
    MAMBA_CONV("conv1d_bias", "bias", ANY, ANY),
    MATRIX(LAYER "mixer.A_log", MIXER "A_log", COLUMN, MAMBA_HEADS, ANY),
    MATRIX(LAYER "mixer.D", MIXER "D", COLUMN, MAMBA_HEADS, ANY),
    MATRIX(LAYER "mixer.dt_bias", MIXER "dt_bias", COLUMN, MAMBA_HEADS, ANY),
    MATRIX(LAYER "mixer.norm.weight", MIXER "norm.weight", COLUMN, MAMBA_INNER, ANY),
    MATRIX(LAYER "mixer.out_proj.weight", MIXER "out_proj.weight", ROW, HIDDEN, MAMBA_INNER),
    NORM(LAYER "self_attention.linear_qkv.layer_norm_weight", "norm.weight", HIDDEN),
    NORM(LAYER "input_layernorm.weight", "norm.weight", HIDDEN),
    {.held = LAYER "self_attention.linear_qkv.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_QKV,
     .parts = {{MIXER "q_proj.weight", SIZE(QUERIES)},
               {MIXER "k_proj.weight", SIZE(KEYS)},
               {MIXER "v_proj.weight", SIZE(KEYS)}},
     .columns = SIZE(HIDDEN)},
    MATRIX(LAYER "self_attention.linear_proj.weight", MIXER "o_proj.weight", ROW, HIDDEN, ATTENTION),
    NORM(LAYER "mlp.linear_fc1.layer_norm_weight", "norm.weight", HIDDEN),
    NORM(LAYER "pre_mlp_layernorm.weight", "norm.weight", HIDDEN),
    MATRIX(LAYER "mlp.linear_fc1.weight", MIXER "up_proj.weight", COLUMN, INNER, HIDDEN),
    MATRIX(LAYER "mlp.linear_fc2.weight", MIXER "down_proj.weight", ROW, HIDDEN, INNER),
    MATRIX(LAYER "mlp.router.weight", MIXER "gate.weight", WS_MEGATRON_WHOLE, EXPERTS, HIDDEN),
    {.held = LAYER "mlp.router.expert_bias",
     .parts = {{MIXER "gate.e_score_correction_bias", SIZE(EXPERTS)}},
     .f32 = true},
    NEMOTRON_EXPERT(SEQUENTIAL),
    NEMOTRON_EXPERT(GROUPED),
    MATRIX(LAYER "mlp.shared_experts.linear_fc1.weight", MIXER "shared_experts.up_proj.weight", COLUMN,
           SHARED_SIZE, HIDDEN),
    MATRIX(LAYER "mlp.shared_experts.linear_fc2.weight", MIXER "shared_experts.down_proj.weight", ROW, HIDDEN,
           SHARED_SIZE),
};
TABLE(nemotron_h);

/* Layers of multi-token prediction. Megatron's projection takes the embedding beside the hidden state, DeepSeek's and GLM's,
 * too; MiMo's the other way round. */
#define MTP_LAYER "mtp.layers.#."
static const struct ws_megatron_row deepseek_mtp_rows[] = {
    MATRIX(MTP_LAYER "eh_proj.weight", "eh_proj.weight", COLUMN, HIDDEN, TWICE_HIDDEN),
    NORM(MTP_LAYER "enorm.weight", "enorm.weight", HIDDEN),
    NORM(MTP_LAYER "hnorm.weight", "hnorm.weight", HIDDEN),
    NORM(MTP_LAYER "final_layernorm.weight", "shared_head.norm.weight", HIDDEN),
};
TABLE(deepseek_mtp);
static const struct ws_megatron_mtp deepseek_layers = {&deepseek_mtp, "model.layers.", true,
                                                       "embed_tokens.weight", "shared_head.head.weight"};

static const struct ws_megatron_row mimo_mtp_rows[] = {
    {.held = MTP_LAYER "eh_proj.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_SWAPPED,
     .parts = {{"input_proj.weight", SIZE(HIDDEN)}},
     .columns = SIZE(TWICE_HIDDEN)},
    NORM(MTP_LAYER "enorm.weight", "token_layernorm.weight", HIDDEN),
    NORM(MTP_LAYER "hnorm.weight", "hidden_layernorm.weight", HIDDEN),
    NORM(MTP_LAYER "final_layernorm.weight", "final_layernorm.weight", HIDDEN),
};
TABLE(mimo_mtp);
static const struct ws_megatron_mtp mimo_layers = {.table = &mimo_mtp, .layer = "model.mtp_layers."};

/* LoRA's matrices, in Megatron-Bridge's and NeMo's layers: one adapter of a fused layer, whose A then is that of each
 * of the file's layers, or (canonical) one of each. They are cut as the layer is that they are added to: A by its input
 * where that is cut, else by the rank; B by its output. */
#define LORA(name, file_name, how, r, c)                                                                     \
    MATRIX(LAYER name ".linear_in.weight", file_name ".lora_A.weight", how, ANY, c),                         \
        MATRIX(LAYER name ".linear_out.weight", file_name ".lora_B.weight", COLUMN, r, ANY)
static const struct ws_megatron_row attention_lora_rows[] = {
    {.held = LAYER "self_attention.linear_qkv.adapter.linear_in.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_EACH,
     .parts = {{"self_attn.q_proj.lora_A.weight", SIZE(ANY)},
               {"self_attn.k_proj.lora_A.weight", SIZE(ANY)},
               {"self_attn.v_proj.lora_A.weight", SIZE(ANY)}},
     .columns = SIZE(HIDDEN)},
    HEADS(LAYER "self_attention.linear_qkv.adapter.linear_out.weight", "lora_B.weight", ANY),
    LORA("self_attention.linear_proj.adapter", "self_attn.o_proj", ROW, HIDDEN, ATTENTION),
    LORA("self_attention.linear_qkv.adapter.adapter_q", "self_attn.q_proj", COLUMN, QUERIES, HIDDEN),
    LORA("self_attention.linear_qkv.adapter.adapter_k", "self_attn.k_proj", COLUMN, KEYS, HIDDEN),
    LORA("self_attention.linear_qkv.adapter.adapter_v", "self_attn.v_proj", COLUMN, KEYS, HIDDEN),
};
TABLE(attention_lora);

static const struct ws_megatron_row mlp_lora_rows[] = {
    {.held = LAYER "mlp.linear_fc1.adapter.linear_in.weight",
     .cut = COLUMN,
     .form = WS_MEGATRON_EACH,
     .parts = {{"mlp.gate_proj.lora_A.weight", SIZE(ANY)}, {"mlp.up_proj.lora_A.weight", SIZE(ANY)}},
     .columns = SIZE(HIDDEN)},
    STACK(LAYER "mlp.linear_fc1.adapter.linear_out.weight", "mlp.gate_proj.lora_B.weight", INNER,
          "mlp.up_proj.lora_B.weight", INNER, ANY),
    LORA("mlp.linear_fc2.adapter", "mlp.down_proj", ROW, HIDDEN, INNER),
    LORA("mlp.linear_fc1.adapter.adapter_gate", "mlp.gate_proj", COLUMN, INNER, HIDDEN),
    LORA("mlp.linear_fc1.adapter.adapter_up", "mlp.up_proj", COLUMN, INNER, HIDDEN),
};
TABLE(mlp_lora);

/* Each compared with the Hugging Face model whose logits it gives; layers of multi-token prediction, of which transformers
 * has no forward, MiMo, GLM-4 without experts, Gemma and Nemotron-H, by inverse mappings of random tensors. */
static const struct ws_megatron_family families[] = {
    {.model_types = {"llama", "qwen2", "mistral"},
     .tables = {&common, &mlp, &attention},
     .adapters = {&attention_lora, &mlp_lora}},
    {.model_types = {"mimo"},
     .tables = {&common, &mlp, &attention},
     .adapters = {&attention_lora, &mlp_lora},
     .mtp = &mimo_layers},
    {.model_types = {"qwen3"},
     .tables = {&common, &mlp, &attention, &head_norms},
     .adapters = {&attention_lora, &mlp_lora}},
    {.model_types = {"qwen3_moe"},
     .tables = {&common, &mlp, &attention, &head_norms, &experts},
     .adapters = {&attention_lora, &mlp_lora}},
    {.model_types = {"qwen3_next"},
     .tables = {&gated, &qwen3_next, &common, &head_norms, &experts, &gated_expert},
     .zero_centred = true,
     .gated = true},
    {.model_types = {"qwen3_5_text"},
     .tables = {&gated, &qwen3_5, &common, &head_norms, &mlp},
     .zero_centred = true,
     .gated = true},
    {.model_types = {"qwen3_5_moe_text"},
     .tables = {&gated, &qwen3_5, &common, &head_norms, &experts, &gated_expert},
     .zero_centred = true,
     .gated = true},
    {.model_types = {"mixtral"}, .tables = {&common, &attention, &mixtral}, .adapters = {&attention_lora}},
    {.model_types = {"deepseek_v2"}, .tables = {&common, &mlp, &latent, &experts, &shared_experts}},
    {.model_types = {"deepseek_v3", "kimi_k2"},
     .tables = {&common, &mlp, &latent, &experts, &shared_experts, &router_bias},
     .mtp = &deepseek_layers},
    {.model_types = {"glm4_moe"},
     .tables = {&common, &mlp, &attention, &head_norms, &experts, &shared_experts, &router_bias},
     .adapters = {&attention_lora, &mlp_lora},
     .mtp = &deepseek_layers},
    {.model_types = {"glm4"}, .tables = {&common, &glm4, &attention}, .interleaved = true},
    {.model_types = {"nemotron_h"}, .tables = {&nemotron_h}, .layers = "backbone.layers."},
    {.model_types = {"gemma2"}, .tables = {&gemma, &common, &mlp, &attention}, .zero_centred = true},
    {.model_types = {"gemma3_text"},
     .tables = {&gemma, &common, &mlp, &attention, &head_norms},
     .zero_centred = true},
};
#define N_FAMILIES (sizeof(families) / sizeof(families[0]))
#define N_TYPES    (sizeof(families[0].model_types) / sizeof(families[0].model_types[0]))

const struct ws_megatron_family *ws_megatron_family(const char *model_type)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (size_t k = 0; k < N_TYPES && families[i].model_types[k]; k++)
            if (strcmp(families[i].model_types[k], model_type) == 0)
                return &families[i];
    return NULL;
}

const char *ws_megatron_layers(const struct ws_megatron_family *f)
{
    return f->layers ? f->layers : "model.layers.";
}

void ws_megatron_model_types(char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (size_t k = 0; k < N_TYPES && families[i].model_types[k] && at < cap; k++)
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? ", " : "", families[i].model_types[k]);
}

#define MAX_NUMBERS 2 /* of a name */

/* Does the name match, with numbers for '#'? */
static bool match(const char *pattern, const char *name, uint64_t numbers[MAX_NUMBERS])
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

static bool is_layered(const char *pattern)
{
    return strncmp(pattern, LAYER, strlen(LAYER)) == 0;
}

/* What follows "mtp.layers.N.transformer_layer.", which newer releases call mtp_model_layer; NULL: it is no such name. */
static const char *below_mtp_layer(const char *held)
{
    static const char *const inner[] = {".transformer_layer.", ".mtp_model_layer."};
    const size_t before = strlen("mtp.layers.");
    if (strncmp(held, "mtp.layers.", before) != 0)
        return NULL;
    held += before + strspn(held + before, "0123456789");
    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
        if (strncmp(held, inner[i], strlen(inner[i])) == 0)
            return held + strlen(inner[i]);
    return NULL;
}

static bool find_in(const struct ws_megatron_table *t, const char *held, const char *below_mtp,
                    struct ws_megatron_match *out)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct ws_megatron_row *r = &t->rows[i];
        uint64_t numbers[MAX_NUMBERS] = {0};
        if (match(r->held, held, numbers))
            out->expert = numbers[1];
        else if (below_mtp && is_layered(r->held) && match(r->held + strlen(LAYER), below_mtp, numbers))
            out->expert = numbers[0];
        else
            continue;
        out->row = r;
        return true;
    }
    return false;
}

bool ws_megatron_find(const struct ws_megatron_family *f, bool adapter, const char *held,
                      struct ws_megatron_match *out)
{
    const struct ws_megatron_table *const *tables = adapter ? f->adapters : f->tables;
    const struct ws_megatron_mtp *mtp = adapter ? NULL : f->mtp;
    const char *below_mtp = mtp ? below_mtp_layer(held) : NULL;
    *out = (struct ws_megatron_match){0};
    bool found = mtp && find_in(mtp->table, held, NULL, out);
    out->mtp = found || below_mtp;
    for (size_t i = 0; i < WS_MEGATRON_TABLES && tables[i] && !found; i++)
        found = find_in(tables[i], held, below_mtp, out);
    out->layered = out->mtp || (found && is_layered(out->row->held));
    return found;
}
