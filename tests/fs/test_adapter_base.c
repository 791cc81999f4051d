/* An adapter's base: matrices of other shapes, and modules that the base has not, are another base's. */
#include "fs/switch/adapter_base.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define Q "base_model.model.model.layers.1.self_attn.q_proj"

static struct ws_error err;

static struct ws_safetensors *layout(const char *const *names, size_t n, uint64_t rows, uint64_t columns)
{
    struct ws_tensor tensors[8] = {0};
    struct ws_safetensors *st;
    void *header;

    for (size_t i = 0; i < n; i++)
        tensors[i] =
            (struct ws_tensor){.name = names[i], .dtype = WS_F32, .n_dims = 2, .shape = {rows, columns}};
    assert_int_equal(ws_safetensors_layout(tensors, n, NULL, &st, &header, &err), 0);
    free(header);
    return st;
}

/* An adapter with that one module, of 8 inputs, on a base with these tensors. */
static int check(const char *module, const char *const *base, size_t n, bool is_whole)
{
    char name[256];
    const char *const names[] = {name};
    snprintf(name, sizeof(name), "%s.lora_A.weight", module);
    struct ws_safetensors *adapter = layout(names, 1, 4, 8), *of = layout(base, n, 8, 8);
    const struct ws_safetensors *all[] = {of};
    int rc = ws_adapter_base_check(adapter, all, n > 0, is_whole, &err);
    ws_safetensors_free(adapter);
    ws_safetensors_free(of);
    return rc;
}

static void test_modules(void **state)
{
    static const struct {
        const char *module, *tensor;
        bool fits;
    } cases[] = {
        {Q, "model.layers.1.self_attn.q_proj.weight", true},
        {Q, "language_model.model.layers.1.self_attn.q_proj.weight", true}, /* transformers moves prefixes */
        {Q, "layers.1.self_attn.q_proj.qweight", true},                     /* quantised */
        {Q, "model.layers.11.self_attn.q_proj.weight", false},
        {Q, "model.layers.1.self_attn.q_proj2.weight", false},
        {Q, "model.layers.1.self_attn.weight", false},
        {Q, "transformer.h.1.attn.c_attn.weight", false},
        {"base_model.model.layer.1", "layer.1.weight", true},
        {"base_model.model.lm_head", "model.embed_tokens.weight", true},                    /* tied */
        {"base_model.model.model.layers.1.mlp.experts", "layers.1.moe.experts.0.w1", true}, /* stacked */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const base[] = {"a.weight", cases[i].tensor};
        const int rc = check(cases[i].module, base, 2, true);
        if (rc != (cases[i].fits ? 0 : -EPROTO))
            fail_msg("%s on %s: %d", cases[i].module, cases[i].tensor, rc);
        if (rc < 0)
            assert_non_null(strstr(err.text, Q ".lora_A.weight"));
        assert_int_equal(check(cases[i].module, base, 2, false), 0); /* the rest of the base may have it */
    }
    assert_int_equal(check(Q, NULL, 0, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_modules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
