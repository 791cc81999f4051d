/* Roles: their names, in texts that an operator wrote. */
#include "transports/access/role.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void names_come_back(void **state)
{
    char text[WS_ROLES_TEXT];
    unsigned roles;
    (void)state;
    for (unsigned all = WS_ROLE_READ; all <= WS_ROLES_ALL; all++) {
        if (all & ~WS_ROLES_ALL)
            continue;
        ws_roles_print(all, text);
        assert_int_equal(ws_roles_parse(text, strlen(text), &roles, NULL), 0);
        assert_int_equal(roles, all);
    }
    assert_string_equal(ws_roles_print(0, text), "none");
    assert_string_equal(ws_role_name(WS_ROLE_OPEN), "open");
    assert_string_equal(ws_role_name(WS_ROLE_READ | WS_ROLE_NODE), "");
}

static void what_is_no_role_is_refused(void **state)
{
    static const char *const texts[] = {"",     ",",     "read,",   ",read",      "read,,report", "open",
                                        "root", "read ", "Read",    "rea",        "reads",        "read,open",
                                        "*",    "none",  "rea\0d,", "read;report"};
    unsigned roles;
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct ws_error err = {0};
        assert_int_equal(ws_roles_parse(texts[i], strlen(texts[i]), &roles, &err), -EINVAL);
        assert_non_null(strstr(err.text, "is no role"));
    }
}

static void only_so_many_bytes_are_read(void **state)
{
    unsigned roles;
    (void)state;
    assert_int_equal(ws_roles_parse("read,adminX", 10, &roles, NULL), 0);
    assert_int_equal(roles, WS_ROLE_READ | WS_ROLE_ADMIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_back),
        cmocka_unit_test(what_is_no_role_is_refused),
        cmocka_unit_test(only_so_many_bytes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
