/* Megatron's ranks: how their groups cut a model and its adapters, dtypes and norms, and what is refused. */
#include "tests/fixtures/megatron_rank.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NAME(...) (snprintf(name, sizeof(name), __VA_ARGS__), name)

static void mlp(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned layer,
                int expert, int local_expert, unsigned at, unsigned size)
{
    char name[128], held[2][96];
    uint64_t inner = expert < 0 ? m->inner : m->moe_inner;
    struct rows s;
    for (int k = 0; k < 2; k++) {
        if (expert < 0)
            snprintf(held[k], sizeof(held[k]), "decoder.layers.%u.mlp.linear_fc%d.weight", layer % 2, k + 1);
        else if (m->grouped)
            snprintf(held[k], sizeof(held[k]), "decoder.layers.%u.mlp.experts.linear_fc%d.weight%d",
                     layer % 2, k + 1, local_expert);
        else
            snprintf(held[k], sizeof(held[k]),
                     "decoder.layers.%u.mlp.experts.local_experts.%d.linear_fc%d.weight", layer % 2,
                     local_expert, k + 1);
    }
    char base[64];
    if (expert < 0)
        snprintf(base, sizeof(base), "model.layers.%u.mlp", layer);
    else
        snprintf(base, sizeof(base), "model.layers.%u.mlp.experts.%d", layer, expert);
    rows_new(&s, 2 * inner, m->hidden);
    rows_take(&s, file_tensor(w, NAME("%s.gate_proj.weight", base), inner, m->hidden), 0, inner);
    rows_take(&s, file_tensor(w, NAME("%s.up_proj.weight", base), inner, m->hidden), 0, inner);
    megatron_hold(w, rank, &s.g, (*h)++, held[0], layer + 1, WSYNC_STRIDED_SHARD, 0, at, size);
    free(s.g.values);
    struct tensor *down = file_tensor(w, NAME("%s.down_proj.weight", base), m->hidden, inner);
    struct global g = {.n_dims = 2, .shape = {m->hidden, inner}, .values = down->values};
    megatron_hold(w, rank, &g, (*h)++, held[1], layer + 1, WSYNC_SHARD, 1, at, size);
}

static void attention(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned layer,
                      unsigned at)
{
    char name[128];
    unsigned queries = m->heads / m->kv_heads, d = m->head_dim;
    for (int bias = 0; bias <= m->bias; bias++) {
        const char *what = bias ? "bias" : "weight";
        struct tensor *t[3];
        struct rows s;
        for (int k = 0; k < 3; k++)
            t[k] = file_tensor(w, NAME("model.layers.%u.self_attn.%c_proj.%s", layer, "qkv"[k], what),
                               (k ? m->kv_heads : m->heads) * d, bias ? 0 : m->hidden);
        rows_new(&s, (m->heads + 2 * m->kv_heads) * d, bias ? 0 : m->hidden);
        for (unsigned group = 0; group < m->kv_heads; group++) {
            rows_take(&s, t[0], group * queries * d, queries * d);
            rows_take(&s, t[1], group * d, d);
            rows_take(&s, t[2], group * d, d);
        }
        megatron_hold(w, rank, &s.g, (*h)++,
                      NAME("module.decoder.layers.%u.self_attention.linear_qkv.%s", layer % 2, what),
                      layer + 1, WSYNC_SHARD, 0, at, m->tp);
        free(s.g.values);
    }
    struct tensor *o =
        file_tensor(w, NAME("model.layers.%u.self_attn.o_proj.weight", layer), m->hidden, m->heads * d);
    struct global g = {.n_dims = 2, .shape = {m->hidden, (uint64_t)m->heads * d}, .values = o->values};
    megatron_hold(w, rank, &g, (*h)++, NAME("decoder.layers.%u.self_attention.linear_proj.weight", layer % 2),
                  layer + 1, WSYNC_SHARD, 1, at, m->tp);
}

