/* Extraction by brute force: every tensor is written index by index, cut over random meshes by splitting lists as torch does, and
 * reassembled from the extractors' pieces, of which the claims choose one writer each. Megatron's are in test_megatron.c and
 * test_megatron_families.c. */
#include "tests/fixtures/megatron_rank.h"
#include "tests/fixtures/private_folder.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A random mesh of at most MAX_RANKS ranks. */
static unsigned mesh(unsigned sizes[4], unsigned *n)
{
    unsigned ranks = 1;
    *n = 1 + below(3);
    for (unsigned m = 0; m < *n; m++) {
        sizes[m] = 1 + below(*n == 1 ? 6 : 3);
        if (ranks * sizes[m] > MAX_RANKS)
            sizes[m] = 1;
        ranks *= sizes[m];
    }
    return ranks;
}

static void place(wsync_placement *p, const wsync_placement *how, const unsigned *sizes, unsigned n,
                  unsigned rank)
{
    for (unsigned m = n; m-- > 0;) {
        p[m] = how[m];
        p[m].size = sizes[m];
        p[m].coordinate = rank % sizes[m];
        rank /= sizes[m];
    }
}

static void random_placements(wsync_placement *how, unsigned n_mesh, unsigned n_dims)
{
    for (unsigned m = 0; m < n_mesh; m++) {
        unsigned kind = below(5);
        how[m] = (wsync_placement){.kind = kind == 0 || n_dims == 0 ? WSYNC_REPLICATE
                                           : kind == 1              ? WSYNC_STRIDED_SHARD
                                                                    : WSYNC_SHARD,
                                   .dim = n_dims ? below(n_dims) : 0,
                                   .split_factor = 1 + below(4)};
    }
}

static const wsync_extract_options fsdp = {.struct_size = sizeof(fsdp), .kind = "fsdp"};

static void test_meshes(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3000; round++) {
        struct world *w = calloc(1, sizeof(*w));
        unsigned sizes[4], n_mesh;
        wsync_placement how[4];
        struct global g = {.n_dims = below(4)};
        w->n_ranks = mesh(sizes, &n_mesh);
        for (unsigned d = 0; d < g.n_dims; d++)
            g.shape[d] = below(10) == 0 ? 0 : 1 + below(MAX_SIDE - 1);
        struct tensor *t = tensor_add(w, "model.a.weight", g.n_dims, g.shape);
        g.values = t->values;
        random_placements(how, n_mesh, g.n_dims);
        for (unsigned r = 0; r < w->n_ranks; r++) {
            wsync_held h = {.name = "model._fsdp_wrapped_module.a.weight", .dtype = WSYNC_U32};
            h.n_placements = n_mesh;
            place(h.placements, how, sizes, n_mesh, r);
            hold(w, r, &g, &h, below(2));
            extract(w, r, &fsdp, &h, 1);
        }
        check_world(w);
        world_free(w);
    }
}

/* Fused tensors of the file, of different sizes, cut section by section, and the other dimension perhaps too. */
static void test_sections(void **state)
{
    static const char *const names[] = {"a.weight", "b.weight", "c.weight", "d.weight", "e.weight"};
    (void)state;
    for (unsigned round = 0; round < 1500; round++) {
        struct world *w = calloc(1, sizeof(*w));
        uint64_t sizes[5], rows = 0;
        const unsigned k = 1 + below(5), dim = below(2), tp = 1 + below(3), dp = 1 + below(3);
        const bool first = below(2);
        for (unsigned i = 0; i < k; i++)
            rows += sizes[i] = tp * below(4);
        struct global g = {.n_dims = 2, .shape = {dim ? 1 + below(6) : rows, dim ? rows : 1 + below(6)}};
        g.values = calloc(g.shape[0] * g.shape[1] + 1, sizeof(uint32_t));
        for (uint64_t i = 0, from = 0; i < k; from += sizes[i++]) {
            const uint64_t shape[] = {dim ? g.shape[0] : sizes[i], dim ? sizes[i] : g.shape[1]};
            char name[64];
            snprintf(name, sizeof(name), "model.%s", names[i]);
            const struct tensor *t = tensor_add(w, name, 2, shape);
            for (uint64_t y = 0; y < shape[0]; y++)
                for (uint64_t x = 0; x < shape[1]; x++)
                    g.values[(y + (dim ? 0 : from)) * g.shape[1] + x + (dim ? from : 0)] =
                        t->values[y * shape[1] + x];
        }
        const wsync_fusion fusion = {
            .held = "fused.weight", .names = names, .n_names = k, .dim = dim, .sizes = sizes};
        wsync_extract_options o = fsdp;
        o.fusions = &fusion;
        o.n_fusions = 1;
        w->n_ranks = tp * dp;
        for (unsigned r = 0; r < w->n_ranks; r++) {
            const wsync_placement section = {WSYNC_SECTION_SHARD, dim, 0, tp, r % tp},
                                  other = {WSYNC_SHARD, first ? 1 - dim : dim, 0, dp, r / tp};
            wsync_held h = {.name = "model.fused.weight",
                            .dtype = WSYNC_U32,
                            .n_placements = 2,
                            .placements = {first ? other : section, first ? section : other},
                            .sections = sizes,
                            .n_sections = k};
            hold(w, r, &g, &h, below(2));
            extract(w, r, &o, &h, 1);
        }
        check_world(w);
        free(g.values);
        world_free(w);
    }
}

