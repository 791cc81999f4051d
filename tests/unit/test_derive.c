/* Derived checkpoints: which tensors of which families are quantised, what is refused with which sentence, the layout, the
 * texts, and that rows in any parts make the same files. */
#include "transports/quant/derive.h"
#include "transports/quant/quantise.h"
#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define L0        "model.layers.0."
#define DIGEST    "0123456789abcdef"

#define T2(n, r, c)                                                                                          \
    {                                                                                                        \
        .name = (n), .dtype = WS_BF16, .n_dims = 2, .shape = {(r), (c) }                                     \
    }
#define T1(n, k)                                                                                             \
    {                                                                                                        \
        .name = (n), .dtype = WS_BF16, .n_dims = 1, .shape = {(k) }                                          \
    }

/* A model's two files. */
static const struct ws_tensor first[] = {
    T2("model.embed_tokens.weight", 40, 256),  T2(L0 "self_attn.q_proj.weight", 256, 256),
    T1(L0 "self_attn.q_proj.bias", 256),       T2(L0 "self_attn.k_proj.weight", 128, 256),
    T2(L0 "self_attn.v_proj.weight", 72, 256), T2(L0 "self_attn.o_proj.weight", 256, 256),
};
static const struct ws_tensor second[] = {
    T2(L0 "mlp.gate.weight", 8, 256),
    T2(L0 "mlp.experts.0.gate_proj.weight", 128, 256),
    T2(L0 "mlp.experts.0.up_proj.weight", 128, 256),
    T2(L0 "mlp.experts.0.down_proj.weight", 256, 128),
    T1(L0 "input_layernorm.weight", 256),
    T2("visual.blocks.0.attn.q_proj.weight", 128, 128),
};
static const char config[] = "{\"model_type\": \"qwen3_moe\", \"rms_norm_eps\": 1e-06}\n";

static struct ws_safetensors *make(const struct ws_tensor *specs, size_t n)
{
    struct ws_safetensors *st = NULL;
    struct ws_error err;
    void *header;

    if (ws_safetensors_layout(specs, n, "{\"format\":\"pt\",\"step\":\"7\"}", &st, &header, &err) < 0)
        fail_msg("%s", err.text);
    free(header);
    return st;
}

static const struct ws_recipe *recipe(const char *name)
{
    const struct ws_recipe *r = NULL;
    struct ws_error err;
    assert_int_equal(ws_recipe_find(name, &r, &err), 0);
    return r;
}

/* --- the choice --- */

struct choice {
    struct ws_tensor tensors[16];
    size_t n;
    const char *recipe, *config, *ignore[3];
    bool any_family;
    bool chosen[16];
    struct ws_error err;
};

static struct choice choice_of(const struct ws_tensor *tensors, size_t n)
{
    struct choice c = {.n = n, .recipe = "fp8-block128", .config = config};
    memcpy(c.tensors, tensors, n * sizeof(*tensors));
    return c;
}

static int choose(struct choice *c)
{
    const struct ws_tensor *all[16];
    struct ws_select_options options = {.ignore = c->ignore, .any_family = c->any_family};
    for (size_t i = 0; i < c->n; i++)
        all[i] = &c->tensors[i];
    while (options.n_ignore < LENGTH(c->ignore) && c->ignore[options.n_ignore])
        options.n_ignore++;
    return ws_select(recipe(c->recipe), &options, c->config, strlen(c->config), all, c->n, c->chosen,
                     &c->err);
}

static void assert_chosen(struct choice *c, const char *expected)
{
    char got[17] = "";
    if (choose(c) < 0)
        fail_msg("%s", c->err.text);
    for (size_t i = 0; i < c->n; i++)
        got[i] = c->chosen[i] ? 'x' : '.';
    assert_string_equal(got, expected);
}

static void assert_refused(struct choice *c, const char *sentence)
{
    assert_int_equal(choose(c), -EINVAL);
    if (!strstr(c->err.text, sentence))
        fail_msg("\"%s\" has no \"%s\"", c->err.text, sentence);
}