static void megatron_rank(struct world *w, struct gpt *m, unsigned rank)
{
    wsync_held *held = calloc(256, sizeof(*held)), *h = held;
    char name[128], file[128];
    const unsigned dp = m->dp ? m->dp : 1, model = rank / dp, per_model = w->n_ranks / dp / m->pp;
    unsigned stage = model / per_model, in_stage = model % per_model, per_stage = m->layers / m->pp;
    unsigned tp = in_stage % m->tp, etp = in_stage % m->etp, ep = in_stage / m->etp % m->ep;
    if (stage == 0)
        vocabulary(w, rank, &h, m, "embedding.word_embeddings.weight", "model.embed_tokens.weight", tp);
    for (unsigned layer = stage * per_stage; layer < (stage + 1) * per_stage; layer++) {
        snprintf(file, sizeof(file), "model.layers.%u.input_layernorm.weight", layer);
        whole(w, rank, h++, NAME("decoder.layers.%u.input_layernorm.weight", layer % 2), layer + 1, file,
              m->hidden, 0);
        attention(w, rank, &h, m, layer, tp);
        if (!m->moe) {
            mlp(w, rank, &h, m, layer, -1, 0, tp, m->tp);
            continue;
        }
        snprintf(file, sizeof(file), "model.layers.%u.mlp.gate.weight", layer);
        whole(w, rank, h++, NAME("decoder.layers.%u.mlp.router.weight", layer % 2), layer + 1, file,
              m->experts, m->hidden);
        for (unsigned j = 0; j < m->experts / m->ep; j++)
            mlp(w, rank, &h, m, layer, (int)(ep * (m->experts / m->ep) + j), (int)j, etp, m->etp);
    }
    if (stage == m->pp - 1) {
        whole(w, rank, h++, "decoder.final_layernorm.weight", 0, "model.norm.weight", m->hidden, 0);
        if (!m->tied)
            vocabulary(w, rank, &h, m, "output_layer.weight", "lm_head.weight", tp);
        else if (m->pp > 1) /* the last stage's copy of the embedding */
            vocabulary(w, rank, &h, m, "output_layer.weight", "model.embed_tokens.weight", tp);
    }
    wsync_extract_options o = {.struct_size = sizeof(o),
                               .kind = "megatron",
                               .hf_config = m->config,
                               .tensor = {tp, m->tp},
                               .expert = {ep, m->ep},
                               .expert_tensor = {etp, m->etp}};
    extract_ranges(w, rank, &o, held, (size_t)(h - held), dp);
}

static void test_megatron(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 400; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.kv_heads = 1U << below(3),
                        .head_dim = 1 + below(4),
                        .tp = 1U << below(3),
                        .pp = 1 + below(2),
                        .ep = 1,
                        .tied = below(2),
                        .moe = below(2),
                        .bias = below(2),
                        .grouped = below(2),
                        .layers = 4};
        m.heads = m.kv_heads * (1 + below(3));
        while ((m.heads + 2 * m.kv_heads) * m.head_dim % m.tp || m.heads * m.head_dim % m.tp)
            m.tp /= 2;
        m.hidden = 1 + below(7);
        m.inner = m.tp * (1 + below(4));
        m.moe_inner = 4 * (1 + below(2));
        m.vocab = 1 + below(20);
        m.padded = (m.vocab + 2 * m.tp - 1) / (2 * m.tp) * 2 * m.tp;
        m.etp = m.tp;
        if (m.moe) {
            m.ep = 1U << below(2);
            m.experts = m.ep * (1 + below(3));
            m.etp = 1U << below(2);
        }
        unsigned stage = m.tp > m.ep * m.etp ? m.tp : m.ep * m.etp;
        m.dp = 1 + below(3);
        w->n_ranks = stage * m.pp * m.dp;
        write_config(&m);
        for (unsigned r = 0; r < w->n_ranks; r++)
            megatron_rank(w, &m, r);
        check_world(w);
        assert_int_equal(tensor_named(w, "lm_head.weight") == NULL, m.tied);
        unlink(m.config);
        world_free(w);
    }
}

/* The router's bias stays in F32 whatever the file is in, or is asked for. */
static void test_router_bias(void **state)
{
    static const char text[] =
        "{\"model_type\":\"glm4_moe\",\"n_routed_experts\":4,\"hidden_size\":3,\"dtype\":\"bfloat16\"}";
    struct gpt m = {0};
    float data[12] = {0};
    const wsync_held h[] = {{.name = "decoder.layers.0.mlp.router.expert_bias",
                             .dtype = WSYNC_F32,
                             .n_dims = 1,
                             .shape = {4},
                             .local = {4},
                             .layer = 2,
                             .data = data},
                            {.name = "decoder.layers.0.mlp.router.weight",
                             .dtype = WSYNC_F32,
                             .n_dims = 2,
                             .shape = {4, 3},
                             .local = {4, 3},
                             .layer = 2,
                             .data = data}};
    wsync_extract_options o = {.struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config};
    wsync_extraction *e;
    size_t n;
    (void)state;
    write_text(&m, text, (int)strlen(text));
    for (unsigned round = 0; round < 2; round++) {
        assert_int_equal(wsync_extract(&o, h, 2, &e), 0);
        const wsync_param *p = wsync_extraction_params(e, &n);
        assert_int_equal(n, 2);
        assert_string_equal(p[0].name, "model.layers.1.mlp.gate.e_score_correction_bias");
        assert_int_equal(p[0].dtype, WSYNC_F32);
        assert_int_equal(p[1].dtype, WSYNC_BF16);
        wsync_extraction_free(e);
        o.dtype = "BF16";
    }
    unlink(m.config);
}