/* The arrays of a program that was built with 0.1's header, and of one that is newer. */
static void test_sizes_of_elements(void **state)
{
    struct newer {
        wsync_held h;
        uint64_t unknown;
    } newer[2] = {{.h = {.name = "a", .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}, .local = {4}}},
                  {.h = {.name = "b", .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}, .local = {4}}}};
    static const char *const names[] = {"c", "d"};
    const size_t old = offsetof(wsync_held, sections), old_fusion = offsetof(wsync_fusion, sizes);
    const wsync_fusion fusions[2] = {{.held = "unused", .names = names, .n_names = 1},
                                     {.held = "b", .names = names, .n_names = 2}};
    wsync_extract_options o = {.struct_size = offsetof(wsync_extract_options, held_size), .kind = "fsdp"};
    char held[2 * sizeof(wsync_held)], fused[2 * sizeof(wsync_fusion)];
    wsync_extraction *e;
    size_t n;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        memcpy(held + i * old, &newer[i].h, old);
        memcpy(fused + i * old_fusion, &fusions[i], old_fusion);
    }
    o.fusions = (void *)fused;
    o.n_fusions = 2;
    assert_int_equal(wsync_extract(&o, (void *)held, 2, &e), 0);
    const wsync_param *p = wsync_extraction_params(e, &n);
    assert_int_equal(n, 3);
    assert_string_equal(p[0].name, "a");
    assert_string_equal(p[2].name, "d");
    wsync_extraction_free(e);
    o = (wsync_extract_options){.struct_size = sizeof(o), .held_size = sizeof(newer[0])};
    assert_int_equal(wsync_extract(&o, &newer[0].h, 2, &e), 0);
    assert_string_equal(wsync_extraction_params(e, &n)[1].name, "b");
    wsync_extraction_free(e);
    newer[1].unknown = 1;
    assert_int_equal(wsync_extract(&o, &newer[0].h, 2, &e), -EINVAL);
    assert_non_null(strstr(wsync_error(), "wsync_held has a member set"));
    o.held_size = 8;
    assert_int_equal(wsync_extract(&o, &newer[0].h, 2, &e), -EINVAL);
    assert_non_null(strstr(wsync_error(), "held_size is 8"));
}

