/* Identities: names that a file may give, models, and what a route asks of them. */
#include "transports/access/identity.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void names_that_wsync_gives_are_nobodys(void **state)
{
    static const char *const good[] = {"a",   "rollout-7", "node7.lab", "spiffe://lab/node",
                                       "a@b", "0+1",       "certain"},
                             *const bad[] = {
                                 "",      "-a",         ".a",    "a b",    "a\n",   "a#",       "anonymous",
                                 "local", "token-file", "cert:", "cert:x", "uid:0", "\xc3\xa4", "a,b"};
    char longest[WS_IDENTITY_CHARS + 2];
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(ws_identity_is_name(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(ws_identity_is_name(bad[i], strlen(bad[i])));
    memset(longest, 'a', sizeof(longest));
    assert_true(ws_identity_is_name(longest, WS_IDENTITY_CHARS));
    assert_false(ws_identity_is_name(longest, WS_IDENTITY_CHARS + 1));
    assert_false(ws_identity_is_name("a\0b", 3));
}

static void patterns_of_models(void **state)
{
    static const char *const bad[] = {"", ",", "a,", ",a", "a,,b", "a b", "[a]", "a?", "a/b", "a\\"};
    (void)state;
    assert_true(ws_identity_are_models("actor*,critic", 13));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(ws_identity_are_models(bad[i], strlen(bad[i])));
}

static struct ws_identity identity(unsigned roles, const char *models)
{
    struct ws_identity i = {.roles = roles};
    snprintf(i.name, sizeof(i.name), "x");
    snprintf(i.models, sizeof(i.models), "%s", models);
    return i;
}

static void models_and_their_parts(void **state)
{
    const struct ws_identity all = identity(WS_ROLE_READ, ""), some = identity(WS_ROLE_READ, "actor*,critic");
    (void)state;
    assert_true(ws_identity_may_use(&all, "anything"));
    assert_true(ws_identity_may_use(&some, "actor"));
    assert_true(ws_identity_may_use(&some, "actor-2"));
    assert_true(ws_identity_may_use(&some, "critic"));
    assert_true(ws_identity_may_use(&some, "critic@1.2")); /* a node's part of it */
    assert_false(ws_identity_may_use(&some, "critics"));
    assert_false(ws_identity_may_use(&some, "other@actor"));
    assert_false(ws_identity_may_use(&some, ""));
}

static int check(const struct ws_identity *i, unsigned role, const char *model)
{
    struct ws_error err = {0};
    const int rc = ws_identity_check(i, role, model, "GET /x", &err);
    assert_true((rc < 0) == (err.text[0] != 0));
    return rc;
}

static void a_route_asks_for_a_role_and_a_model(void **state)
{
    const struct ws_identity unknown = {.roles = WS_ROLES_ALL}, reader = identity(WS_ROLE_READ, "actor"),
                             all = identity(WS_ROLE_READ, "");
    (void)state;
    assert_int_equal(check(&unknown, WS_ROLE_OPEN, NULL), 0);
    assert_int_equal(check(&unknown, WS_ROLE_READ, NULL),
                     -EACCES); /* without a name roles count for nothing */
    assert_int_equal(check(&reader, WS_ROLE_READ, "actor"), 0);
    assert_int_equal(check(&reader, WS_ROLE_READ, "critic"), -EPERM);
    assert_int_equal(check(&reader, WS_ROLE_READ, ""), -EPERM); /* of all models */
    assert_int_equal(check(&all, WS_ROLE_READ, ""), 0);
    assert_int_equal(check(&reader, WS_ROLE_READ, NULL), 0); /* of none */
    assert_int_equal(check(&reader, WS_ROLE_REPORT, "actor"), -EPERM);
}

static void accounts_of_the_socket(void **state)
{
    struct ws_identity i;
    (void)state;
    ws_identity_of_uid(0, &i);
    assert_int_equal(i.roles, WS_ROLES_ALL);
    ws_identity_of_uid(geteuid(), &i);
    assert_int_equal(i.roles, WS_ROLES_ALL);
    ws_identity_of_uid(geteuid() + 4242, &i);
    assert_int_equal(i.roles, WS_ROLES_OF_CLIENTS | WS_ROLE_PUBLISH);
    assert_string_equal(ws_identity_owner(&i),
                        ""); /* several mounts of one account are told apart by their names */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_wsync_gives_are_nobodys),
        cmocka_unit_test(patterns_of_models),
        cmocka_unit_test(models_and_their_parts),
        cmocka_unit_test(a_route_asks_for_a_role_and_a_model),
        cmocka_unit_test(accounts_of_the_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
