/* Names that are used in paths. */
#include "transports/base/name.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_to_file(void **state)
{
    static const struct {
        const char *name, *file;
    } cases[] = {
        {"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
        {"params/dense/kernel", "params%2Fdense%2Fkernel"},
        {"/", "%2F"},
        {".", "%2E"},
        {"..", "%2E."},
        {".hidden", "%2Ehidden"},
        {"../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"},
        {"50%", "50%25"},
        {"%2F", "%252F"},
        {"a\nb\x7F\x01", "a%0Ab%7F%01"},
        {"gr\xC3\xBC\xC3\x9F", "gr\xC3\xBC\xC3\x9F"},
        {"bad\xFFutf", "bad%FFutf"},
        {" space ", " space "},
    };
    char out[WS_MAX_NAME + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ws_name_to_file(cases[i].name, out);
        assert_string_equal(out, cases[i].file);
        assert_true(ws_name_is_safe(out));
        memset(out, 'x', sizeof(out));
        assert_string_equal(ws_name_as_file(cases[i].name, out), cases[i].file);
    }
}

static void test_long_names(void **state)
{
    char name[WS_MAX_TENSOR_NAME + 1], out[WS_MAX_NAME + 1], other[WS_MAX_NAME + 1];

    (void)state;
    memset(name, 'a', sizeof(name));
    name[WS_MAX_NAME] = '\0';
    ws_name_to_file(name, out);
    assert_string_equal(out, name);                     /* exactly fits */
    assert_ptr_equal(ws_name_as_file(name, out), name); /* no copy */

    name[WS_MAX_NAME] = 'a';
    name[WS_MAX_NAME + 1] = '\0';
    ws_name_to_file(name, out);
    assert_string_equal(ws_name_as_file(name, other), out);
    assert_int_equal(strlen(out), 200 + 2 + 16);
    assert_memory_equal(out, name, 200);
    assert_memory_equal(out + 200, "%~", 2);
    assert_int_equal(strspn(out + 202, "0123456789abcdef"), 16);

    name[WS_MAX_NAME] = 'b'; /* differs in the part that is cut off */
    ws_name_to_file(name, other);
    assert_string_not_equal(out, other);
    assert_memory_equal(out, other, 202);
}

/* The cut splits neither a character nor an escape. */
static void test_long_names_are_cut_between_characters(void **state)
{
    char name[WS_MAX_TENSOR_NAME + 1], out[WS_MAX_NAME + 1];

    (void)state;
    for (int shift = 0; shift < 3; shift++) {
        int n = snprintf(name, sizeof(name), "%.*s", shift, "xy");
        for (int i = 0; i < 100; i++)
            n += snprintf(name + n, sizeof(name) - (size_t)n, "\xE2\x82\xAC");
        ws_name_to_file(name, out);
        assert_true(ws_name_is_safe(out));
        assert_memory_equal(strstr(out, "%~") - 3, "\xE2\x82\xAC", 3);

        n = snprintf(name, sizeof(name), "%.*s", shift, "xy");
        for (int i = 0; i < 100; i++)
            n += snprintf(name + n, sizeof(name) - (size_t)n, "/");
        ws_name_to_file(name, out);
        assert_memory_equal(strstr(out, "%~") - 3, "%2F", 3);
    }
}

static void test_safe(void **state)
{
    static const char *const good[] = {
        "actor", "model-00001-of-00002.safetensors", ".gitattributes", "...", "a b", "\xC3\xA4", "50%", "-"};
    static const char *const bad[] = {"",        ".",     "..",   "a/b",  "/",    "../x",          "a\n",
                                      "\t",      "a\x7F", "\xFF", "\xC3", "\x01", "a\xED\xA0\x80", "a/",
                                      "\xC0\xAF"};
    char name[WS_MAX_NAME + 2];

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(ws_name_is_safe(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(ws_name_is_safe(bad[i]));
    memset(name, 'a', sizeof(name));
    name[WS_MAX_NAME] = '\0';
    assert_true(ws_name_is_safe(name));
    name[WS_MAX_NAME] = 'a';
    name[WS_MAX_NAME + 1] = '\0';
    assert_false(ws_name_is_safe(name));
}

static void test_reserved(void **state)
{
    static const char *const bad[] = {"ctl",   "status", "events", "metrics", "last_error", "models",
                                      "local", ".x",     "a@B",    "a%20b",   "a/b",        ""};
    (void)state;
    assert_true(ws_name_is_model("actor") && ws_name_is_model("Qwen3 0.6B") && ws_name_is_model("42"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(ws_name_is_model(bad[i]));
    assert_true(ws_name_is_file("config.json") && ws_name_is_file("tensors.txt"));
    assert_false(ws_name_is_file("tensors") || ws_name_is_file(".wsync") || ws_name_is_file("a/b"));
}

static void test_views(void **state)
{
    static const char *const bad[] = {
        "actor",     "actor@",  "@fp8",   "actor@0.2", "actor@8fp", "actor@-fp8", "a@fp8@fp8", "actor@FP8",
        "actor@f_8", "ctl@fp8", ".a@fp8", "a%20@fp8",  "42@RUN",    "actor@fp8/", "a/b@fp8",   "actor@a.b"};
    char name[WS_MAX_NAME + 2], base[WS_MAX_NAME + 1];
    const char *recipe;
    (void)state;
    assert_true(ws_name_is_view("actor@fp8-block128", base, &recipe));
    assert_string_equal(base, "actor");
    assert_string_equal(recipe, "fp8-block128");
    assert_true(ws_name_is_view("Qwen3 0.6B@a", NULL, NULL));
    assert_true(ws_name_is_model("actor@fp8-block128") && ws_name_is_offered("actor@fp8-block128"));
    assert_false(ws_name_is_node_part("actor@fp8-block128", NULL, NULL, NULL));
    assert_false(ws_name_is_node_part("actor@fp8@0.2", NULL, NULL, NULL));
    assert_false(ws_name_is_model("actor@0.2") || ws_name_is_view("actor@0.2", NULL, NULL));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(ws_name_is_view(bad[i], NULL, NULL));
    memset(name, 'a', sizeof(name));
    name[10] = '@';
    name[WS_MAX_NAME] = '\0';
    assert_true(ws_name_is_view(name, base, &recipe));
    name[WS_MAX_NAME] = 'a';
    name[WS_MAX_NAME + 1] = '\0';
    assert_false(ws_name_is_view(name, NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_file),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_long_names_are_cut_between_characters),
        cmocka_unit_test(test_safe),
        cmocka_unit_test(test_reserved),
        cmocka_unit_test(test_views),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("name", tests, NULL, NULL);
}