/* What a family's tables do not have, and what config.json contradicts: the rank, the tensor and what to do. */
static void test_megatron_contradictions(void **state)
{
    static const char deepseek[] = "{\"model_type\":\"deepseek_v3\",\"num_attention_heads\":4,\"hidden_"
                                   "size\":8,\"q_lora_rank\":6,\"kv_lora_rank\":4,"
                                   "\"qk_nope_head_dim\":3,\"qk_rope_head_dim\":2,\"v_head_dim\":3,\"num_"
                                   "hidden_layers\":2,\"vocab_size\":9,\"n_routed_experts\":4}";
    static const struct {
        const char *held;
        unsigned rows, columns, layer;
        int rc;
        const char *says;
    } all[] = {
        {"decoder.layers.0.self_attention.linear_qkv.weight", 8, 8, 1, -EOPNOTSUPP,
         "model_type 'deepseek_v3'"},
        {"decoder.layers.0.self_attention.linear_q_proj.weight", 10, 8, 1, -EINVAL, "without q_lora_rank"},
        {"decoder.layers.0.self_attention.linear_q_down_proj.weight", 2, 8, 1, -EINVAL,
         "tensor-parallel rank 1 of 2: the 2 rows that it holds make 4 of all ranks, and config.json says 6 "
         "(q_lora_rank)"},
        {"decoder.layers.0.self_attention.linear_q_up_proj.weight", 20, 6, 1, -EINVAL,
         "make 40 of all ranks, and config.json says 20"},
        {"decoder.layers.0.self_attention.linear_q_up_proj.weight", 10, 4, 1, -EINVAL,
         "4 columns that it holds make 4"},
        {"decoder.layers.0.self_attention.linear_proj.weight", 8, 12, 1, -EINVAL,
         "make 24 of all ranks, and config.json says 12 (num_attention_heads * v_head_dim)"},
        {"decoder.layers.0.mlp.linear_fc1.weight", 8, 8, 1, -EINVAL,
         "does not give its size, which is intermediate_size"},
        {"decoder.layers.0.input_layernorm.weight", 8, 0, 3, -EINVAL, "layer 3, and config.json has 2"},
        {"mtp.layers.0.eh_proj.weight", 4, 16, 0, -EINVAL, "without the number of its layer"},
        {"mtp.layers.0.eh_proj.weight", 4, 16, 1, -EINVAL,
         "layer 1 of multi-token prediction, and config.json has 0 (num_nextn_predict_layers"},
        {"mtp.layers.0.transformer_layer.mlp.linear_fc3.weight", 4, 16, 1, -EOPNOTSUPP,
         "multi-token prediction"},
        {"decoder.layers.0.mlp.experts.linear_fc2.weight9", 8, 8, 1, -EINVAL, "and this is number 9"},
    };
    struct gpt m = {0};
    wsync_extract_options o = {
        .struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config, .tensor = {1, 2}};
    (void)state;
    write_text(&m, deepseek, (int)strlen(deepseek));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const wsync_held h = {.name = all[i].held,
                              .dtype = WSYNC_F32,
                              .n_dims = all[i].columns ? 2 : 1,
                              .shape = {all[i].rows, all[i].columns},
                              .local = {all[i].rows, all[i].columns},
                              .layer = all[i].layer};
        refused(all[i].rc, &o, &h, all[i].held, all[i].says);
    }
    static const char *const features[] = {"fp8", "multi_latent_attention", "fp8_param"};
    const wsync_held norm = {.name = "decoder.final_layernorm.weight",
                             .dtype = WSYNC_F32,
                             .n_dims = 1,
                             .shape = {8},
                             .local = {8}};
    wsync_extraction *e;
    o.features = features;
    o.n_features = 2;
    assert_int_equal(wsync_extract(&o, &norm, 1, &e), 0);
    wsync_extraction_free(e);
    o.n_features = 3;
    refused(-EOPNOTSUPP, &o, &norm, "fp8_param", "in FP8");
    unlink(m.config);
}