/* [experts, 2 x inner, hidden] and [experts, hidden, inner], by boxes and by flat partitions. */
static void test_stacked_experts(void **state)
{
    static const char *const gate_up[] = {"experts.*.gate_proj.weight", "experts.*.up_proj.weight"};
    static const char *const down[] = {"experts.*.down_proj.weight"};
    static const wsync_fusion fusions[] = {
        {.held = "experts.gate_up_proj", .names = gate_up, .n_names = 2, .stacked = 1, .dim = 1},
        {.held = "experts.down_proj", .names = down, .n_names = 1, .stacked = 1, .dim = 1}};
    static const wsync_rename rename = {".mlp.", ".block_sparse_moe."};
    (void)state;
    for (unsigned round = 0; round < 1500; round++) {
        struct world *w = calloc(1, sizeof(*w));
        unsigned sizes[4], n_mesh, experts = 1 + below(6), inner = 1 + below(5), hidden = 1 + below(6);
        bool flat = below(2), renamed = below(2);
        wsync_extract_options o = fsdp;
        wsync_placement how[2][4];
        const char *base = renamed ? "model.layers.3.block_sparse_moe" : "model.layers.3.mlp";
        struct global g[2] = {{.n_dims = 3, .shape = {experts, 2 * inner, hidden}},
                              {.n_dims = 3, .shape = {experts, hidden, inner}}};
        o.kind = flat ? "deepspeed" : "fsdp";
        o.fusions = fusions;
        o.n_fusions = 2;
        o.renames = &rename;
        o.n_renames = renamed;
        w->n_ranks = mesh(sizes, &n_mesh);
        if (flat)
            n_mesh = 1, sizes[0] = w->n_ranks;
        for (unsigned k = 0; k < 2; k++) {
            g[k].values = calloc(g[k].shape[0] * g[k].shape[1] * g[k].shape[2] + 1, sizeof(uint32_t));
            random_placements(how[k], n_mesh, 3);
        }
        for (unsigned e = 0; e < experts; e++) {
            for (unsigned k = 0; k < 3; k++) {
                static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
                uint64_t shape[2] = {k == 2 ? hidden : inner, k == 2 ? inner : hidden};
                char name[128];
                snprintf(name, sizeof(name), "%s.experts.%u.%s.weight", base, e, names[k]);
                struct tensor *t = tensor_add(w, name, 2, shape);
                size_t at = k == 2 ? e * t->n : (2 * e + k) * t->n;
                memcpy(g[k == 2].values + at, t->values, t->n * sizeof(uint32_t));
            }
        }
        for (unsigned r = 0; r < w->n_ranks; r++) {
            wsync_held h[2] = {{.name = "model.layers.3.mlp.experts.gate_up_proj", .dtype = WSYNC_U32},
                               {.name = "model.layers.3.mlp.experts.down_proj", .dtype = WSYNC_U32}};
            for (unsigned k = 0; k < 2; k++) {
                size_t n = g[k].shape[0] * g[k].shape[1] * g[k].shape[2],
                       each = (n + w->n_ranks - 1) / w->n_ranks, begin = r * each < n ? r * each : n,
                       end = begin + each < n ? begin + each : n;
                h[k].n_placements = n_mesh;
                place(h[k].placements, how[k], sizes, n_mesh, r);
                if (!flat) {
                    hold(w, r, &g[k], &h[k], below(2));
                    continue;
                }
                h[k].flat = 1;
                h[k].n_dims = 3;
                memcpy(h[k].shape, g[k].shape, sizeof(h[k].shape));
                h[k].data = memcpy(rank_memory(w, r, each * 4), g[k].values + begin, (end - begin) * 4);
                h[k].placements[0].kind = WSYNC_SHARD;
                h[k].placements[0].dim = 0;
                if (below(2)) { /* the same range by its numbers */
                    h[k].n_placements = 0;
                    h[k].start = begin;
                    h[k].count = end - begin;
                }
            }
            extract(w, r, &o, h, 2);
        }
        check_world(w);
        free(g[0].values);
        free(g[1].values);
        world_free(w);
    }
}

/* Renames whose file's name has the held one within (transformers' kimi_k25): one is applied to a held name, and to none that
 * the caller gives in the file's names already. */
static void test_renames_within_themselves(void **state)
{
    static const wsync_rename renames[] = {{"lm_head", "language_model.lm_head"}, {".mlp.", ".moe.mlp."}};
    static const struct {
        const char *held, *file;
    } cases[] = {{"lm_head.weight", "language_model.lm_head.weight"},
                 {"language_model.lm_head.weight", "language_model.lm_head.weight"},
                 {"other_model.lm_head.weight", "other_model.language_model.lm_head.weight"},
                 {"layers.0.mlp.up.weight", "layers.0.moe.mlp.up.weight"},
                 {"layers.0.moe.mlp.up.weight", "layers.0.moe.mlp.up.weight"}};
    wsync_extract_options o = fsdp;
    o.renames = renames;
    o.n_renames = 2;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float value = 1;
        wsync_held h = {.name = cases[i].held,
                        .dtype = WSYNC_F32,
                        .n_dims = 1,
                        .shape = {1},
                        .local = {1},
                        .data = &value};
        wsync_extraction *e;
        size_t n;
        assert_int_equal(wsync_extract(&o, &h, 1, &e), 0);
        assert_string_equal(wsync_extraction_params(e, &n)[0].name, cases[i].file);
        wsync_extraction_free(e);
    }
}

