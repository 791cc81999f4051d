/* Tokens files: what is refused, and what a line says. */
#include "transports/access/token_table.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define A             "blake2b:" SIXTY_FOUR("a")
#define B             "blake2b:" SIXTY_FOUR("b")
#define FOUR(c)       c c c c
#define SIXTY_FOUR(c) FOUR(FOUR(FOUR(c)))

static int parse(struct ws_token_table *t, const char *text, struct ws_error *err)
{
    return ws_token_table_parse(t, "FILE", text, strlen(text), err);
}

static void test_lines(void **state)
{
    struct ws_token_table t;
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(parse(&t,
                           "# fleet\n\none read,report " B " # first\n\ttwo read actor*,critic\t" A
                           "\r\nlab.node7 "
                           "read -",
                           &err),
                     0);
    assert_int_equal(t.lines.len, 3);
    const struct ws_token_line *two = ws_token_table_by_name(&t, "two");
    assert_non_null(two);
    assert_int_equal(two->number, 4);
    assert_string_equal(two->identity.models, "actor*,critic");
    assert_true(ws_identity_may_use(&two->identity, "actor-9") &&
                !ws_identity_may_use(&two->identity, "critics"));
    assert_ptr_equal(ws_token_table_by_hash(&t, &two->hash), two);
    assert_false(ws_token_table_by_name(&t, "lab.node7")->has_hash);
    ws_token_table_clear(&t);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"one read\n", "line 1: a line is NAME ROLES"},
        {"\none reed -\n", "line 2: 'reed' is no role"},
        {"uid:0 read -\n", "the name is not"},
        {"local read -\n", "the name is not"},
        {"one read blake2b:aa\n", "no hash"},
        {"one read a,,b -\n", "not patterns"},
        {"one open -\n", "'open' is no role"},
        {"one read " A "\ntwo read " A "\n", "have the same hash"},
        {"one read " A "\nx read -\none read,report " B "\n", "lines 1 and 3: both are of one"},
        {"one read " B "\nx read -\none read actor " A "\n", "lines 1 and 3: both are of one"},
        {"one read -\none read,node " A "\n", "lines 1 and 2: both are of one"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ws_token_table t;
        struct ws_error err = {0};
        assert_int_equal(parse(&t, cases[i].text, &err), -EINVAL);
        assert_int_equal(t.lines.len, 0);
        if (!strstr(err.text, cases[i].says) || !strstr(err.text, "FILE"))
            fail_msg("'%s' says '%s', and not '%s'", cases[i].text, err.text, cases[i].says);
    }
}

/* While a token is exchanged, both are of one name. */
static void test_rotation(void **state)
{
    struct ws_token_table t;
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(parse(&t, "one read m* " A "\none read m* " B "\n", &err), 0);
    ws_token_table_clear(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