/* A folder with one file of weights, which has this one tensor of four elements. */
static void write_base(char folder[32], const char *name, const char *dtype, unsigned bytes)
{
    char path[64], header[300];
    const int n =
        snprintf(header, sizeof(header), "{\"%s\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%u]}}",
                 name, dtype, bytes);
    const uint64_t length = (uint64_t)n;
    const char zeros[16] = {0};
    strcpy(folder, "/tmp/base.XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(&length, sizeof(length), 1, f), 1);
    assert_int_equal(fwrite(header, 1, (size_t)n, f), (size_t)n);
    assert_int_equal(fwrite(zeros, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void remove_base(const char *folder)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    unlink(path);
    rmdir(folder);
}

#define ROUTER_BIAS "model.layers.0.mlp.gate.e_score_correction_bias"

/* The router's bias is F32 whatever the model is in; where a base has it, it is as there. */
static void test_router_bias_with_base(void **state)
{
    static const char config[] =
        "{\"model_type\":\"deepseek_v3\",\"n_routed_experts\":4,\"dtype\":\"bfloat16\"}";
    static const struct {
        const char *name, *dtype;
        unsigned bytes;
        wsync_dtype expected;
    } all[] = {{ROUTER_BIAS, "F32", 16, WSYNC_F32},
               {ROUTER_BIAS, "BF16", 8, WSYNC_BF16},
               {"model.layers.1.mlp.gate.e_score_correction_bias", "BF16", 8, WSYNC_F32}};
    const wsync_held h = {.name = "decoder.layers.0.mlp.router.expert_bias",
                          .dtype = WSYNC_F32,
                          .n_dims = 1,
                          .shape = {4},
                          .local = {4},
                          .layer = 1};
    struct gpt m = {0};
    (void)state;
    write_text(&m, config, (int)strlen(config));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char folder[32];
        wsync_extraction *e;
        size_t n;
        write_base(folder, all[i].name, all[i].dtype, all[i].bytes);
        const wsync_extract_options o = {
            .struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config, .base = folder};
        assert_int_equal(wsync_extract(&o, &h, 1, &e), 0);
        const wsync_param *p = wsync_extraction_params(e, &n);
        assert_int_equal(n, 1);
        assert_string_equal(p->name, ROUTER_BIAS);
        assert_int_equal(p->dtype, all[i].expected);
        assert_int_equal(p->converts, all[i].expected != WSYNC_F32);
        wsync_extraction_free(e);
        remove_base(folder);
    }
    unlink(m.config);
}

/* A base whose experts are in one tensor, beside which each expert's would be a second copy. */
static void test_base_with_stacked_experts(void **state)
{
    static const char config[] =
        "{\"model_type\":\"qwen3_5_moe_text\",\"hidden_size\":2,\"moe_intermediate_size\":2,"
        "\"num_experts\":1}";
    static const char *const features[] = {"layernorm_zero_centered_gamma"};
    static const struct {
        const char *name;
        bool refused;
    } all[] = {{"model.layers.0.mlp.experts.down_proj", true},
               {"model.layers.1.mlp.experts.down_proj", false},
               {"model.layers.0.mlp.shared_experts.down_proj", false}};
    const wsync_held h = {.name = "decoder.layers.0.mlp.experts.linear_fc2.weight0",
                          .dtype = WSYNC_F32,
                          .n_dims = 2,
                          .shape = {2, 2},
                          .local = {2, 2},
                          .layer = 1};
    struct gpt m = {0};
    (void)state;
    write_text(&m, config, (int)strlen(config));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char folder[32];
        wsync_extraction *e;
        write_base(folder, all[i].name, "F32", 16);
        const wsync_extract_options o = {.struct_size = sizeof(o),
                                         .kind = "megatron",
                                         .hf_config = m.config,
                                         .base = folder,
                                         .features = features,
                                         .n_features = 1};
        if (all[i].refused) {
            refused(-EOPNOTSUPP, &o, &h, all[i].name, "leave base= out");
        } else {
            assert_int_equal(wsync_extract(&o, &h, 1, &e), 0);
            wsync_extraction_free(e);
        }
        remove_base(folder);
    }
    unlink(m.config);
}

/* A model, or a rank that has them, with fewer layers of multi-token prediction than config.json: refused, unless a base has the
 * others; a model without any is not. */
static void test_missing_mtp_layers(void **state)
{
    static const char config[] = "{\"model_type\":\"deepseek_v3\",\"hidden_size\":4,\"num_hidden_layers\":1,"
                                 "\"num_nextn_predict_layers\":2}";
    static const char *const one[] = {"mtp_num_layers", "mtp_num_layers=1"}, *const two[] = {
                                                                                 "mtp_num_layers",
                                                                                 "mtp_num_layers=2"};
    wsync_held all[] = {{.name = "mtp.layers.0.enorm.weight", .layer = 1},
                        {.name = "mtp.layers.1.enorm.weight", .layer = 2},
                        {.name = "decoder.final_layernorm.weight"}};
    struct gpt m = {0};
    char folder[32];
    wsync_extraction *e;
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        all[i].dtype = WSYNC_F32;
        all[i].n_dims = 1;
        all[i].shape[0] = all[i].local[0] = 4;
    }
    write_text(&m, config, (int)strlen(config));
    write_base(folder, "model.layers.2.enorm.weight", "F32", 16);
    wsync_extract_options o = {.struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config};
    assert_int_equal(wsync_extract(&o, &all[2], 1, &e), 0); /* a model without */
    wsync_extraction_free(e);
    o.n_features = 2;
    o.features = one;
    refused(-EINVAL, &o, &all[2], "has 1 layers of multi-token prediction, and config.json has 2",
            "build it with mtp_num_layers=2");
    o.features = two;
    refused(-EINVAL, &o, &all[0], "nothing of layer 2 of the 2", "all of the rank's model chunks");
    refused(-EINVAL, &o, &all[1], "nothing of layer 1 of the 2", "all of the rank's model chunks");
    assert_int_equal(wsync_extract(&o, &all[2], 1, &e), 0); /* a rank of another stage */
    wsync_extraction_free(e);
    assert_int_equal(wsync_extract(&o, all, 3, &e), 0);
    wsync_extraction_free(e);
    o.base = folder;
    assert_int_equal(wsync_extract(&o, all, 1, &e), 0);
    wsync_extraction_free(e);
    o.features = one;
    assert_int_equal(wsync_extract(&o, all, 1, &e), 0);
    wsync_extraction_free(e);
    remove_base(folder);
    unlink(m.config);
}

