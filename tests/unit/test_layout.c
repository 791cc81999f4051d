/* The gate's comparison of layouts. */
#include "transports/format/layout.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_safetensors *make(const struct ws_tensor *specs, size_t n)
{
    struct ws_safetensors *st = NULL;
    struct ws_error err;
    void *header;

    if (ws_safetensors_layout(specs, n, NULL, &st, &header, &err) < 0)
        fail_msg("%s", err.text);
    free(header);
    return st;
}

static const struct ws_tensor base[] = {
    {.name = "a", .dtype = WS_BF16, .n_dims = 2, .shape = {2, 3}},
    {.name = "b", .dtype = WS_F32, .n_dims = 0},
    {.name = "c", .dtype = WS_F32, .n_dims = 1, .shape = {4}},
};

/* Distribution over files and offsets make no difference. */
static void test_equal(void **state)
{
    struct ws_safetensors *whole = make(base, 3);
    struct ws_safetensors *parts[] = {make(base + 2, 1), make(base, 1), make(base + 1, 1)};
    char *report = (char *)1;

    (void)state;
    assert_int_equal(ws_layout_compare(&whole, 1, &whole, 1, &report), 0);
    assert_null(report);
    assert_int_equal(ws_layout_compare(&whole, 1, parts, 3, &report), 0);
    assert_int_equal(ws_layout_compare(parts, 3, &whole, 1, &report), 0);
    assert_int_equal(ws_layout_compare(NULL, 0, NULL, 0, &report), 0);
    for (size_t i = 0; i < LENGTH(parts); i++)
        ws_safetensors_free(parts[i]);
    ws_safetensors_free(whole);
}

static void test_differences(void **state)
{
    static const struct ws_tensor other[] = {
        {.name = "a", .dtype = WS_F16, .n_dims = 2, .shape = {2, 3}}, /* dtype */
        {.name = "a2", .dtype = WS_U8, .n_dims = 1, .shape = {7}},    /* new */
        {.name = "c", .dtype = WS_F32, .n_dims = 2, .shape = {4, 1}}, /* dimensions; b is gone */
    };
    struct ws_safetensors *have = make(other, 3), *want = make(base, 3);
    char *report = NULL;

    (void)state;
    assert_int_equal(ws_layout_compare(&have, 1, &want, 1, &report), -EPROTO);
    assert_string_equal(report, "differs a: F16 [2,3], was BF16 [2,3]\n"
                                "extra a2 (U8 [7])\n"
                                "missing b (F32 [])\n"
                                "differs c: F32 [4,1], was F32 [4]\n");
    free(report);
    assert_int_equal(ws_layout_compare(NULL, 0, &want, 1, &report), -EPROTO);
    assert_string_equal(report, "missing a (BF16 [2,3])\nmissing b (F32 [])\nmissing c (F32 [4])\n");
    free(report);
    ws_safetensors_free(have);
    ws_safetensors_free(want);
}

static void test_same_size_other_shape(void **state)
{
    static const struct ws_tensor a = {.name = "w", .n_dims = 2, .shape = {2, 3}};
    static const struct ws_tensor b = {.name = "w", .n_dims = 2, .shape = {3, 2}};
    struct ws_safetensors *have = make(&a, 1), *want = make(&b, 1);
    char *report = NULL;

    (void)state;
    assert_int_equal(ws_layout_compare(&have, 1, &want, 1, &report), -EPROTO);
    free(report);
    ws_safetensors_free(have);
    ws_safetensors_free(want);
}

/* A name in two files of one side is found although the other side has it once. */
static void test_name_in_two_files(void **state)
{
    struct ws_safetensors *one = make(base, 1);
    struct ws_safetensors *twice[] = {one, one};
    char *report = NULL;

    (void)state;
    assert_int_equal(ws_layout_compare(twice, 2, &one, 1, &report), -EPROTO);
    assert_string_equal(report, "extra a (BF16 [2,3])\n");
    free(report);
    ws_safetensors_free(one);
}

static void test_report_is_bounded(void **state)
{
    static char names[250][8];
    struct ws_tensor specs[250];
    struct ws_safetensors *have;
    char *report = NULL, *line, *rest, want[32];
    int lines = 0;

    (void)state;
    for (size_t i = 0; i < LENGTH(specs); i++) {
        snprintf(names[i], sizeof(names[i]), "t%03zu", i);
        specs[i] = (struct ws_tensor){.name = names[i], .dtype = WS_U8};
    }
    have = make(specs, LENGTH(specs));
    assert_int_equal(ws_layout_compare(&have, 1, NULL, 0, &report), -EPROTO);
    for (line = strtok_r(report, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++) {
        snprintf(want, sizeof(want), lines < 100 ? "extra t%03d (U8 [])" : "and 150 more", lines);
        assert_string_equal(line, want);
    }
    assert_int_equal(lines, 101);
    free(report);
    ws_safetensors_free(have);
}

/* The longest valid name and the largest numbers fit; a hostile name stays on one line. */
static void test_extreme_lines(void **state)
{
    static char name[WS_MAX_TENSOR_NAME + 1];
    const struct ws_tensor a[] = {
        {.name = "x\nextra forged", .dtype = WS_U8},
        {.name = name, .n_dims = 8, .shape = {0, 9007199254740992, 1, 1, 1, 1, 1, 1}},
    };
    struct ws_safetensors *have;
    char *report = NULL, want[2 * sizeof(name)];

    (void)state;
    memset(name, 'y', sizeof(name) - 1);
    have = make(a, 2);
    assert_int_equal(ws_layout_compare(&have, 1, NULL, 0, &report), -EPROTO);
    snprintf(want, sizeof(want),
             "extra x extra forged (U8 [])\nextra %s (BOOL [0,9007199254740992,1,1,1,1,1,1])\n", name);
    assert_string_equal(report, want);
    free(report);
    ws_safetensors_free(have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_same_size_other_shape),
        cmocka_unit_test(test_name_in_two_files),
        cmocka_unit_test(test_report_is_bounded),
        cmocka_unit_test(test_extreme_lines),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
