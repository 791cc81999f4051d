/* The hooks of an agent's features: which are called, in which order, and which are not. */
#include "backends/trainer/agent/core/features.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static char told[64]; /* one letter per call */

static void tell(char who)
{
    const size_t n = strlen(told);
    assert_true(n + 1 < sizeof(told));
    told[n] = who;
    told[n + 1] = '\0';
}

static void assert_told(const char *whom)
{
    assert_string_equal(told, whom);
    told[0] = '\0';
}

static int start_a(struct ws_agent *a, struct ws_error *err)
{
    (void)a;
    (void)err;
    tell('a');
    return 0;
}

static int start_b(struct ws_agent *a, struct ws_error *err)
{
    (void)a;
    tell('b');
    return ws_error_set(err, EAGAIN, "b does not start");
}

static void stop_a(struct ws_agent *a)
{
    (void)a;
    tell('A');
}

static void stop_c(struct ws_agent *a)
{
    (void)a;
    tell('C');
}

static bool was_announced(struct ws_agent_model *m, const struct ws_slot *s)
{
    (void)m;
    (void)s;
    tell('y');
    return true;
}

static bool is_new(struct ws_agent_model *m, const struct ws_slot *s)
{
    (void)m;
    (void)s;
    tell('n');
    return false;
}

static int makes_2(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                   struct ws_error *err)
{
    (void)a;
    (void)m;
    (void)run;
    tell('2');
    return version == 2 ? ws_error_set(err, EINPROGRESS, "it is being made") : 0;
}

static int makes_none(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                      struct ws_error *err)
{
    (void)a;
    (void)m;
    (void)version;
    (void)run;
    (void)err;
    tell('0');
    return 0;
}

static int route_x(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    (void)a;
    (void)reply;
    if (strcmp(r->path, "/x") != 0)
        return WS_ROUTE_OTHER;
    return ws_error_set(err, EOPNOTSUPP, "x is off");
}

static int route_any(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                     struct ws_error *err)
{
    (void)a;
    (void)err;
    if (strcmp(r->path, "/nobody's") == 0)
        return WS_ROUTE_OTHER;
    *reply = json_true();
    return 0;
}

static int handle(struct ws_rank_call *q, struct ws_error *err)
{
    (void)q;
    (void)err;
    return 0;
}

static const struct ws_rank_route of_b[] = {WS_RANK_ROUTE("b/open", PUBLISH, handle), {0}},
                                  of_c[] = {WS_RANK_ROUTE("c", PUBLISH, handle), {0}};
static const struct ws_agent_feature fa = {.start = start_a,
                                           .stop = stop_a,
                                           .written = was_announced,
                                           .want = makes_2},
                                     fb = {.start = start_b, .route = route_x, .rank_routes = of_b},
                                     fc = {.start = start_a,
                                           .stop = stop_c,
                                           .written = is_new,
                                           .want = makes_none,
                                           .route = route_any,
                                           .rank_routes = of_c};
static const struct ws_agent_feature *const list[] = {&fa, &fb, &fc, NULL};

/* Features after one that fails to start are not started; all are stopped, in the list's order. */
static void test_start_and_stop(void **state)
{
    struct ws_agent a = {.features = list};
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(ws_features_start(&a, &err), -EAGAIN);
    assert_string_equal(err.text, "b does not start");
    assert_told("ab");
    assert_int_equal(ws_features_serve(&a, &err), 0);
    ws_features_stop(&a);
    assert_told("AC");
    ws_features_end(&a);
    ws_features_announced(&a);
    assert_told("");
}

/* Every feature is told that a version is written, whatever one of them answers. */
static void test_written(void **state)
{
    static const struct ws_agent_feature *const one[] = {&fc, NULL};
    struct ws_agent a = {.features = list};
    (void)state;
    assert_true(ws_features_written(&a, NULL, NULL));
    assert_told("yn");
    a.features = one;
    assert_false(ws_features_written(&a, NULL, NULL));
    assert_told("n");
}

/* No feature is called after one that makes a version, or says why it cannot. */
static void test_want(void **state)
{
    struct ws_agent a = {.features = list};
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(ws_features_want(&a, NULL, 2, "r", &err), -EINPROGRESS);
    assert_told("2");
    assert_int_equal(ws_features_want(&a, NULL, 3, "r", &err), 0);
    assert_told("20");
}

/* The first feature that knows the route answers, also with EOPNOTSUPP; later ones are not called. */
static void test_routes(void **state)
{
    struct ws_agent a = {.features = list};
    struct ws_error err = {0};
    json_t *reply = NULL;
    const struct ws_agent_request x = {.path = "/x"}, y = {.path = "/y"}, none = {.path = "/nobody's"};
    (void)state;
    assert_int_equal(ws_features_route(&a, &x, &reply, &err), -EOPNOTSUPP);
    assert_null(reply);
    assert_int_equal(ws_features_route(&a, &y, &reply, &err), 0);
    assert_non_null(reply);
    assert_int_equal(ws_features_route(&a, &none, &reply, &err), WS_ROUTE_OTHER);
    assert_ptr_equal(ws_features_rank_route(&a, "b/open"), &of_b[0]);
    assert_ptr_equal(ws_features_rank_route(&a, "c"), &of_c[0]);
    assert_null(ws_features_rank_route(&a, "open"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_and_stop),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_want),
        cmocka_unit_test(test_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