/* What no table describes is refused with its reason, whatever the sizes are: model types, options, held names. */
static void test_megatron_unknown(void **state)
{
    static const char *const types[][2] = {
        {"gpt_oss", "the experts transposed"},
        {"llama4", "stacked and transposed"},
        {"llama4_text", "stacked and transposed"},
        {"phi3", "query, key and value in one tensor"},
        {"deepseek_v32", "DSA"},
        {"glm_moe_dsa", "DSA"},
        {"falcon", "known here for llama, qwen2, "},
    };
    static const char *const options[][2] = {
        {"attention_output_gate", "query, gate, key and value are interleaved"},
        {"rotary_interleaved", "in another order than the file's"},
        {"moe_mlp_glu_interleave_size", "alternate in blocks"},
        {"moe_single_grouped_weight", "stacked in one tensor"},
        {"fp8_param", "in FP8"},
        {"fp4_param", "in FP4"},
    };
    static const char *const names[][2] = {
        {"decoder.layers.0.mlp.experts.weight1", "legacy GroupedMLP"},
        {"decoder.layers.0.mlp.experts.weight2", "legacy GroupedMLP"},
        {"decoder.layers.0.mlp.experts.linear_fc1.weight", "would be a guess"},
        {"decoder.layers.0.self_attention.core_attention.softmax_offset", "attention sinks"},
        {"decoder.layers.0.self_attention.core_attention.indexer.linear_wq_b.weight", "DSA"},
        {"mtp.layers.0.eh_proj.weight", "multi-token prediction"},
        {"decoder.layers.0.mlp.router.expert_bias", "would route without it"},
    };
    (void)state;
    wsync_held h = {.name = "decoder.final_layernorm.weight",
                    .dtype = WSYNC_F32,
                    .n_dims = 1,
                    .shape = {8},
                    .local = {8}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct gpt m = {0};
        char text[64];
        write_text(&m, text, snprintf(text, sizeof(text), "{\"model_type\":\"%s\"}", types[i][0]));
        const wsync_extract_options o = {.struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config};
        refused(-EOPNOTSUPP, &o, &h, types[i][0], types[i][1]);
        unlink(m.config);
    }
    static const char within[] =
        "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\"}}";
    struct gpt m = {0};
    write_text(&m, within, (int)strlen(within));
    const wsync_extract_options of_images = {
        .struct_size = sizeof(of_images), .kind = "megatron", .hf_config = m.config};
    refused(-EOPNOTSUPP, &of_images, &h, "'gemma3_text' within", "the config.json of the text model");
    unlink(m.config);
    static const char qwen[] = "{\"model_type\":\"qwen3_moe\",\"hidden_size\":8}";
    write_text(&m, qwen, (int)strlen(qwen));
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const wsync_extract_options o = {.struct_size = sizeof(o),
                                         .kind = "megatron",
                                         .hf_config = m.config,
                                         .features = &options[i][0],
                                         .n_features = 1};
        refused(-EOPNOTSUPP, &o, &h, options[i][0], options[i][1]);
    }
    const wsync_extract_options o = {.struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config};
    h.reserved = 1;
    refused(-EINVAL, &o, &h, h.name, "reserved is 1");
    h.reserved = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        h.name = names[i][0];
        h.layer = 1;
        refused(-EOPNOTSUPP, &o, &h, names[i][0], names[i][1]);
    }
    unlink(m.config);
}

