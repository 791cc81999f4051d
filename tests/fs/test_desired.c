/* The desired state comes from agents, so it is input: every number, lineage and name is checked. */
#include "fs/store/desired.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

static int read_text(const char *text, const char *mount_id, struct ws_desired *out)
{
    json_t *model = json_loads(text, 0, NULL);
    assert_non_null(model);
    int rc = ws_desired_from_json(model, mount_id, out);
    json_decref(model);
    return rc;
}

static void test_good(void **state)
{
    struct ws_desired o, again;
    static const char text[] =
        "{\"release\":{\"id\":9,\"phase\":\"preparing\",\"version\":42,\"run\":\"r1\",\"models\":[\"actor\"]}"
        ","
        "\"released\":{\"version\":41,\"run\":\"r1\",\"by\":8},\"wanted\":["
        "{\"id\":5,\"version\":40,\"run\":\"r1\",\"mounts\":[\"h2\"]},"
        "{\"id\":6,\"version\":39,\"run\":\"r1\",\"mounts\":[\"h1:/other\",\"h1:/wsync\"]}]}";
    (void)state;
    assert_int_equal(read_text("{}", "h1:/wsync", &o), 0);
    assert_true(o.release == 0 && o.phase == WS_DESIRED_NONE && o.n_wanted == 0);
    assert_int_equal(read_text(text, "h1:/wsync", &o), 0);
    assert_true(o.release == 9 && o.phase == WS_DESIRED_PREPARING && o.to.version == 42 &&
                o.released.version == 41 && o.released_by == 8 && o.n_wanted == 1 &&
                o.wanted[0].version.version == 39);
    assert_true(ws_desired_wants(&o, 6) && !ws_desired_wants(&o, 5));
    assert_int_equal(read_text(text, "h1:/wsync", &again), 0);
    assert_true(ws_desired_is_same(&o, &again));
    again.phase = WS_DESIRED_COMMITTED;
    assert_false(ws_desired_is_same(&o, &again));
    assert_int_equal(read_text(text, "h2:/x", &o), 0);
    assert_true(o.n_wanted == 1 && o.wanted[0].id == 5);
    assert_int_equal(read_text(text, "h22:/x", &o), 0);
    assert_int_equal(o.n_wanted, 0);
    assert_int_equal(read_text(text, NULL, &o), 0);
    assert_int_equal(o.n_wanted, 0);
}

static void test_kept(void **state)
{
    const struct ws_desired before = {
        .release = 9, .phase = WS_DESIRED_COMMITTED, .released_by = 9, .released = {42, "r"}};
    struct ws_desired o = {0}, none = {0}, next = {.released_by = 10, .released = {1, "q"}};
    (void)state;
    ws_desired_inherit(&o, &none);
    assert_true(ws_desired_is_same(&o, &none));
    ws_desired_inherit(&o, &before); /* a restarted agent */
    assert_true(o.inherited && o.release == 0 && o.phase == WS_DESIRED_NONE && o.released_by == 9 &&
                o.released.version == 42);
    none = (struct ws_desired){0};
    ws_desired_inherit(&none, &o); /* and another one */
    assert_true(none.inherited && ws_desired_is_same(&none, &o));
    ws_desired_inherit(&next, &o);
    assert_true(!next.inherited && next.released_by == 10 && next.released.version == 1);
}

static void test_bad(void **state)
{
    static const char *const bad[] = {
        "{\"release\":7}",
        "{\"release\":{\"id\":-1,\"phase\":\"preparing\",\"version\":1,\"run\":\"r\"}}",
        "{\"release\":{\"id\":1,\"phase\":\"eaten\",\"version\":1,\"run\":\"r\"}}",
        "{\"release\":{\"id\":1,\"phase\":\"\",\"version\":1,\"run\":\"r\"}}",
        "{\"release\":{\"id\":1,\"phase\":\"preparing\",\"version\":\"1\",\"run\":\"r\"}}",
        "{\"release\":{\"id\":1,\"phase\":\"preparing\",\"version\":1,\"run\":\"../x\"}}",
        "{\"release\":{\"id\":1,\"phase\":\"preparing\",\"version\":1}}",
        "{\"released\":{\"version\":1,\"run\":\"r\"}}",
        "{\"released\":{\"version\":1,\"run\":\"0123456789abcdef0123456789abcdef0\",\"by\":1}}",
        "{\"wanted\":[{\"id\":1,\"version\":1,\"mounts\":[\"h\"]}]}",
        "{\"wanted\":[{\"version\":1,\"run\":\"r\",\"mounts\":[\"h\"]}]}",
    };
    static const char *const odd[] = {"{\"wanted\":7}", "{\"wanted\":[7,{}]}",
                                      "{\"wanted\":[{\"mounts\":[\"\",7]}]}"};
    struct ws_desired o;
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (read_text(bad[i], "h:/m", &o) != -EPROTO)
            fail_msg("taken: %s", bad[i]);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        assert_int_equal(read_text(odd[i], "h:/m", &o), 0);
        assert_int_equal(o.n_wanted, 0);
    }
    char many[8192] = "{\"wanted\":[";
    for (int i = 0; i < 40; i++)
        strcat(many, "{\"id\":1,\"version\":1,\"run\":\"r\",\"mounts\":[\"h\"]},");
    strcpy(many + strlen(many) - 1, "]}");
    assert_int_equal(read_text(many, "h:/m", &o), 0);
    assert_int_equal(o.n_wanted, WS_MAX_WANTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_kept),
                                       cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests_name("orders", tests, NULL, NULL);
}
