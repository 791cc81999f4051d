/* Text cleaning: any input becomes one printable line of UTF-8. */
#include "transports/base/text.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_utf8_length(void **state)
{
    static const struct {
        const char *bytes;
        size_t n, want;
    } cases[] = {
        {"", 0, 0},
        {"a", 1, 1},
        {"\0", 1, 1},
        {"\x7F", 1, 1},
        {"\x80", 1, 0},             /* a lone continuation byte */
        {"\xC3\xA4", 2, 2},         /* U+00E4 */
        {"\xC3\xA4", 1, 0},         /* cut */
        {"\xC3(", 2, 0},            /* no continuation byte */
        {"\xC0\x80", 2, 0},         /* NUL in two bytes */
        {"\xC1\xBF", 2, 0},         /* overlong */
        {"\xE2\x82\xAC", 3, 3},     /* U+20AC */
        {"\xE2\x82\xAC", 2, 0},     /* cut */
        {"\xE0\x80\xAF", 3, 0},     /* overlong '/' */
        {"\xED\x9F\xBF", 3, 3},     /* U+D7FF */
        {"\xED\xA0\x80", 3, 0},     /* surrogate U+D800 */
        {"\xED\xBF\xBF", 3, 0},     /* surrogate U+DFFF */
        {"\xEE\x80\x80", 3, 3},     /* U+E000 */
        {"\xF0\x9F\x98\x80", 4, 4}, /* U+1F600 */
        {"\xF0\x8F\xBF\xBF", 4, 0}, /* overlong */
        {"\xF4\x8F\xBF\xBF", 4, 4}, /* U+10FFFF */
        {"\xF4\x90\x80\x80", 4, 0}, /* beyond */
        {"\xF5\x80\x80\x80", 4, 0},
        {"\xFF", 1, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(ws_utf8_length(cases[i].bytes, cases[i].n), cases[i].want);
}

static void test_clean(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", ""},
        {"plain text", "plain text"},
        {"line\nbreak\ttab\r", "line break tab "},
        {"esc\x1B[31m del\x7F bell\a", "esc?[31m del? bell?"},
        {"na\xC3\xAFve \xE2\x82\xAC", "na\xC3\xAFve \xE2\x82\xAC"},
        {"bad \xFF\xC3", "bad ??"},
        {"cut \xE2\x82", "cut ??"},
    };
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        strcpy(text, cases[i].in);
        ws_text_clean(text);
        assert_string_equal(text, cases[i].out);
    }
}

static void test_hash(void **state)
{
    static const char *const bad[] = {NULL,
                                      "",
                                      "0123456789abcde",
                                      "0123456789abcdef0",
                                      "0123456789ABCDEF",
                                      "-123456789abcdef",
                                      " 123456789abcdef",
                                      "0x23456789abcdef",
                                      "g123456789abcdef"};
    uint64_t out = 7;
    (void)state;
    assert_int_equal(ws_text_hash("0123456789abcdef", &out), 0);
    assert_int_equal(out, 0x0123456789abcdef);
    assert_int_equal(ws_text_hash("ffffffffffffffff", &out), 0);
    assert_int_equal(out, UINT64_MAX);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ws_text_hash(bad[i], &out), -EINVAL);
    for (size_t i = 0; i < 64; i++) {
        char text[WS_HASH_DIGITS + 1] = {0};
        const uint64_t hash = UINT64_C(0xfedcba9876543210) ^ UINT64_C(1) << i;
        ws_text_put_hash(hash, text);
        assert_int_equal(ws_text_hash(text, &out), 0);
        assert_int_equal(out, hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_length),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_hash),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
