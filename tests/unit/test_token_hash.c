/* Token hashes: what a file may say, and secrets that are new each time. */
#include "transports/access/token_hash.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_hash_comes_back_from_its_text(void **state)
{
    struct ws_token_hash a, b;
    char text[WS_TOKEN_HASH_CHARS + 1];
    (void)state;
    ws_token_hash("secret", &a);
    ws_token_hash_print(&a, text);
    assert_int_equal(strlen(text), WS_TOKEN_HASH_CHARS);
    assert_true(ws_token_hash_parse(text, strlen(text), &b));
    assert_true(ws_token_hash_equal(&a, &b));
    ws_token_hash("secreT", &b);
    assert_false(ws_token_hash_equal(&a, &b));
    ws_token_hash("", &b);
    assert_false(ws_token_hash_equal(&a, &b));
}

static void what_is_no_hash_is_refused(void **state)
{
    struct ws_token_hash h;
    char text[WS_TOKEN_HASH_CHARS + 2];
    (void)state;
    ws_token_hash("secret", &h);
    ws_token_hash_print(&h, text);
    assert_false(ws_token_hash_parse(text, WS_TOKEN_HASH_CHARS - 1, &h));
    text[WS_TOKEN_HASH_CHARS] = '0';
    assert_false(ws_token_hash_parse(text, WS_TOKEN_HASH_CHARS + 1, &h));
    text[WS_TOKEN_HASH_CHARS - 1] = 'g';
    assert_false(ws_token_hash_parse(text, WS_TOKEN_HASH_CHARS, &h));
    text[WS_TOKEN_HASH_CHARS - 1] = 0;
    assert_false(ws_token_hash_parse(text, WS_TOKEN_HASH_CHARS, &h));
    assert_false(ws_token_hash_parse("blake2c:", 8, &h));
    assert_false(ws_token_hash_parse("", 0, &h));
}

static void secrets_are_new(void **state)
{
    char a[WS_TOKEN_SECRET_CHARS + 1], b[WS_TOKEN_SECRET_CHARS + 1];
    (void)state;
    ws_token_secret_new(a);
    ws_token_secret_new(b);
    assert_int_equal(strlen(a), WS_TOKEN_SECRET_CHARS);
    assert_int_equal(strlen(b), WS_TOKEN_SECRET_CHARS);
    assert_memory_equal(a, "wsync_", 6);
    assert_string_not_equal(a, b);
    for (const char *c = a; *c; c++) /* a header and a shell take it as it is */
        assert_non_null(strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", *c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hash_comes_back_from_its_text),
        cmocka_unit_test(what_is_no_hash_is_refused),
        cmocka_unit_test(secrets_are_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
