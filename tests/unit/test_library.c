/* Libraries opened at run time; the C library's libm is the existing one here. */
#include "transports/base/library.h"
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct table {
    double (*cosine)(double);
    double (*root)(double);
};
static const struct ws_library_symbol symbols[] = {{"cos", offsetof(struct table, cosine)},
                                                   {"sqrt", offsetof(struct table, root)},
                                                   {"ws_no_such_function", offsetof(struct table, root)}};

static void test_open(void **state)
{
    struct table t = {0};
    struct ws_error err = {0};
    const char *missing = "not set";
    void *handle = NULL;
    (void)state;
    assert_int_equal(ws_library_open("libm.so.6", 0, symbols, 2, &t, &handle, &missing, &err), 0);
    assert_non_null(handle);
    assert_null(missing);
    assert_true(t.cosine(0) == 1 && t.root(4) == 2);
    assert_int_equal(dlclose(handle), 0);
}

static void test_missing(void **state)
{
    struct table t = {0};
    struct ws_error err = {0};
    const char *missing = NULL;
    void *handle = NULL;
    (void)state;
    assert_int_equal(ws_library_open("libm.so.6", 0, symbols, 3, &t, &handle, &missing, &err), -ENOTSUP);
    assert_string_equal(missing, "ws_no_such_function");
    assert_string_equal(err.text, "libm.so.6 has no ws_no_such_function");
    assert_int_equal(ws_library_open("/nonexistent/l.so", 0, symbols, 2, &t, &handle, &missing, &err),
                     -ENOTSUP);
    assert_null(missing);
    assert_non_null(strstr(err.text, "/nonexistent/l.so"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_open), cmocka_unit_test(test_missing)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("library", tests, NULL, NULL);
}