static void test_families(void **state)
{
    (void)state;
    struct choice c = choice_of(first, LENGTH(first));
    assert_chosen(&c, ".x.xxx");
    c = choice_of(second, LENGTH(second));
    assert_chosen(&c, ".xxx..");
    const struct ws_tensor deepseek[] = {
        T2(L0 "self_attn.q_a_proj.weight", 128, 256), T2(L0 "self_attn.kv_a_proj_with_mqa.weight", 72, 256),
        T2(L0 "mlp.gate.weight", 8, 256), T2("model.layers.61.eh_proj.weight", 256, 512),
        T2(L0 "mlp.shared_experts.up_proj.weight", 128, 256)};
    c = choice_of(deepseek, LENGTH(deepseek));
    c.config = "{\"model_type\":\"deepseek_v3\"}";
    assert_chosen(&c, "xx..x");
    const struct ws_tensor next[] = {T2(L0 "linear_attn.in_proj_qkvz.weight", 384, 256),
                                     T2(L0 "linear_attn.in_proj_ba.weight", 4, 256),
                                     T2(L0 "mlp.shared_expert_gate.weight", 1, 256)};
    c = choice_of(next, LENGTH(next));
    c.config = "{\"model_type\":\"qwen3_next\"}";
    assert_chosen(&c, "x..");
}

static void test_any_family(void **state)
{
    (void)state;
    const struct ws_tensor odd[] = {T2("h.0.fc.weight", 64, 256),    T2("wte.weight", 64, 256),
                                    T2("h.0.router.weight", 4, 256), T2("h.0.ln_norm.weight", 4, 4),
                                    T2("lm_head.weight", 64, 256),   T2("h.0.mlp.gate.weight", 4, 256)};
    struct choice c = choice_of(odd, LENGTH(odd));
    c.config = "{\"model_type\":\"odd\"}";
    assert_refused(&c, "model type \"odd\"");
    c.any_family = true;
    assert_chosen(&c, "x.....");
    c.config = "{}";
    assert_chosen(&c, "x.....");
}

static void test_ignore(void **state)
{
    (void)state;
    struct choice c = choice_of(second, LENGTH(second));
    c.ignore[0] = L0 "mlp.experts.0.down_proj";
    assert_chosen(&c, ".xx...");
    c.ignore[0] = "re:.*experts\\.[0-9]+\\.(gate|up)_proj$";
    assert_chosen(&c, "...x..");
    c.ignore[0] = "re:mlp"; /* from the name's begin */
    assert_refused(&c, "ignore=re:mlp matches none");
    c.ignore[0] = "down_proj";
    assert_refused(&c, "ignore=down_proj matches none");
    c.ignore[0] = "re:(";
    assert_refused(&c, "ignore=re:( is no regular expression");
    c.ignore[0] = "re:(.{1,200}){1,200}";
    assert_refused(&c, "ignore=re:(.{1,200}){1,200} is too large");
    c.ignore[0] = "re:.*";
    assert_refused(&c, "nothing is left to be quantised");
    c.ignore[0] = L0 "mlp.experts.0.up_proj";
    assert_refused(&c,
                   "gate_proj.weight\" would be quantised and \"" L0 "mlp.experts.0.up_proj.weight\" not");
}

static void test_refused(void **state)
{
    (void)state;
    struct choice c = choice_of(first, LENGTH(first));
    c.tensors[3].shape[0] = 96;
    assert_refused(&c, "k_proj.weight\" has 96 rows, no multiple of 128");
    c.recipe = "fp8-channel";
    assert_chosen(&c, ".x.xxx");
    c.tensors[5].dtype = WS_F8_E4M3;
    assert_refused(&c, "o_proj.weight\" is F8_E4M3, and fp8-channel takes BF16, F16 and F32");
    c = choice_of(first, LENGTH(first));
    c.tensors[5].shape[1] = 0;
    assert_refused(&c, "has no elements");
    c = choice_of(second, LENGTH(second));
    c.tensors[1] = (struct ws_tensor){
        .name = L0 "mlp.experts.gate_up_proj", .n_dims = 3, .shape = {8, 2, 2}, .dtype = WS_BF16};
    assert_refused(&c, "experts that lie in one tensor");
    c.config = "{\"model_type\":\"qwen3\",\"quantization_config\":{}}";
    assert_refused(&c, "quantised already");
    c.config =
        "{\"quantization_config\": null, \"compression_config\":\"nullable\",\"model_type\":\"qwen3\"}";
    assert_refused(&c, "config.json has a compression_config");
    c.config = "[]";
    assert_int_equal(choose(&c), -EBADMSG);
    assert_non_null(strstr(c.err.text, "config.json"));
}

