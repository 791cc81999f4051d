/* What frameworks call the folders of versions. */
#include "transports/base/pattern.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_names(void **state)
{
    static const struct {
        const char *pattern;
        uint64_t number;
        const char *name;
    } cases[] = {
        {"step_{N}", 0, "step_0"},
        {"step_{N}", 7, "step_7"},
        {"step_{N}", UINT64_MAX, "step_18446744073709551615"},
        {"weight_v{N:06d}", 7, "weight_v000007"},
        {"weight_v{N:06d}", 1234567, "weight_v1234567"},
        {"weight_update_v{N}", 12, "weight_update_v12"},
        {"{name}-v{N}", 3, "actor-v3"},
        {"{N}", 3, "3"},
        {"v{N}x", 3, "v3x"},
        {"{N:03d}-of-{name}", 3, "003-of-actor"},
        {".vllm-v{N}", 3, ".vllm-v3"},
    };
    char name[WS_MAX_NAME + 1];
    struct ws_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ws_pattern p;
        uint64_t number = 99;
        assert_int_equal(ws_pattern_parse(cases[i].pattern, "actor", &p, &err), 0);
        assert_false(p.is_constant);
        ws_pattern_name(&p, cases[i].number, name);
        assert_string_equal(name, cases[i].name);
        assert_true(ws_pattern_match(&p, name, &number));
        assert_int_equal(number, cases[i].number);
    }
}

static void test_others(void **state)
{
    static const char *const names[] = {"step_",
                                        "step_07",
                                        "step_-1",
                                        "step_+7",
                                        "step_7 ",
                                        "step_7x",
                                        "Step_7",
                                        "step_ 7",
                                        "",
                                        "step",
                                        "latest",
                                        "step_7.tmp",
                                        "step_18446744073709551616"};
    struct ws_pattern p;
    struct ws_error err;
    uint64_t number = 99;

    (void)state;
    assert_int_equal(ws_pattern_parse("step_{N}", "actor", &p, &err), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_false(ws_pattern_match(&p, names[i], &number));
    assert_int_equal(ws_pattern_parse("weight_v{N:06d}", "actor", &p, &err), 0);
    assert_false(ws_pattern_match(&p, "weight_v7", &number));
    assert_false(ws_pattern_match(&p, "weight_v0000007", &number));
    assert_int_equal(number, 99);
}

static void test_constant(void **state)
{
    struct ws_pattern p;
    struct ws_error err;
    uint64_t number = 99;
    char name[WS_MAX_NAME + 1];

    (void)state;
    assert_int_equal(ws_pattern_parse("{name}_lora_sync", "actor", &p, &err), 0);
    assert_true(p.is_constant);
    ws_pattern_name(&p, 7, name);
    assert_string_equal(name, "actor_lora_sync");
    assert_true(ws_pattern_match(&p, "actor_lora_sync", &number));
    assert_false(ws_pattern_match(&p, "actor_lora_sync7", &number));
    assert_int_equal(number, 99);
}

static void test_refused(void **state)
{
    static const char *const patterns[] = {
        "",      "{N}{N}", "step_{n}", "step_{N", "step_{N:6d}", "{N:021d}", "{N:00d}", "{N:06x}", "{N:06d",
        "a/{N}", "..",     ".",        "step_{}", "step_}{N}",   "{name",    "a\nb{N}", "\xff{N}"};
    char longest[WS_MAX_NAME + 8];
    struct ws_pattern p;
    struct ws_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        assert_int_equal(ws_pattern_parse(patterns[i], "actor", &p, &err), -EINVAL);
    assert_non_null(strstr(err.text, "{N:06d}"));
    memset(longest, 'x', sizeof(longest));
    strcpy(longest + WS_MAX_NAME - 20, "{N}");
    assert_int_equal(ws_pattern_parse(longest, "actor", &p, &err), 0);
    strcpy(longest + WS_MAX_NAME - 19, "{N}");
    assert_int_equal(ws_pattern_parse(longest, "actor", &p, &err), -EINVAL);
    memset(longest, 'x', WS_MAX_NAME + 1);
    longest[WS_MAX_NAME + 1] = '\0';
    assert_int_equal(ws_pattern_parse(longest, "actor", &p, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_constant),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
