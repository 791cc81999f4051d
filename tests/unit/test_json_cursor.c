/* The JSON cursor: accepts what jansson accepts, piece by piece, and nothing else. */
#include "transports/base/json_cursor.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;

/* The text in a block of exactly its size, so that a sanitizer sees a read beyond it. */
static char *start(struct ws_json *j, const char *text)
{
    size_t len = strlen(text);
    char *copy = malloc(len ? len : 1);

    assert_non_null(copy);
    memcpy(copy, text, len); /* NOLINT(bugprone-not-null-terminated-result) */
    ws_json_start(j, copy, len);
    return copy;
}

static void test_walk(void **state)
{
    static const char text[] = " {\"a\" : 1 ,\t\"list\":[\"x\",\"\\u00e4\\n\",\"\"],\n"
                               "\"sub\":{ },\"none\":[ ],\"\\u0062\":{\"deep\":[[1,2.5],{}]}} \r\n";
    static const char *const strings[] = {"x", "\xC3\xA4\n", ""};
    char key[16], value[16];
    struct ws_json j;
    uint64_t number;
    char *copy = start(&j, text);

    (void)state;
    assert_int_equal(ws_json_enter(&j, '{', &err), 0);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 1);
    assert_string_equal(key, "a");
    assert_int_equal(ws_json_uint(&j, &number, &err), 0);
    assert_int_equal(number, 1);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 1);
    assert_string_equal(key, "list");
    assert_int_equal(ws_json_enter(&j, '[', &err), 0);
    for (size_t i = 0; i < LENGTH(strings); i++) {
        assert_int_equal(ws_json_element(&j, &err), 1);
        assert_int_equal(ws_json_string(&j, value, sizeof(value), &err), 0);
        assert_string_equal(value, strings[i]);
    }
    assert_int_equal(ws_json_element(&j, &err), 0);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 1);
    assert_int_equal(ws_json_enter(&j, '{', &err), 0);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 0);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 1);
    assert_int_equal(ws_json_enter(&j, '[', &err), 0);
    assert_int_equal(ws_json_element(&j, &err), 0);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 1);
    assert_string_equal(key, "b");
    assert_int_equal(ws_json_skip(&j, &err), 0);
    assert_int_equal(ws_json_member(&j, key, sizeof(key), &err), 0);
    assert_int_equal(ws_json_finish(&j, &err), 0);
    free(copy);
}

/* Walks an object of numbers, arrays of strings and anything else. */
static int walk(const char *text)
{
    char key[16], value[16];
    struct ws_json j;
    uint64_t number;
    char *copy = start(&j, text);
    int rc = ws_json_enter(&j, '{', &err);

    while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), &err)) == 1) {
        if (strcmp(key, "n") == 0) {
            rc = ws_json_uint(&j, &number, &err);
        } else if (strcmp(key, "s") == 0) {
            rc = ws_json_enter(&j, '[', &err);
            while (rc == 0 && (rc = ws_json_element(&j, &err)) == 1)
                rc = ws_json_string(&j, value, sizeof(value), &err);
        } else {
            rc = ws_json_skip(&j, &err);
        }
    }
    if (rc == 0)
        rc = ws_json_finish(&j, &err);
    free(copy);
    return rc;
}

static void test_good(void **state)
{
    static const char *const texts[] = {
        "{}",
        "{\"n\":0}",
        "{\"n\":9223372036854775807}",
        "{\"s\":[]}",
        "{\"s\":[\"123456789012345\"]}",
        "{\"other\":null,\"n\":1}",
        "{\"other\":-1.5e3}",
        "{\"other\":\"\\ud83d\\ude00\",\"n\":1}",
        "{\"123456789012345\":true}",
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(texts); i++)
        assert_int_equal(walk(texts[i]), 0);
}

static void test_bad(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "[]",
        "{",
        "{\"n\"",
        "{\"n\":",
        "{\"n\":1",
        "{\"n\":1,",
        "{\"n\":1,}",
        "{,}",
        "{\"n\":1 \"s\":[]}",
        "{n:1}",
        "{'n':1}",
        "{\"n\"=1}",
        "{\"n\":1}}",
        "{\"n\":1}x",
        "{}{}",
        /* numbers */
        "{\"n\":-1}",
        "{\"n\":-0}",
        "{\"n\":1.0}",
        "{\"n\":1e3}",
        "{\"n\":01}",
        "{\"n\":+1}",
        "{\"n\":9223372036854775808}",
        "{\"n\":99999999999999999999999999999999999999999}",
        "{\"n\":\"1\"}",
        "{\"n\":null}",
        "{\"n\":1a}",
        "{\"n\":0x10}",
        "{\"n\":[1]}",
        /* strings */
        "{\"s\":[1]}",
        "{\"s\":[\"a\"",
        "{\"s\":[\"a]}",
        "{\"s\":[\"a\",]}",
        "{\"s\":[,\"a\"]}",
        "{\"s\":[\"a\" \"b\"]}",
        "{\"s\":[\"a\"}}",
        "{\"s\":[\"1234567890123456\"]}",
        "{\"s\":[\"\\u0000\"]}",
        "{\"s\":[\"\\ud800\"]}",
        "{\"s\":[\"\n\"]}",
        "{\"s\":[\"\\x\"]}",
        "{\"s\":[\"\xFF\"]}",
        "{\"s\":[\"\xC0\xAF\"]}",
        "{\"s\":[\"\xED\xA0\x80\"]}",
        /* keys */
        "{\"1234567890123456\":1}",
        "{\"\\u0000\":1}",
        "{\"\xC3\":1}",
        "{\"\":}",
        /* skipped values are checked too */
        "{\"x\":nul}",
        "{\"x\":[1,]}",
        "{\"x\":{\"a\":1,\"a\":2}}",
        "{\"x\":\"\xFF\"}",
        "{\"x\":}",
        "{\"x\":{\"\\u0000\":1}}",
        "\xEF\xBB\xBF{}",
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(texts); i++) {
        err = (struct ws_error){0};
        assert_int_equal(walk(texts[i]), -EBADMSG);
        assert_int_equal(err.code, EBADMSG);
        assert_true(strlen(err.text) > 0);
    }
}

