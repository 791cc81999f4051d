/* Source specs: a URL, and the token file that is its own. */
#include "fs/engines/source_spec.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void a_url_and_its_token_file(void **state)
{
    static const struct {
        const char *text, *url, *file;
    } table[] = {
        {"http://a:1", "http://a:1", NULL},
        {"http://a:1;token-file=/etc/t", "http://a:1", "/etc/t"},
        {"https://a/b;token-file=/etc/t=u", "https://a/b", "/etc/t=u"},
        {"dir:/a;token-file=/b", "dir:/a;token-file=/b", NULL}, /* a folder's name */
        {"unix:/a;b", "unix:/a;b", NULL},
        {"", "", NULL},
    };
    struct ws_source_spec s;
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(ws_source_spec_parse(table[i].text, &s, NULL), 0);
        assert_string_equal(s.url, table[i].url);
        assert_true(!s.token_file == !table[i].file);
        if (s.token_file)
            assert_string_equal(s.token_file, table[i].file);
    }
}

static void nothing_else_stands_behind_a_url(void **state)
{
    static const char *const bad[] = {"http://a:1;",
                                      "http://a:1;token-file=",
                                      "http://a:1;token-file=t",
                                      "http://a:1;token=x",
                                      "http://a:1;token-file=/a;token-file=/b",
                                      "http://a:1;;token-file=/a",
                                      "http://a:1;insecure"};
    static char longest[WS_MAX_URL + 100];
    struct ws_source_spec s;
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ws_error err = {0};
        assert_int_equal(ws_source_spec_parse(bad[i], &s, &err), -EINVAL);
        assert_non_null(strstr(err.text, "token-file=/PATH"));
    }
    memset(longest, 'a', sizeof(longest) - 1);
    assert_int_equal(ws_source_spec_parse(longest, &s, NULL), -EINVAL);
}

static void urls_are_compared_without_it(void **state)
{
    (void)state;
    assert_true(ws_source_spec_is_same("http://a:1", "http://a:1;token-file=/t"));
    assert_true(ws_source_spec_is_same("http://a:1;token-file=/u", "http://a:1;token-file=/t"));
    assert_false(ws_source_spec_is_same("http://a:1", "http://a:12;token-file=/t"));
    assert_false(ws_source_spec_is_same("dir:/a", "dir:/a;token-file=/t"));
}

static void a_token_that_cannot_be_read_is_no_token(void **state)
{
    struct ws_source_spec s;
    struct ws_error err = {0};
    char *token;
    (void)state;
    assert_int_equal(ws_source_spec_parse("http://a:1", &s, NULL), 0);
    assert_int_equal(ws_source_spec_token(&s, NULL, &token, NULL), 0);
    assert_null(token);
    assert_int_equal(ws_source_spec_parse("http://a:1;token-file=/no/such/file", &s, NULL), 0);
    assert_int_equal(ws_source_spec_token(&s, NULL, &token, &err), -ENOENT);
    assert_null(token);
    assert_non_null(strstr(err.text, "http://a:1"));
    assert_true(ws_source_spec_parse("http://a:1;token-file=/etc/passwd", &s, NULL) == 0 &&
                ws_source_spec_token(&s, "/usr", &token, &err) < 0); /* not below the folder */
    assert_null(token);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_url_and_its_token_file),
        cmocka_unit_test(nothing_else_stands_behind_a_url),
        cmocka_unit_test(urls_are_compared_without_it),
        cmocka_unit_test(a_token_that_cannot_be_read_is_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
