/* Filters of deltas: texts that are none, which blocks one has, and that many runs become fewer ones that have all of them. */
#include "transports/delta/filter.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void refuses(const char *text)
{
    struct ws_delta_filter *f;

    assert_int_equal(ws_delta_filter_parse(text, strlen(text), &f), -EINVAL);
    assert_null(f);
}

static void test_malformed(void **state)
{
    char *text = calloc(1, WS_DELTA_FILTER_CHARS + 3);

    (void)state;
    static const char *const bad[] = {"",
                                      "1",
                                      "1.",
                                      ".1",
                                      "1.0",
                                      "1.1,",
                                      ",1.1",
                                      "1-2",
                                      "1.2;3",
                                      "a.b",
                                      "1.1 ",
                                      "-1.1",
                                      "1.1,,1.1",
                                      "1.1.1",
                                      "18446744073709551615.1",
                                      "1.18446744073709551615",
                                      "18446744073709551616.1",
                                      "1.18446744073709551613,2.1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuses(bad[i]);
    memset(text, '1', WS_DELTA_FILTER_CHARS + 1);
    memcpy(text, "1.1,", 4);
    refuses(text);
    free(text);
}

static void test_which_blocks(void **state)
{
    struct ws_delta_filter *f;

    (void)state;
    assert_int_equal(ws_delta_filter_parse("2.3,1.1&x", strlen("2.3,1.1"), &f), 0);
    for (uint64_t b = 0; b < 12; b++)
        assert_int_equal(ws_delta_filter_has(f, b), (b >= 2 && b < 5) || b == 6);
    assert_false(ws_delta_filter_has(f, UINT64_MAX));
    ws_delta_filter_free(f);
}

static bool every_third(void *arg, uint64_t block)
{
    return block % 3 == *(uint64_t *)arg;
}

static bool none(void *arg, uint64_t block)
{
    (void)arg;
    return block > UINT64_MAX - 1;
}

static void test_text(void **state)
{
    static const uint64_t sizes[] = {1, 7, 3000, 100000};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (uint64_t rest = 0; rest < 3; rest++) {
            struct ws_delta_filter *f;
            uint64_t r = rest, more = 0;
            char *text = ws_delta_filter_text(every_third, &r, sizes[i]);
            assert_non_null(text);
            assert_true(strlen(text) <= WS_DELTA_FILTER_CHARS);
            assert_int_equal(ws_delta_filter_parse(text, strlen(text), &f), 0);
            for (uint64_t b = 0; b < sizes[i]; b++) {
                const bool has = ws_delta_filter_has(f, b);
                assert_true(has || b % 3 != rest);
                more += has && b % 3 != rest;
            }
            assert_int_equal(more > 0, sizes[i] > 3000); /* too many runs for one text */
            ws_delta_filter_free(f);
            free(text);
        }
    }
    char *text = ws_delta_filter_text(none, NULL, 5);
    assert_string_equal(text, "5.1");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_which_blocks),
        cmocka_unit_test(test_text),
    };

    return cmocka_run_group_tests_name("delta_filter", tests, NULL, NULL);
}