/* Norms that the model stores less one, and the file does not: one is added, in the held type. */
static void test_zero_centred_norms(void **state)
{
    static const char text[] = "{\"model_type\":\"qwen3\",\"hidden_size\":4,\"dtype\":\"bfloat16\","
                               "\"num_attention_heads\":2,\"head_dim\":2}";
    static const char *const features[] = {"layernorm_zero_centered_gamma"};
    float data[16] = {0};
    struct gpt m = {0};
    wsync_held h[] = {{.name = "decoder.final_layernorm.weight",
                       .dtype = WSYNC_F32,
                       .n_dims = 1,
                       .shape = {4},
                       .local = {4},
                       .data = data},
                      {.name = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
                       .dtype = WSYNC_BF16,
                       .n_dims = 1,
                       .shape = {4},
                       .local = {4},
                       .layer = 1,
                       .data = data},
                      {.name = "decoder.layers.0.self_attention.linear_proj.weight",
                       .dtype = WSYNC_BF16,
                       .n_dims = 2,
                       .shape = {4, 4},
                       .local = {4, 4},
                       .layer = 1,
                       .data = data}};
    wsync_extract_options o = {
        .struct_size = sizeof(o), .kind = "megatron", .hf_config = m.config, .features = features};
    wsync_extraction *e;
    size_t n;
    (void)state;
    write_text(&m, text, (int)strlen(text));
    for (o.n_features = 0; o.n_features < 2; o.n_features++) {
        const int norm = o.n_features ? WSYNC_PLUS_1 : 0;
        assert_int_equal(wsync_extract(&o, h, 3, &e), 0);
        const wsync_param *p = wsync_extraction_params(e, &n);
        assert_int_equal(n, 3);
        assert_int_equal(p[0].converts, norm ? norm : 1);
        assert_int_equal(p[0].dtype, WSYNC_BF16);
        assert_int_equal(p[0].data_dtype, WSYNC_F32);
        assert_int_equal(p[1].converts, norm);
        assert_int_equal(p[1].data_dtype, WSYNC_BF16);
        assert_int_equal(p[2].converts, 0);
        wsync_extraction_free(e);
    }
    o.n_features = 1;
    h[0].dtype = WSYNC_U32;
    refused(-EOPNOTSUPP, &o, &h[0], h[0].name, "stored less one");
    unlink(m.config);
}

/* In the file of such a family norms are less one, too, but for one that is a factor; a model that has them as they are is refused. */
static void test_zero_centred_family(void **state)
{
    static const char text[] =
        "{\"model_type\":\"qwen3_next\",\"hidden_size\":4,\"linear_value_head_dim\":4}";
    static const char *const features[] = {"layernorm_zero_centered_gamma"};
    float data[4] = {0};
    struct gpt m = {0};
    wsync_held h[2] = {{.name = "decoder.final_layernorm.weight",
                        .dtype = WSYNC_F32,
                        .n_dims = 1,
                        .shape = {4},
                        .local = {4},
                        .data = data}};
    wsync_extract_options o = {.struct_size = sizeof(o),
                               .kind = "megatron",
                               .hf_config = m.config,
                               .features = features,
                               .n_features = 1};
    wsync_extraction *e;
    size_t n;
    (void)state;
    h[1] = h[0];
    h[1].name = "decoder.layers.0.self_attention.out_norm.weight";
    h[1].layer = 1;
    write_text(&m, text, (int)strlen(text));
    assert_int_equal(wsync_extract(&o, h, 2, &e), 0);
    const wsync_param *p = wsync_extraction_params(e, &n);
    assert_int_equal(n, 2);
    assert_int_equal(p[0].converts, 0);
    assert_string_equal(p[1].name, "model.layers.0.linear_attn.norm.weight");
    assert_int_equal(p[1].converts, WSYNC_PLUS_1);
    wsync_extraction_free(e);
    o.n_features = 0;
    refused(-EOPNOTSUPP, &o, &h[0], "qwen3_next", "build it with layernorm_zero_centered_gamma");
    unlink(m.config);
}

