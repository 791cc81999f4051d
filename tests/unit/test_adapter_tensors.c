/* An adapter's tensors: pairs of A and B of the ranks that its config has, and what the others are refused with. */
#include "backends/engine/adapter_tensors.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define Q         "base_model.model.model.layers.0.self_attn.q_proj"
#define GOOD      "\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\"]"

static struct ws_error err;

struct spec {
    const char *name;
    unsigned n_dims;
    uint64_t shape[3];
};

/* The check of a file of these tensors, up to the first without a name. */
static int check(const char *text, const struct spec *specs, size_t n)
{
    struct ws_tensor tensors[8];
    struct ws_safetensors *st;
    json_t *config = json_loads(text, 0, NULL);
    void *header;
    size_t found = 0;

    assert_non_null(config);
    for (; found < n && specs[found].name; found++) {
        tensors[found] =
            (struct ws_tensor){.name = specs[found].name, .dtype = WS_F32, .n_dims = specs[found].n_dims};
        memcpy(tensors[found].shape, specs[found].shape, sizeof(specs[found].shape));
    }
    assert_int_equal(ws_safetensors_layout(tensors, found, NULL, &st, &header, &err), 0);
    int rc = ws_adapter_check_tensors(config, st, &err);
    json_decref(config);
    ws_safetensors_free(st);
    free(header);
    return rc;
}

static void test_pairs(void **state)
{
    static const struct spec pair[] = {{Q ".lora_A.weight", 2, {4, 64}}, {Q ".lora_B.weight", 2, {32, 4}}};
    static const struct spec embedding[] = {{"m.embed_tokens.lora_embedding_A", 2, {4, 1000}},
                                            {"m.embed_tokens.lora_embedding_B", 2, {64, 4}}};
    static const struct spec larger[] = {{Q ".lora_A.weight", 2, {8, 64}}, {Q ".lora_B.weight", 2, {32, 8}}};

    (void)state;
    assert_int_equal(check("{" GOOD "}", pair, 2), 0);
    assert_int_equal(check("{" GOOD "}", embedding, 2), 0);
    assert_int_equal(check("{" GOOD ", \"rank_pattern\": {\"q_proj\": 8}}", larger, 2), 0);
    assert_int_equal(check("{" GOOD ", \"target_parameters\": [\"experts.up\"]}", larger, 2), 0);
    assert_int_equal(check("{" GOOD ", \"target_parameters\": []}", larger, 2), -EBADMSG);
    assert_non_null(strstr(err.text, "has rank 8, and adapter_config.json has r 4"));
}

static void test_others(void **state)
{
    static const struct {
        struct spec specs[3];
        const char *words;
    } cases[] = {
        {{{0}}, "holds no tensors"},
        {{{Q ".lora_A.weight", 2, {4, 64}}}, "is there without \"" Q ".lora_B.weight\""},
        {{{Q ".lora_B.weight", 2, {32, 4}}}, "is there without \"" Q ".lora_A.weight\""},
        {{{Q ".lora_A.weight", 2, {4, 64}}, {"x.lora_B.weight", 2, {32, 4}}}, "is there without"},
        {{{Q ".lora_A.weight", 2, {4, 64}}, {Q ".lora_embedding_B", 2, {32, 4}}}, "is there without"},
        {{{Q ".lora_A.weight", 2, {4, 64}}, {Q ".lora_B.weight", 2, {32, 3}}}, "do not fit each other"},
        {{{Q ".lora_A.weight", 1, {4}}, {Q ".lora_B.weight", 2, {32, 4}}}, "do not fit each other"},
        {{{Q ".lora_A.weight", 2, {4, 64}}, {Q ".lora_B.weight", 2, {32, 4}}, {Q ".weight", 1, {3}}},
         "\"" Q ".weight\" is no lora_A"},
        {{{Q ".lora_A.default.weight", 2, {4, 64}}}, "is no lora_A"},
        {{{".lora_A.weight", 2, {4, 64}}}, "is no lora_A"},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_int_equal(check("{" GOOD "}", cases[i].specs, 3), -EBADMSG);
        if (!strstr(err.text, cases[i].words) || strncmp(err.text, "adapter_model.safetensors: ", 27) != 0)
            fail_msg("case %zu: %s", i, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs), cmocka_unit_test(test_others)};

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("adapter_tensors", tests, NULL, NULL);
}