/* --- what is refused --- */

static void test_refusals(void **state)
{
    struct gpt m = {.heads = 2,
                    .kv_heads = 1,
                    .head_dim = 2,
                    .hidden = 4,
                    .inner = 8,
                    .vocab = 10,
                    .experts = 4,
                    .moe_inner = 4};
    wsync_held h = {.name = "w", .dtype = WSYNC_F32, .n_dims = 2, .shape = {4, 4}, .local = {4, 4}};
    (void)state;
    write_config(&m);
    wsync_extract_options meg = {
        .struct_size = sizeof(meg), .kind = "megatron", .hf_config = m.config, .tensor = {0, 2}};
    wsync_extract_options bad = fsdp;
    bad.kind = "jax";
    refused(-EINVAL, &bad, &h, "jax", "no extractor");
    bad = fsdp;
    bad.dtype = "I8";
    refused(-EINVAL, &bad, &h, "I8", "published as");
    h.local[0] = 3;
    refused(-EINVAL, &fsdp, &h, "w", "holds 3 of the 4");
    h.local[0] = 4;
    h.n_placements = 1;
    h.placements[0] = (wsync_placement){.kind = WSYNC_SHARD, .dim = 2, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "dimension 2");
    h.placements[0] = (wsync_placement){.kind = WSYNC_SHARD, .size = 2, .coordinate = 2};
    refused(-EINVAL, &fsdp, &h, "w", "coordinate 2");
    h.placements[0] = (wsync_placement){.kind = (wsync_placement_kind)7, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "placement");
    h.n_placements = 0;
    h.flat = 1;
    h.start = 10;
    h.count = 7;
    refused(-EINVAL, &fsdp, &h, "w", "range held begins at 10");
    h.start = 0;
    h.count = 7; /* the placement says 8 */
    h.n_placements = 1;
    h.placements[0] = (wsync_placement){.kind = WSYNC_SHARD, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "holds 7 elements");
    h.flat = 0;
    const uint64_t sections[] = {2, 1};
    h.placements[0] = (wsync_placement){.kind = WSYNC_SECTION_SHARD, .size = 2};
    refused(-EINVAL, &fsdp, &h, "w", "0 sections do not fill the 4");
    h.n_sections = 2;
    refused(-EINVAL, &fsdp, &h, "w", "2 sections; at most 16, and their sizes");
    h.sections = sections;
    refused(-EINVAL, &fsdp, &h, "w", "section 1 has 1 indices, which 2 ranks");
    h.placements[0].size = 1;
    refused(-EINVAL, &fsdp, &h, "w", "2 sections do not fill the 4");
    h.n_placements = h.n_sections = 0;
    static const char *const names[] = {"a", "b"};
    const wsync_fusion fusion = {.held = "w", .names = names, .n_names = 2, .sizes = sections};
    bad = fsdp;
    bad.fusions = &fusion;
    bad.n_fusions = 1;
    refused(-EINVAL, &bad, &h, "w", "do not fill it");
    h.name = "base_model.model.layers.0.q_proj.base_layer.weight";
    refused(-EOPNOTSUPP, &fsdp, &h, h.name, "merge_and_unload");
    h.name = "layers.0.q_proj.lora_A.default.weight";
    refused(-EOPNOTSUPP, &fsdp, &h, h.name, "merge_and_unload");
    h.layer = 1;
    h.name = "decoder.layers.0.mlp.router.expert_bias";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "moe_router_enable_expert_bias");
    h.name = "decoder.layers.0.mlp.experts.weight1";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "transposed");
    h.name = "decoder.layers.0.mlp.linear_fc1.adapter.linear_in.weight";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "publish the adapter alone");
    h.name = "decoder.layers.0.mlp.linear_fc1.to_wrap.weight";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "merge it");
    meg.adapter = "adapter";
    h.name = "decoder.layers.0.mlp.experts.linear_fc1.adapter.linear_in.weight";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "no experts");
    meg.adapter = NULL;
    h.name = "decoder.layers.0.mlp.something.weight";
    refused(-EOPNOTSUPP, &meg, &h, h.name, "guess");
    h.name = "decoder.layers.0.mlp.linear_fc1.weight"; /* 4 rows over 2 ranks, config says 16 */
    refused(-EINVAL, &meg, &h, h.name, "config.json says 16");
    h.layer = 0;
    refused(-EINVAL, &meg, &h, h.name, "number of its layer");
    h.name = "decoder.final_layernorm.weight";
    h.flat = 1;
    h.start = 9;
    h.count = 8;
    refused(-EINVAL, &meg, &h, h.name, "part has 16 elements, and the range held begins at 9");
    h.flat = 0;
    h.name = "embedding.word_embeddings.weight"; /* 8 rows of a vocabulary of 10 */
    refused(-EINVAL, &meg, &h, h.name, "make 8 of all ranks, and config.json says at least 10");
    static const char *const features[] = {"gated_linear_unit", "attention_output_gate"};
    meg.features = features;
    meg.n_features = 2;
    refused(-EOPNOTSUPP, &meg, &h, "attention_output_gate", "interleaved");
    meg.n_features = 0;
    FILE *f = fopen(m.config, "w");
    assert_non_null(f);
    fputs("{\"model_type\":\"gpt_oss\",\"num_attention_heads\":2,\"head_dim\":2,\"vocab_size\":10}", f);
    fclose(f);
    refused(-EOPNOTSUPP, &meg, &h, "gpt_oss", "by name");
    unlink(m.config);
    write_config(&m);
    meg.hf_config = m.config;
    meg.hf_config = "/nowhere";
    refused(-ENOENT, &meg, &h, "/nowhere", "config");
    meg.hf_config = NULL;
    refused(-EINVAL, &meg, &h, "hf_config", "needs");
    unlink(m.config);
}

