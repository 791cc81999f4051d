/* Errors: codes and messages are kept whatever text is put into them. */
#include "transports/base/error.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_set(void **state)
{
    struct ws_error err;

    (void)state;
    assert_int_equal(ws_error_set(&err, ESTALE, "version %d of %s is gone", 7, "actor"), -ESTALE);
    assert_int_equal(err.code, ESTALE);
    assert_string_equal(err.text, "version 7 of actor is gone");
}

static void test_set_without_target(void **state)
{
    (void)state;
    assert_int_equal(ws_error_set(NULL, ENOSPC, "cache is full"), -ENOSPC);
    assert_int_equal(ws_error_prefix(NULL, "pull"), -EIO);
}

/* A failure whose library left errno at 0 must stay a failure. */
static void test_code_zero_is_a_failure(void **state)
{
    struct ws_error err = {0};

    (void)state;
    assert_int_equal(ws_error_set(&err, 0, "nobody knows"), -EIO);
    assert_int_equal(err.code, EIO);
    err = (struct ws_error){0};
    assert_int_equal(ws_error_prefix(&err, "context"), -EIO);
    assert_int_equal(err.code, EIO);
}

static void test_prefix(void **state)
{
    struct ws_error err;

    (void)state;
    (void)ws_error_set(&err, EBADMSG, "hash differs");
    assert_int_equal(ws_error_prefix(&err, "block %d", 3), -EBADMSG);
    assert_int_equal(ws_error_prefix(&err, "pull of %s", "actor/2"), -EBADMSG);
    assert_int_equal(err.code, EBADMSG);
    assert_string_equal(err.text, "pull of actor/2: block 3: hash differs");
}

static void test_long_texts_are_cut(void **state)
{
    char big[3 * WS_ERROR_TEXT];
    struct ws_error err;

    (void)state;
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    (void)ws_error_set(&err, EINVAL, "%s", big);
    assert_int_equal(strlen(err.text), WS_ERROR_TEXT - 1);
    (void)ws_error_prefix(&err, "front");
    assert_int_equal(strlen(err.text), WS_ERROR_TEXT - 1);
    assert_int_equal(strncmp(err.text, "front: xxx", 10), 0);
    (void)ws_error_prefix(&err, "%s", big);
    assert_int_equal(strlen(err.text), WS_ERROR_TEXT - 1);
    assert_int_equal(err.text[0], 'x');
}

/* A cut must not leave half a character: JSON would refuse the text. */
static void test_cut_within_a_character(void **state)
{
    char euros[WS_ERROR_TEXT * 3 + 1];
    struct ws_error err;

    (void)state;
    for (size_t i = 0; i < WS_ERROR_TEXT; i++)
        memcpy(euros + 3 * i, "\xE2\x82\xAC", 3);
    euros[sizeof(euros) - 1] = '\0';
    for (int shift = 0; shift < 3; shift++) {
        (void)ws_error_set(&err, EINVAL, "%.*s%s", shift, "ab", euros);
        for (const char *p = err.text + shift; *p; p++) {
            if (*p == '?')
                continue;
            assert_memory_equal(p, "\xE2\x82\xAC", 3);
            p += 2;
        }
    }
}

static void test_hostile_text_is_one_line(void **state)
{
    struct ws_error err;

    (void)state;
    (void)ws_error_set(&err, EPROTO, "tensor \"%s\"", "a\nok\x1B[2J\xFF");
    assert_string_equal(err.text, "tensor \"a ok?[2J?\"");
    (void)ws_error_prefix(&err, "in\t%s", "b\n");
    assert_string_equal(err.text, "in b : tensor \"a ok?[2J?\"");
}

static void test_errno_names(void **state)
{
    static const int codes[] = {EPERM,   ENOENT, EIO,    EBUSY,        EINVAL,    ENOSPC,    EPROTO,
                                EBADMSG, ESTALE, EDQUOT, ECONNRESET,   ETIMEDOUT, EREMOTEIO, ENOTSUP,
                                E2BIG,   ENOMEM, EAGAIN, EHOSTUNREACH, EOVERFLOW, ECANCELED};

    (void)state;
    assert_string_equal(ws_errno_name(EBADMSG), "EBADMSG");
    assert_string_equal(ws_errno_name(EREMOTEIO), "EREMOTEIO");
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        assert_int_equal(ws_errno_from_name(ws_errno_name(codes[i])), codes[i]);
    assert_int_equal(ws_errno_from_name("EWOULDBLOCK"), EWOULDBLOCK);
    assert_int_equal(ws_errno_from_name("EOPNOTSUPP"), EOPNOTSUPP);
    assert_int_equal(ws_errno_from_name("ENOTSUP"), ENOTSUP);
}

static void test_unknown_errnos(void **state)
{
    (void)state;
    assert_string_equal(ws_errno_name(0), "E?");
    assert_string_equal(ws_errno_name(-EINVAL), "E?");
    assert_string_equal(ws_errno_name(100000), "E?");
    assert_int_equal(ws_errno_from_name("E?"), 0);
    assert_int_equal(ws_errno_from_name(""), 0);
    assert_int_equal(ws_errno_from_name("einval"), 0);
    assert_int_equal(ws_errno_from_name("EINVAL "), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_set_without_target),
        cmocka_unit_test(test_code_zero_is_a_failure),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_long_texts_are_cut),
        cmocka_unit_test(test_cut_within_a_character),
        cmocka_unit_test(test_hostile_text_is_one_line),
        cmocka_unit_test(test_errno_names),
        cmocka_unit_test(test_unknown_errnos),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