/* --- the derivation --- */

struct derivation {
    struct ws_safetensors *st[2];
    struct ws_derive *d;
};

static struct derivation derive(const char *name)
{
    struct derivation v = {{make(first, LENGTH(first)), make(second, LENGTH(second))}, NULL};
    const struct ws_derive_source_file files[] = {{"a.safetensors", v.st[0]}, {"b.safetensors", v.st[1]}};
    const struct ws_derive_source source = {files, 2, config, strlen(config), true};
    const struct ws_select_options options = {0};
    struct ws_error err;
    if (ws_derive_new(&source, recipe(name), &options, DIGEST, &v.d, &err) < 0)
        fail_msg("%s", err.text);
    return v;
}

static void release(struct derivation *v)
{
    ws_derive_free(v->d);
    ws_safetensors_free(v->st[0]);
    ws_safetensors_free(v->st[1]);
}

static void assert_tensor(const struct ws_safetensors *st, const char *name, enum ws_dtype dtype,
                          uint64_t rows, uint64_t columns)
{
    const struct ws_tensor *t = ws_safetensors_find(st, name);
    if (!t)
        fail_msg("no %s", name);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], rows);
    assert_int_equal(t->shape[1], columns);
}

static void test_layout(void **state)
{
    (void)state;
    struct derivation v = derive("fp8-block128");
    assert_int_equal(v.d->n_files, 2);
    assert_int_equal(v.d->n_jobs, LENGTH(first) + LENGTH(second));
    assert_int_equal(v.d->n_quantised, 7);
    assert_string_equal(v.d->files[1].name, "b.safetensors");
    assert_int_equal(v.d->files[1].first_job, LENGTH(first));
    assert_int_equal(v.d->files[0].st->n_tensors, LENGTH(first) + 4);
    assert_tensor(v.d->files[0].st, L0 "self_attn.v_proj.weight", WS_F8_E4M3, 72, 256);
    assert_tensor(v.d->files[0].st, L0 "self_attn.v_proj.weight_scale_inv", WS_F32, 1, 2);
    assert_tensor(v.d->files[0].st, L0 "self_attn.o_proj.weight_scale_inv", WS_F32, 2, 2);
    assert_tensor(v.d->files[0].st, "model.embed_tokens.weight", WS_BF16, 40, 256);
    assert_string_equal(v.d->files[0].st->metadata,
                        "{\"format\":\"pt\",\"step\":\"7\",\"wsync.recipe\":\"fp8-block128\","
                        "\"wsync.source\":\"" DIGEST "\",\"wsync.derive\":\"1\"}");
    release(&v);
    v = derive("fp8-channel-ct");
    assert_tensor(v.d->files[0].st, L0 "self_attn.v_proj.weight_scale", WS_BF16, 72, 1);
    release(&v);
    v = derive("fp8-channel");
    assert_tensor(v.d->files[0].st, L0 "self_attn.v_proj.weight_scale", WS_F32, 72, 1);
    release(&v);
}

static void test_names_in_two_files(void **state)
{
    (void)state;
    const struct ws_tensor other[] = {T2(L0 "self_attn.o_proj.weight_scale_inv", 2, 2)};
    struct ws_safetensors *sts[] = {make(first, LENGTH(first)), make(other, LENGTH(other))};
    const struct ws_derive_source_file files[] = {{"a.safetensors", sts[0]}, {"b.safetensors", sts[1]}};
    const char *const ignore[] = {L0 "self_attn.o_proj"};
    struct ws_select_options options = {.ignore = ignore};
    struct ws_derive *d = NULL;
    struct ws_error err;
    for (int index = 0; index < 2; index++) {
        const struct ws_derive_source source = {files, 2, config, strlen(config), index};
        options.n_ignore = 0;
        assert_int_equal(ws_derive_new(&source, recipe("fp8-block128"), &options, DIGEST, &d, &err), -EINVAL);
        assert_non_null(strstr(err.text, "\"" L0 "self_attn.o_proj.weight_scale_inv\""));
        assert_non_null(strstr(err.text, "a.safetensors"));
        assert_non_null(strstr(err.text, "b.safetensors"));
        options.n_ignore = 1;
        assert_int_equal(ws_derive_new(&source, recipe("fp8-block128"), &options, DIGEST, &d, &err), 0);
        ws_derive_free(d);
    }
    for (size_t i = 0; i < 2; i++)
        ws_safetensors_free(sts[i]);
}

