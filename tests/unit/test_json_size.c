/* What would take too much memory, or is nested too deep, is refused before it is parsed. */
#include "transports/base/json_size.h"
#include "transports/base/limits.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool is_modest(const char *begin, const char *each, size_t times, const char *end)
{
    char *text = malloc(strlen(begin) + strlen(each) * times + strlen(end) + 1);
    assert_non_null(text);
    char *at = stpcpy(text, begin);
    for (size_t i = 0; i < times; i++)
        at = stpcpy(at, each);
    at = stpcpy(at, end);
    const bool is = ws_json_is_modest(text, (size_t)(at - text));
    free(text);
    return is;
}

static void test_memory(void **state)
{
    (void)state;
    assert_true(is_modest("[", "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",",
                          1000000, "0]"));
    assert_true(is_modest("{\"models\":[", "{\"name\":\"actor\",\"version\":1,\"digest\":\"0123456789\"},",
                          100000, "0]}"));
    assert_false(is_modest("[", "{},", 1000000, "0]"));
    assert_false(is_modest("[", "[],", 2000000, "0]"));
    assert_false(is_modest("[", "1,", 10000000, "0]"));
    assert_false(is_modest("{", "\"\":0,", 2000000, "\"\":0}"));
    assert_true(is_modest("\"", "{[,:", 10000000, "\"")); /* all of it is one string */
    assert_true(is_modest("\"\\\"", "{[,:", 10000000, "\""));
}

static void test_depth(void **state)
{
    (void)state;
    assert_true(is_modest("", "[", 64, ""));
    assert_false(is_modest("", "[", 65, ""));
    assert_false(is_modest("", "{\"a\":", 65, ""));
    assert_true(is_modest("", "[]", 1000, ""));
    assert_true(is_modest("", "]", 1000, ""));
    assert_true(ws_json_is_modest("\"\\", 2));
    assert_true(ws_json_is_modest("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_depth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
