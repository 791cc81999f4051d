/* What a vLLM says that it was started with, and which of that a switch refuses. */
#include "backends/engine/cpu_reload.h"
#include "backends/engine/vllm_config.h"
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/engine.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define CPU       "\"device_config\":{\"device\":\"cpu\"}"
#define CT        "\"model_config\":{\"quantization\":\"compressed-tensors\"}"
#define SAYS(...) "{\"vllm_config\":{" __VA_ARGS__ "}}"

static void read_config(const char *config, const char *metrics, struct ws_engine_facts *facts)
{
    const struct bad_step steps[] = {
        {"GET /server_info?config_format=json", BAD_JSON, config ? 200 : 404, config ? config : "{}"},
        {"GET /metrics", BAD_JSON, 200, metrics ? metrics : ""}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    engine_at(&e, bad_server_port(s));
    *facts = (struct ws_engine_facts){0};
    ws_vllm_config_read(&e.target, facts);
    bad_server_stop(s);
}

static void test_reloads_on_a_cpu(void **state)
{
    static const struct {
        const char *config;
        bool frees, leaves;
    } cases[] = {
        {SAYS(CPU "," CT), true, true},
        {SAYS(CPU "," CT ",\"parallel_config\":{\"worker_extension_cls\":\"somebody.Else\"}"), true, true},
        {SAYS(CPU "," CT ",\"parallel_config\":{\"worker_extension_cls\":\"wsync.vllm.Extension\"}"), false,
         false},
        {SAYS(CPU "," CT ",\"weight_transfer_config\":{\"backend\":\"wsync\"}"), false, false},
        {SAYS(CPU "," CT ",\"weight_transfer_config\":{\"backend\":\"nccl\"}"), true, true},
        {SAYS("\"device_config\":{\"device\":\"cuda\"}," CT), false, false},
        {SAYS(CPU ",\"model_config\":{\"quantization\":null}"), false, true},
        {SAYS(CPU ",\"model_config\":{\"quantization\":\"fp8\"}"), false, true},
        {SAYS(CPU), true, true}, /* it does not say which quantisation */
        {SAYS(CT), true, false}, /* nor where it runs */
        {"{\"vllm_config\":\"text\"}", true, false},
        {NULL, true, false},
    };
    struct ws_engine_facts facts;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        read_config(cases[i].config, NULL, &facts);
        assert_int_equal(facts.frees_int8_scales, cases[i].frees);
        assert_int_equal(facts.leaves_experts, cases[i].leaves);
    }
}

static void test_sleep_mode(void **state)
{
    static const struct {
        const char *config;
        bool stays_awake;
    } cases[] = {{SAYS("\"model_config\":{\"enable_sleep_mode\":false}"), true},
                 {SAYS("\"model_config\":{\"enable_sleep_mode\":true}"), false},
                 {SAYS(CT), false}, /* nor does it say */
                 {NULL, false}};
    struct ws_engine_facts facts;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        read_config(cases[i].config, NULL, &facts);
        assert_int_equal(facts.stays_awake, cases[i].stays_awake);
    }
}

/* A busy one that does not answer in time has not said that it runs on no CPU: it is asked again. */
static void test_answers_late(void **state)
{
    static const struct {
        struct bad_step step;
        bool known;
    } cases[] = {{{"GET /server_info", BAD_HANG, 0, NULL}, false},
                 {{"GET /server_info", BAD_JSON, 404, "{}"}, true},
                 {{"GET /server_info", BAD_JSON, 200, SAYS(CPU)}, true}};
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct bad_server *s = bad_server_start(&cases[i].step, 1);
        struct ws_engine_facts facts = {.known = true};
        struct engine e;
        engine_at(&e, bad_server_port(s));
        if (!cases[i].known)
            e.target.timeout_ms = 100;
        ws_vllm_config_read(&e.target, &facts);
        assert_int_equal(facts.known, cases[i].known);
        bad_server_stop(s);
    }
}

/* Only weights of INT8 are refused, whatever else a version has. */
static void test_int8_weights(void **state)
{
    static struct ws_tensor int8[] = {{.name = "norm.weight", .dtype = WS_BF16},
                                      {.name = "a.weight", .dtype = WS_I8}};
    static struct ws_tensor others[] = {{.name = "norm.weight", .dtype = WS_BF16},
                                        {.name = "a.table", .dtype = WS_I8}};
    struct ws_safetensors first = {.n_tensors = LENGTH(others), .tensors = others};
    struct ws_safetensors second = {.n_tensors = LENGTH(int8), .tensors = int8};
    struct ws_safetensors *const all[] = {&first, &second};
    struct ws_engine_facts facts = {.known = true, .frees_int8_scales = true};
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(ws_cpu_reload_check(&facts, "e1", all, 1, &err), 0);
    assert_int_equal(ws_cpu_reload_check(&facts, "e1", all, 2, &err), -EPROTO);
    assert_non_null(strstr(err.text, "engine e1"));
    assert_non_null(strstr(err.text, "--worker-extension-cls wsync.vllm.Extension"));
    facts.frees_int8_scales = false;
    assert_int_equal(ws_cpu_reload_check(&facts, "e1", all, 2, &err), 0);
}