/* Every proper prefix of a valid text is invalid, and none causes a read beyond it. */
static void test_prefixes(void **state)
{
    static const char text[] =
        "{\"n\":12,\"s\":[\"a\",\"\\u00e4\xC3\xA4\"],\"x\":{\"y\":[1,2.5,\"z\",true,{}]}}";

    (void)state;
    assert_int_equal(walk(text), 0);
    for (size_t n = 0; n + 1 < sizeof(text); n++) {
        char cut[sizeof(text)];
        memcpy(cut, text, n);
        cut[n] = '\0';
        assert_int_equal(walk(cut), -EBADMSG);
    }
}

static void test_nul_byte(void **state)
{
    static const char *const texts[] = {"{\"a\0\":1}", "{\"a\":\0}", "{\"a\":1}\0", "\0{}"};
    static const size_t lengths[] = {8, 7, 8, 3};

    (void)state;
    for (size_t i = 0; i < LENGTH(texts); i++) {
        struct ws_json j;
        char key[16];
        int rc;
        ws_json_start(&j, texts[i], lengths[i]);
        rc = ws_json_enter(&j, '{', &err);
        while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), &err)) == 1)
            rc = ws_json_skip(&j, &err);
        if (rc == 0)
            rc = ws_json_finish(&j, &err);
        assert_int_equal(rc, -EBADMSG);
    }
}

static void test_limits(void **state)
{
    size_t n = WS_MAX_JSON_VALUE + 16;
    char *text = malloc(n);
    struct ws_json j;
    char out[8];

    (void)state;
    assert_non_null(text);
    memset(text, 'a', n);
    text[0] = '"';
    text[n - 1] = '"';
    ws_json_start(&j, text, n);
    assert_int_equal(ws_json_skip(&j, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "longer than"));
    ws_json_start(&j, text, n);
    assert_int_equal(ws_json_string(&j, out, sizeof(out), &err), -EBADMSG);
    assert_non_null(strstr(err.text, "longer than"));

    memset(text, '[', n); /* nesting is bounded too */
    ws_json_start(&j, text, n);
    assert_int_equal(ws_json_skip(&j, &err), -EBADMSG);
    free(text);
}

/* A string may need six bytes for one; the longest legal form must still be read. */
static void test_escaped_string_at_its_limit(void **state)
{
    char text[64] = "\"", out[8];
    struct ws_json j;

    (void)state;
    for (size_t i = 0; i + 1 < sizeof(out); i++)
        strcat(text, "\\u0041");
    strcat(text, "\"");
    ws_json_start(&j, text, strlen(text));
    assert_int_equal(ws_json_string(&j, out, sizeof(out), &err), 0);
    assert_string_equal(out, "AAAAAAA");
    assert_int_equal(ws_json_finish(&j, &err), 0);
}

static void test_put_string(void **state)
{
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);

    (void)state;
    assert_non_null(f);
    assert_int_equal(ws_json_put_string(f, "a\"\\\n\x01\xC3\xA4/"), 0);
    assert_int_equal(ws_json_put_string(f, "\xFF"), -EINVAL);
    assert_int_equal(fclose(f), 0);
    assert_string_equal(text, "\"a\\\"\\\\\\n\\u0001\xC3\xA4/\"");
    free(text);
}

/* Short numbers and plain strings are not jansson's: they have to be what jansson makes of them. */
static void test_same_as_jansson(void **state)
{
    static const char *const numbers[] = {"0", "7", "10", "999999999999999999", "1000000000000000000"};
    char text[64], value[16];
    struct ws_json j;
    uint64_t number;

    (void)state;
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        for (size_t k = 0; k < 5; k++) {
            snprintf(text, sizeof(text), " %s%.1s", numbers[i], &", ]}\n"[k]);
            char *copy = start(&j, text);
            assert_int_equal(ws_json_uint(&j, &number, &err), 0);
            assert_int_equal(number, strtoull(numbers[i], NULL, 10));
            assert_int_equal(j.at, 1 + strlen(numbers[i]));
            free(copy);
        }
    }
    for (char c = 1; c > 0; c++) {
        const char raw[] = {'a', c, 'z', '\0'};
        char *written = NULL;
        size_t n;
        FILE *f = open_memstream(&written, &n);
        json_t *string = json_string(raw);
        char *dumped = json_dumps(string, JSON_ENCODE_ANY);
        assert_int_equal(ws_json_put_string(f, raw), 0);
        fclose(f);
        assert_string_equal(written, dumped);
        char *copy = start(&j, written);
        assert_int_equal(ws_json_string(&j, value, 4, &err), 0);
        assert_string_equal(value, raw);
        assert_int_equal(j.at, n);
        free(copy);
        copy = start(&j, written);
        assert_int_equal(ws_json_string(&j, value, 3, &err), -EBADMSG);
        free(copy);
        free(written);
        free(dumped);
        json_decref(string);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_nul_byte),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_escaped_string_at_its_limit),
        cmocka_unit_test(test_put_string),
        cmocka_unit_test(test_same_as_jansson),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("json_cursor", tests, NULL, NULL);
}
