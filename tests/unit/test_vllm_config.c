/* What a vLLM says that it was started with, and which of that a switch refuses. */
#include "backends/engine/int8.h"
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

static void test_int8_on_a_cpu(void **state)
{
    static const struct {
        const char *config;
        bool frees;
    } cases[] = {
        {SAYS(CPU "," CT), true},
        {SAYS(CPU "," CT ",\"parallel_config\":{\"worker_extension_cls\":\"somebody.Else\"}"), true},
        {SAYS(CPU "," CT ",\"parallel_config\":{\"worker_extension_cls\":\"wsync.vllm.Extension\"}"), false},
        {SAYS(CPU "," CT ",\"weight_transfer_config\":{\"backend\":\"wsync\"}"), false},
        {SAYS(CPU "," CT ",\"weight_transfer_config\":{\"backend\":\"nccl\"}"), true},
        {SAYS("\"device_config\":{\"device\":\"cuda\"}," CT), false},
        {SAYS(CPU ",\"model_config\":{\"quantization\":null}"), false},
        {SAYS(CPU ",\"model_config\":{\"quantization\":\"fp8\"}"), false},
        {SAYS(CPU), true}, /* it does not say */
        {"{\"vllm_config\":\"text\"}", true},
        {NULL, true},
    };
    struct ws_engine_facts facts;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        read_config(cases[i].config, NULL, &facts);
        assert_int_equal(facts.frees_int8_scales, cases[i].frees);
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
    assert_int_equal(ws_int8_check(&facts, "e1", all, 1, &err), 0);
    assert_int_equal(ws_int8_check(&facts, "e1", all, 2, &err), -EPROTO);
    assert_non_null(strstr(err.text, "engine e1"));
    assert_non_null(strstr(err.text, "--worker-extension-cls wsync.vllm.Extension"));
    facts.frees_int8_scales = false;
    assert_int_equal(ws_int8_check(&facts, "e1", all, 2, &err), 0);
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
        TEST(test_int8_on_a_cpu),
        TEST(test_int8_weights),
        TEST(test_draft_and_adapters),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("vllm_config", tests, NULL, NULL);
}