/* Experts that are not quantised are refused, one by one or all of a layer in one tensor. */
static void test_experts(void **state)
{
    static const struct {
        struct ws_tensor tensor;
        bool is;
    } cases[] = {
        {{.name = "l.0.mlp.experts.3.up_proj.weight", .dtype = WS_BF16, .n_dims = 2}, true},
        {{.name = "l.0.mlp.experts.3.up_proj.weight", .dtype = WS_F32, .n_dims = 2}, true},
        {{.name = "l.0.mlp.experts.gate_up_proj", .dtype = WS_BF16, .n_dims = 3}, true},
        {{.name = "l.0.block_sparse_moe.input_linear.weight", .dtype = WS_BF16, .n_dims = 3}, true},
        {{.name = "l.0.moe.gate_proj.weight", .dtype = WS_BF16, .n_dims = 3}, true},
        {{.name = "l.0.ffn.experts.mlp.w1", .dtype = WS_BF16, .n_dims = 2}, true},
        {{.name = "l.0.block_sparse_moe.gate.weight", .dtype = WS_BF16, .n_dims = 2}, false},
        {{.name = "l.0.mlp.experts.gate_up_proj_bias", .dtype = WS_BF16, .n_dims = 2}, false},
        {{.name = "l.0.mlp.experts.gate_up_proj_scales", .dtype = WS_F16, .n_dims = 3}, false},
        {{.name = "l.0.mlp.experts.3.up_proj.weight", .dtype = WS_F8_E4M3, .n_dims = 2}, false},
        {{.name = "l.0.mlp.experts.3.up_proj.weight_scale", .dtype = WS_F32, .n_dims = 2}, false},
        {{.name = "l.0.mlp.shared_experts.up_proj.weight", .dtype = WS_BF16, .n_dims = 2}, false},
        {{.name = "l.0.linear_attn.conv1d.weight", .dtype = WS_BF16, .n_dims = 3}, false},
    };
    struct ws_engine_facts facts = {.known = true, .leaves_experts = true};
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ws_tensor one = cases[i].tensor;
        struct ws_safetensors st = {.n_tensors = 1, .tensors = &one};
        struct ws_safetensors *const all[] = {&st};
        struct ws_error err = {0};
        assert_int_equal(ws_cpu_reload_check(&facts, "e1", all, 1, &err), cases[i].is ? -EPROTO : 0);
        if (cases[i].is)
            assert_non_null(strstr(err.text, "--worker-extension-cls wsync.vllm.Extension"));
        facts.leaves_experts = false;
        assert_int_equal(ws_cpu_reload_check(&facts, "e1", all, 1, &err), 0);
        facts.leaves_experts = true;
    }
}

static void test_draft_and_adapters(void **state)
{
    static const char speculates[] = "vllm:spec_decode_num_drafts_total 0.0\n";
    static const struct {
        const char *config, *metrics, *draft;
        bool loads;
        unsigned rank;
    } cases[] = {
        {SAYS("\"speculative_config\":null,\"lora_config\":null"), speculates, "", false, 0},
        {SAYS("\"speculative_config\":{\"method\":\"eagle\"}"), NULL, "unchanged", false, 0},
        {SAYS("\"speculative_config\":{\"method\":\"eagle\"},\"weight_transfer_config\":{\"backend\":"
              "\"nccl\"}"),
         NULL, "unchanged", false, 0},
        {SAYS("\"speculative_config\":{\"method\":\"mtp\"},\"weight_transfer_config\":{\"backend\":"
              "\"wsync\"}"),
         NULL, "unchanged", true, 0},
        {SAYS("\"speculative_config\":{\"method\":\"ngram_gpu\"},\"weight_transfer_config\":{\"backend\":"
              "\"wsync\"}"),
         NULL, "", false, 0},
        {SAYS("\"speculative_config\":{\"method\":\"suffix\"},\"lora_config\":{\"max_lora_rank\":32}"), NULL,
         "", false, 32},
        {SAYS("\"lora_config\":{\"max_lora_rank\":-1}"), NULL, "", false, 0},
        {NULL, speculates, "unknown", false, 0},
        {NULL, "up 1\n", "", false, 0},
    };
    struct ws_engine_facts facts;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        read_config(cases[i].config, cases[i].metrics, &facts);
        assert_string_equal(facts.draft, cases[i].draft);
        assert_int_equal(facts.loads_draft, cases[i].loads);
        assert_int_equal(facts.max_adapter_rank, cases[i].rank);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_reloads_on_a_cpu), TEST(test_sleep_mode), TEST(test_answers_late),
        TEST(test_int8_weights),     TEST(test_experts),    TEST(test_draft_and_adapters),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("vllm_config", tests, NULL, NULL);
}