/* What the source says as null is said instead, and not beside it. */
static void test_config_in_place_of_null(void **state)
{
    static const char text[] = "{\"quantization_config\": null, \"model_type\": \"qwen3\"}\n";
    struct ws_safetensors *st = make(first, LENGTH(first));
    const struct ws_derive_source_file files[] = {{"a.safetensors", st}};
    const struct ws_derive_source source = {files, 1, text, strlen(text), false};
    const struct ws_select_options options = {0};
    struct ws_derive *d;
    struct ws_error err;
    (void)state;
    if (ws_derive_new(&source, recipe("fp8-block128"), &options, DIGEST, &d, &err) < 0)
        fail_msg("%s", err.text);
    json_t *config_json = json_loadb(d->config, d->config_bytes, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(config_json);
    assert_int_equal(json_object_size(config_json), 2);
    assert_string_equal(json_string_value(json_object_get(config_json, "model_type")), "qwen3");
    assert_string_equal(json_string_value(json_object_get(json_object_get(config_json, "quantization_config"),
                                                          "quant_method")),
                        "fp8");
    json_decref(config_json);
    ws_derive_free(d);
    ws_safetensors_free(st);
}

static void test_texts(void **state)
{
    (void)state;
    struct derivation v = derive("fp8-block128-ue8m0");
    assert_string_equal(v.d->config, "{\"model_type\": \"qwen3_moe\", \"rms_norm_eps\": 1e-06,\n"
                                     "  \"quantization_config\": {\n"
                                     "    \"quant_method\": \"fp8\",\n"
                                     "    \"fmt\": \"e4m3\",\n"
                                     "    \"activation_scheme\": \"dynamic\",\n"
                                     "    \"weight_block_size\": [128, 128],\n"
                                     "    \"scale_fmt\": \"ue8m0\",\n"
                                     "    \"modules_to_not_convert\": [\n"
                                     "      \"lm_head\",\n"
                                     "      \"model.embed_tokens\",\n"
                                     "      \"" L0 "mlp.gate\",\n"
                                     "      \"visual.blocks.0.attn.q_proj\"\n"
                                     "    ]\n"
                                     "  }\n"
                                     "}\n");
    assert_int_equal(v.d->config_bytes, strlen(v.d->config));
    assert_non_null(strstr(v.d->index, "\"" L0 "self_attn.q_proj.weight_scale_inv\": \"a.safetensors\",\n"));
    assert_non_null(strstr(v.d->index, "\"" L0 "mlp.gate.weight\": \"b.safetensors\",\n"));
    char total[64];
    snprintf(total, sizeof(total), "\"total_size\": %lu\n", v.d->bytes);
    assert_non_null(strstr(v.d->index, total));
    release(&v);
}

static void test_source_digest(void **state)
{
    (void)state;
    struct derivation v = derive("fp8-channel"), w = derive("fp8-channel");
    struct ws_error err;
    assert_int_equal(ws_derive_set_source(v.d, "0123", &err), -EINVAL);
    assert_int_equal(ws_derive_set_source(v.d, "0123456789abcd\"f", &err), -EINVAL);
    for (size_t f = 0; f < 2; f++)
        assert_memory_equal(v.d->files[f].header, w.d->files[f].header, v.d->files[f].st->data_begin);
    assert_int_equal(ws_derive_set_source(v.d, "fedcba9876543210", &err), 0);
    for (size_t f = 0; f < 2; f++) {
        struct ws_safetensors *st = NULL;
        const struct ws_derive_file *file = &v.d->files[f];
        assert_non_null(strstr(file->st->metadata, "\"wsync.source\":\"fedcba9876543210\""));
        assert_int_equal(
            ws_safetensors_parse(file->header, file->st->data_begin, file->st->file_bytes, &st, &err), 0);
        assert_string_equal(st->metadata, file->st->metadata);
        ws_safetensors_free(st);
    }
    release(&v);
    release(&w);
}

/* --- the work --- */

static void run_rows(const struct ws_derive *d, const struct ws_derive_job *job, uint64_t row,
                     uint64_t n_rows, unsigned char *const src[2], unsigned char *const dst[2])
{
    void *to[WS_RECIPE_MAX_TARGETS] = {0};
    uint64_t begin, end;
    struct ws_error err;
    for (unsigned k = 0; k < job->n_targets; k++) {
        ws_derive_target_range(d, job, k, row, n_rows, &begin, &end);
        to[k] = dst[job->file] + begin;
    }
    ws_derive_source_range(job, row, n_rows, &begin, &end);
    if (ws_derive_run(d, job, row, n_rows, src[job->file] + begin, to, &err) < 0)
        fail_msg("%s", err.text);
}

static void fill(unsigned char *p, const struct ws_safetensors *st)
{
    uint32_t x = 1;
    for (uint64_t i = st->data_begin; i < st->file_bytes; i++) {
        x = x * 1664525 + 1013904223;
        p[i] = i % 2 ? (unsigned char)((x >> 24 & 0x80) | 0x3c) : (unsigned char)(x >> 24);
    }
}

static void test_rows_in_any_parts(void **state)
{
    (void)state;
    for (size_t r = 0; ws_recipe_at(r); r++) {
        struct derivation v = derive(ws_recipe_at(r)->name);
        unsigned char *src[2], *whole[2], *parts[2];
        for (size_t f = 0; f < 2; f++) {
            src[f] = malloc(v.st[f]->file_bytes);
            whole[f] = calloc(1, v.d->files[f].st->file_bytes);
            parts[f] = malloc(v.d->files[f].st->file_bytes);
            assert_true(src[f] && whole[f] && parts[f]);
            memset(parts[f], 0xa5, v.d->files[f].st->file_bytes);
            memset(whole[f], 0x5a, v.d->files[f].st->file_bytes);
            fill(src[f], v.st[f]);
        }
        for (size_t j = 0; j < v.d->n_jobs; j++)
            run_rows(v.d, &v.d->jobs[j], 0, v.d->jobs[j].rows, src, whole);
        for (uint64_t at = 0; at < v.st[0]->file_bytes || at < v.st[1]->file_bytes; at += 10000)
            for (size_t j = 0; j < v.d->n_jobs; j++) {
                uint64_t row, n;
                ws_derive_rows(&v.d->jobs[j], at, at + 10000, &row, &n);
                if (n > 0)
                    run_rows(v.d, &v.d->jobs[j], row, n, src, parts);
            }
        for (size_t f = 0; f < 2; f++) {
            const struct ws_safetensors *st = v.d->files[f].st;
            assert_memory_equal(whole[f] + st->data_begin, parts[f] + st->data_begin,
                                st->file_bytes - st->data_begin);
            free(src[f]);
            free(whole[f]);
            free(parts[f]);
        }
        release(&v);
    }
}

static void test_rows_of_bytes(void **state)
{
    (void)state;
    struct derivation v = derive("fp8-block128");
    const struct ws_derive_job *job = NULL;
    uint64_t row, n;
    for (size_t j = 0; j < v.d->n_jobs; j++)
        if (strcmp(v.d->jobs[j].source->name, L0 "self_attn.q_proj.weight") == 0)
            job = &v.d->jobs[j];
    assert_non_null(job);
    const uint64_t begin = job->source->begin, end = job->source->end;
    ws_derive_rows(job, 0, begin, &row, &n);
    assert_int_equal(n, 0);
    ws_derive_rows(job, end, end + 100, &row, &n);
    assert_int_equal(n, 0);
    ws_derive_rows(job, 0, begin + 1, &row, &n);
    assert_true(row == 0 && n == 128);
    ws_derive_rows(job, end - 1, end + 1, &row, &n);
    assert_true(row == 128 && n == 128);
    ws_derive_rows(job, begin + 127 * 512, begin + 129 * 512, &row, &n);
    assert_true(row == 0 && n == 256);
    release(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_any_family),
        cmocka_unit_test(test_ignore),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_config_in_place_of_null),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_source_digest),
        cmocka_unit_test(test_rows_in_any_parts),
        cmocka_unit_test(test_rows_of_bytes),
        cmocka_unit_test(test_names_in_two_files),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