/* One matrix of an adapter: held whole or cut along dim, and one of the file's or each of several. */
static void matrix(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned layer,
                   unsigned at, const char *held, const char *const *files, unsigned n_files, uint64_t rows,
                   uint64_t columns, unsigned dim)
{
    char name[160], file[160];
    struct tensor *first = NULL;
    for (unsigned i = 0; i < n_files; i++) {
        snprintf(file, sizeof(file), "base_model.model.model.layers.%u.%s.weight", layer, files[i]);
        struct tensor *t = file_tensor(w, file, rows, columns);
        first = first ? first : t;
        if (t != first)
            memcpy(t->values, first->values, t->n * sizeof(*t->values));
    }
    struct global g = {.n_dims = 2, .shape = {rows, columns}, .values = first->values};
    snprintf(name, sizeof(name), "module.decoder.layers.%u.%s.weight", layer % 2, held);
    megatron_hold(w, rank, &g, (*h)++, name, layer + 1, WSYNC_SHARD, dim, at, m->tp);
}

/* A fused layer's B: [q, k, v] by groups, or [gate; up]. */
static void fused_matrices(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m,
                           unsigned layer, unsigned at, uint64_t r)
{
    static const char *const qkv[] = {"self_attn.q_proj.lora_A", "self_attn.k_proj.lora_A",
                                      "self_attn.v_proj.lora_A"};
    static const char *const gate_up[] = {"mlp.gate_proj.lora_A", "mlp.up_proj.lora_A"};
    char name[160];
    const unsigned d = m->head_dim, queries = m->heads / m->kv_heads;
    struct tensor *t[3];
    struct rows s;
    matrix(w, rank, h, m, layer, at, "self_attention.linear_qkv.adapter.linear_in", qkv, 3, r, m->hidden, 0);
    for (int k = 0; k < 3; k++)
        t[k] = file_tensor(
            w, NAME("base_model.model.model.layers.%u.self_attn.%c_proj.lora_B.weight", layer, "qkv"[k]),
            (k ? m->kv_heads : m->heads) * d, r);
    rows_new(&s, (m->heads + 2 * m->kv_heads) * d, r);
    for (unsigned group = 0; group < m->kv_heads; group++) {
        rows_take(&s, t[0], group * queries * d, queries * d);
        rows_take(&s, t[1], group * d, d);
        rows_take(&s, t[2], group * d, d);
    }
    megatron_hold(w, rank, &s.g, (*h)++,
                  NAME("decoder.layers.%u.self_attention.linear_qkv.adapter.linear_out.weight", layer % 2),
                  layer + 1, WSYNC_SHARD, 0, at, m->tp);
    free(s.g.values);
    matrix(w, rank, h, m, layer, at, "mlp.linear_fc1.adapter.linear_in", gate_up, 2, r, m->hidden, 0);
    rows_new(&s, 2UL * m->inner, r);
    rows_take(&s,
              file_tensor(w, NAME("base_model.model.model.layers.%u.mlp.gate_proj.lora_B.weight", layer),
                          m->inner, r),
              0, m->inner);
    rows_take(&s,
              file_tensor(w, NAME("base_model.model.model.layers.%u.mlp.up_proj.lora_B.weight", layer),
                          m->inner, r),
              0, m->inner);
    megatron_hold(w, rank, &s.g, (*h)++,
                  NAME("decoder.layers.%u.mlp.linear_fc1.adapter.linear_out.weight", layer % 2), layer + 1,
                  WSYNC_STRIDED_SHARD, 0, at, m->tp);
    free(s.g.values);
}

