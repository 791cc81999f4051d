/* What an adapter_config.json says, and which servers would serve it as it was trained. */
#include "backends/engine/adapter_config.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
/* As PEFT 0.21 writes it: much that is not set. */
#define NEEDED                                                                                               \
    "\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"org/base\",\"r\":8,\"lora_alpha\":16,"             \
    "\"target_modules\":[\"q_proj\",\"v_proj\"]"
#define UNSET                                                                                                \
    "\"bias\":\"none\",\"use_dora\":false,\"use_rslora\":false,\"rank_pattern\":{},\"alpha_pattern\":{},"    \
    "\"modules_to_save\":null,\"init_lora_weights\":true,\"lora_bias\":false,\"layer_replication\":null"

static struct ws_error err;

static int check(const char *json, const char *kind, unsigned max_rank, struct ws_adapter_config *out)
{
    const struct ws_adapter_server server = {.kind = kind, .max_rank = max_rank};
    err = (struct ws_error){0};
    return ws_adapter_check(json, strlen(json), &server, out, &err);
}

static void test_plain(void **state)
{
    static const char *const kinds[] = {NULL, "vllm", "sglang"};
    struct ws_adapter_config config;
    (void)state;
    for (size_t i = 0; i < LENGTH(kinds); i++) {
        memset(&config, 1, sizeof(config));
        assert_int_equal(check("{" NEEDED "," UNSET "}", kinds[i], 8, &config), 0);
        assert_int_equal(config.rank, 8);
        assert_string_equal(config.base, "org/base");
        assert_int_equal(check("{" NEEDED "}", kinds[i], 0, NULL), 0);
    }
}

static void test_no_adapter(void **state)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"", "no JSON object"},
        {"[1]", "no JSON object"},
        {"{\"r\":8", "no JSON object"},
        {"{}", "peft_type"},
        {"{\"peft_type\":\"IA3\"}", "IA3"},
        {"{\"peft_type\":\"LORA\"}", "lora_alpha"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1}", "target_modules"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1,\"target_modules\":[3]}", "target_modules"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1,\"target_modules\":\"all-linear\"}", "r of"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1,\"target_modules\":[\"q\"],\"r\":0}", "r of"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1,\"target_modules\":[\"q\"],\"r\":1e9}", "r of"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1,\"target_modules\":[\"q\"],\"r\":99999999999}", "r of"},
        {"{" NEEDED ",\"rank_pattern\":{\"q_proj\":-1}}", "rank_pattern"},
        {"{" NEEDED ",\"rank_pattern\":[4]}", "rank_pattern"},
        {"{" NEEDED ",\"r\":8}", "no JSON object"}, /* twice */
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_int_equal(check(cases[i].json, "vllm", 0, NULL), -EBADMSG);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

static void test_not_served(void **state)
{
    static const char sglang[] = "sglang", vllm[] = "vllm";
    static const struct {
        const char *more, *refused_by, *taken_by; /* NULL: by all; by nobody */
        const char *says;
    } cases[] = {
        {"\"use_dora\":true", NULL, NULL, "use_dora"},
        {"\"bias\":\"all\"", NULL, NULL, "bias=\"none\""},
        {"\"lora_bias\":true", NULL, NULL, "lora_bias"},
        {"\"modules_to_save\":[\"lm_head\"]", NULL, NULL, "modules_to_save"},
        {"\"modules_to_save\":[\"score\"]", sglang, vllm, "modules_to_save"},
        {"\"init_lora_weights\":\"pissa\"", NULL, NULL, "init_lora_weights=pissa"},
        {"\"layer_replication\":[[0,4],[2,5]]", NULL, NULL, "layer_replication"},
        {"\"use_rslora\":true", sglang, vllm, "lora_alpha / r"},
        {"\"rank_pattern\":{\"q_proj\":4}", sglang, vllm, "rank_pattern"},
        {"\"alpha_pattern\":{\"q_proj\":4}", sglang, vllm, "alpha_pattern"},
    };
    char json[1024];
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        snprintf(json, sizeof(json), "{" NEEDED ",%s}", cases[i].more);
        assert_int_equal(check(json, cases[i].refused_by, 0, NULL), -EPROTO);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_int_equal(check(json, NULL, 0, NULL), -EPROTO);
        if (cases[i].taken_by)
            assert_int_equal(check(json, cases[i].taken_by, 0, NULL), 0);
    }
    assert_int_equal(check("{" NEEDED ",\"init_lora_weights\":\"gaussian\"}", NULL, 0, NULL), 0);
}

static void test_rank_and_base(void **state)
{
    struct ws_adapter_server server = {.kind = "vllm", .max_rank = 16};
    const char *wide = "{" NEEDED ",\"rank_pattern\":{\"q_proj\":32,\"v_proj\":4}}";
    struct ws_adapter_config config;
    (void)state;
    assert_int_equal(check(wide, "vllm", 32, &config), 0);
    assert_int_equal(config.rank, 32);
    assert_int_equal(check(wide, "vllm", 16, NULL), -EPROTO);
    assert_non_null(strstr(err.text, "--max-lora-rank 32"));
    server.base = "org/base";
    assert_int_equal(ws_adapter_check("{" NEEDED "}", strlen("{" NEEDED "}"), &server, NULL, &err), 0);
    server.base = "/wsync/actor/1";
    assert_int_equal(ws_adapter_check("{" NEEDED "}", strlen("{" NEEDED "}"), &server, NULL, &err), -EPROTO);
    assert_non_null(strstr(err.text, "org/base"));
    assert_non_null(strstr(err.text, "/wsync/actor/1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_no_adapter),
        cmocka_unit_test(test_not_served),
        cmocka_unit_test(test_rank_and_base),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("adapter_config", tests, NULL, NULL);
}