static void test_wrappers(void **state)
{
    static const struct {
        const char *held, *file;
    } all[] = {{"module.model.norm.weight", "model.norm.weight"},
               {"_orig_mod.module.model.norm.weight", "model.norm.weight"},
               {"base_model.model.model.norm.weight", "model.norm.weight"},
               {"model._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.w", "model.layers.0.w"},
               {"model.my_orig_mod.w", "model.my_orig_mod.w"},
               {"model.module.w", "model.module.w"}};
    float data[4] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const wsync_held h = {
            .name = all[i].held, .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}, .local = {4}, .data = data};
        wsync_extraction *e;
        size_t n;
        assert_int_equal(wsync_extract(&fsdp, &h, 1, &e), 0);
        const wsync_param *p = wsync_extraction_params(e, &n);
        assert_int_equal(n, 1);
        assert_string_equal(p[0].name, all[i].file);
        wsync_extraction_free(e);
    }
}

/* An adapter's tensors under PEFT's names, of those that a rank holds. */
static void test_adapter(void **state)
{
    static const struct {
        const char *held, *file; /* NULL: left out */
    } all[] = {
        {"base_model.model.model.layers.0.q_proj.lora_A.default.weight",
         "base_model.model.model.layers.0.q_proj.lora_A.weight"},
        {"module.base_model.model.model.layers.0.q_proj.lora_B.default.weight",
         "base_model.model.model.layers.0.q_proj.lora_B.weight"},
        {"model.layers.0.q_proj.lora_A.default.weight", /* of a model that PEFT only put its layers into */
         "base_model.model.model.layers.0.q_proj.lora_A.weight"},
        {"_fsdp_wrapped_module.base_model.model._fsdp_wrapped_module.model.q.lora_A.default._fsdp_wrapped_"
         "module."
         "weight",
         "base_model.model.model.q.lora_A.weight"},
        {"base_model.model.model.embed_tokens.lora_embedding_A.default",
         "base_model.model.model.embed_tokens.lora_embedding_A"},
        {"base_model.model.model.layers.0.q_proj.lora_A.other.weight", NULL},
        {"base_model.model.model.layers.0.q_proj.lora_A.default2.weight", NULL},
        {"base_model.model.model.layers.0.q_proj.base_layer.weight", NULL},
        {"base_model.model.lm_head.modules_to_save.other.weight", NULL},
        {"base_model.model.model.norm.weight", NULL}};
    wsync_extract_options o = fsdp;
    float data[8] = {0};
    wsync_held h = {.dtype = WSYNC_F32, .n_dims = 2, .shape = {2, 4}, .local = {2, 4}, .data = data};
    wsync_extraction *e;
    size_t n;
    (void)state;
    o.adapter = "default";
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        h.name = all[i].held;
        assert_int_equal(wsync_extract(&o, &h, 1, &e), 0);
        const wsync_param *p = wsync_extraction_params(e, &n);
        assert_int_equal(n, all[i].file != NULL);
        if (n > 0) {
            assert_string_equal(p[0].name, all[i].file);
            assert_string_equal(p[0].file, "adapter_model.safetensors");
        }
        wsync_extraction_free(e);
    }
    /* A partition of ZeRO's, in another type. */
    h = (wsync_held){.name = all[0].held,
                     .dtype = WSYNC_F32,
                     .n_dims = 2,
                     .shape = {2, 4},
                     .flat = 1,
                     .start = 3,
                     .count = 4,
                     .data = data};
    o.kind = "deepspeed";
    o.dtype = "BF16";
    assert_int_equal(wsync_extract(&o, &h, 1, &e), 0);
    const wsync_param *p = wsync_extraction_params(e, &n);
    assert_int_equal(n, 1);
    assert_int_equal(p[0].dtype, WSYNC_BF16);
    assert_int_equal(p[0].piece.kind, WSYNC_RANGE);
    assert_int_equal(p[0].piece.start, 3);
    wsync_extraction_free(e);
    h.name = "base_model.model.q_proj.lora_magnitude_vector.default.weight";
    refused(-EOPNOTSUPP, &o, &h, h.name, "publish the merged model");
    h.name = "base_model.model.lm_head.modules_to_save.default.weight";
    refused(-EOPNOTSUPP, &o, &h, h.name, "publish the merged model");
    h.name = "base_model.model.q_proj.lora_B.default.bias";
    refused(-EOPNOTSUPP, &o, &h, h.name, "publish the merged model");
    o.kind = NULL;
    refused(-EINVAL, &o, &h, "wsync_extract_options.adapter", "of tensors");
}