static void canonical_matrices(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m,
                               unsigned layer, unsigned at, uint64_t r)
{
    static const char *const parts[][2] = {
        {"self_attention.linear_qkv.adapter.adapter_q", "self_attn.q_proj"},
        {"self_attention.linear_qkv.adapter.adapter_k", "self_attn.k_proj"},
        {"self_attention.linear_qkv.adapter.adapter_v", "self_attn.v_proj"},
        {"mlp.linear_fc1.adapter.adapter_gate", "mlp.gate_proj"},
        {"mlp.linear_fc1.adapter.adapter_up", "mlp.up_proj"}};
    const uint64_t outputs[] = {(uint64_t)m->heads * m->head_dim, (uint64_t)m->kv_heads * m->head_dim,
                                (uint64_t)m->kv_heads * m->head_dim, m->inner, m->inner};
    for (unsigned i = 0; i < 5; i++) {
        char in[128], out[128], a[64], b[64];
        const char *file_a = a, *file_b = b;
        snprintf(in, sizeof(in), "%s.linear_in", parts[i][0]);
        snprintf(out, sizeof(out), "%s.linear_out", parts[i][0]);
        snprintf(a, sizeof(a), "%s.lora_A", parts[i][1]);
        snprintf(b, sizeof(b), "%s.lora_B", parts[i][1]);
        matrix(w, rank, h, m, layer, at, in, &file_a, 1, r, m->hidden, 0);
        matrix(w, rank, h, m, layer, at, out, &file_b, 1, outputs[i], r, 0);
    }
}

static void test_megatron_adapters(void **state)
{
    static const char *const files[] = {"self_attn.o_proj.lora_A", "self_attn.o_proj.lora_B",
                                        "mlp.down_proj.lora_A", "mlp.down_proj.lora_B"};
    (void)state;
    for (unsigned round = 0; round < 300; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {
            .kv_heads = 1U << below(3), .head_dim = 1 + below(4), .tp = 1U << below(3), .layers = 3};
        const bool canonical = below(2);
        m.heads = m.kv_heads * (1 + below(3));
        while ((m.heads + 2 * m.kv_heads) * m.head_dim % m.tp || m.heads * m.head_dim % m.tp ||
               m.kv_heads * m.head_dim % m.tp)
            m.tp /= 2;
        m.hidden = m.tp * (1 + below(3));
        m.inner = m.tp * (1 + below(4));
        m.vocab = 7;
        const uint64_t r = m.tp * (1 + below(2)), out = (uint64_t)m.heads * m.head_dim;
        w->n_ranks = m.tp * 2; /* each held twice, by data-parallel ranks */
        write_config(&m);
        for (unsigned rank = 0; rank < w->n_ranks; rank++) {
            wsync_held *held = calloc(256, sizeof(*held)), *h = held;
            const unsigned at = rank % m.tp;
            float base[4] = {0};
            for (unsigned layer = 0; layer < m.layers; layer++) {
                *h++ = (wsync_held){.name = "decoder.layers.0.self_attention.linear_qkv.to_wrap.weight",
                                    .dtype = WSYNC_F32,
                                    .n_dims = 1,
                                    .shape = {4},
                                    .local = {4},
                                    .layer = layer + 1,
                                    .data = base};
                (canonical ? canonical_matrices : fused_matrices)(w, rank, &h, &m, layer, at, r);
                matrix(w, rank, &h, &m, layer, at, "self_attention.linear_proj.adapter.linear_in", &files[0],
                       1, r, out, 1);
                matrix(w, rank, &h, &m, layer, at, "self_attention.linear_proj.adapter.linear_out", &files[1],
                       1, m.hidden, r, 0);
                matrix(w, rank, &h, &m, layer, at, "mlp.linear_fc2.adapter.linear_in", &files[2], 1, r,
                       m.inner, 1);
                matrix(w, rank, &h, &m, layer, at, "mlp.linear_fc2.adapter.linear_out", &files[3], 1,
                       m.hidden, r, 0);
            }
            wsync_extract_options o = {.struct_size = sizeof(o),
                                       .kind = "megatron",
                                       .hf_config = m.config,
                                       .tensor = {at, m.tp},
                                       .adapter = "adapter"};
            extract(w, rank, &o, held, (size_t)(h - held));
            size_t n;
            const wsync_param *p = wsync_extraction_params(w->ranks[rank].e, &n);
            for (size_t i = 0; i < n; i++)
                assert_string_equal(p[i].file, "adapter_model.safetensors");
            free(held);
        }
        check_world(w);
        unlink(m.config);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_megatron_adapters),
        cmocka_unit_test(test_router_bias),
        cmocka_unit_test(test_zero_centred_norms),
        cmocka_unit_test(test_zero_centred_family),
        cmocka_unit_test(test_megatron_contradictions),
        cmocka_unit_test(test_megatron_unknown),
        cmocka_unit_test(test_base_with_stacked_experts),
        cmocka_unit_test(test_router_bias_with_base),
        cmocka_unit_test(test_missing_mtp_layers),
    };
    return cmocka_run_group_tests_name("megatron", tests, NULL, NULL);
}