static void test_dtypes_and_moves(void **state)
{
    static const char text[] = "{\"torch_dtype\":\"bfloat16\",\"tie_word_embeddings\":true}";
    char dir[64], path[96];
    float first[4] = {1}, second[4] = {2};
    int64_t whole_numbers[2] = {0};
    wsync_held h[3] = {
        {.name = "a", .dtype = WSYNC_F32, .n_dims = 1, .shape = {4}, .local = {4}, .data = first},
        {.name = "b", .dtype = WSYNC_I64, .n_dims = 1, .shape = {2}, .local = {2}, .data = whole_numbers},
        {.name = "lm_head.weight",
         .dtype = WSYNC_F32,
         .n_dims = 1,
         .shape = {4},
         .local = {4},
         .data = first}};
    wsync_extract_options o = {.struct_size = sizeof(o), .kind = "fsdp", .hf_config = dir};
    wsync_extraction *e;
    size_t n;
    (void)state;
    assert_true(private_folder(dir, sizeof(dir), "extract"));
    snprintf(path, sizeof(path), "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(wsync_extract(&o, h, 3, &e), 0);
    const wsync_param *p = wsync_extraction_params(e, &n);
    assert_int_equal(n, 2); /* the file has no tied output layer */
    assert_int_equal(p[0].dtype, WSYNC_BF16);
    assert_true(p[0].converts);
    assert_int_equal(p[0].data_dtype, WSYNC_F32);
    assert_int_equal(p[1].dtype, WSYNC_I64);
    assert_false(p[1].converts);
    assert_ptr_equal(p[0].data, first);
    const void *moved[3] = {second, whole_numbers, NULL};
    wsync_extraction_move(e, moved);
    assert_ptr_equal(p[0].data, second);
    void *const streams[3] = {&n, NULL, NULL};
    wsync_extraction_follow(e, streams);
    assert_ptr_equal(p[0].stream, &n);
    assert_null(p[1].stream);
    wsync_extraction_free(e);
    o.dtype = "F16";
    assert_int_equal(wsync_extract(&o, h, 1, &e), 0);
    assert_int_equal(wsync_extraction_params(e, &n)->dtype, WSYNC_F16);
    wsync_extraction_free(e);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_stacked_experts),
        cmocka_unit_test(test_wrappers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_dtypes_and_moves),
        cmocka_unit_test(test_adapter),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_sizes_of_elements),
        cmocka_unit_test(test_renames_within_themselves),
    };
    return cmocka_run_group_tests_name("extract", tests, NULL, NULL);
}
