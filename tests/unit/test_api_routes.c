/* API routes: which role a request asks for, by its parts and not by how its path is written. */
#include "transports/protocol/api_routes.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct ws_api_route more[] = {
    WS_API_ROUTE("POST", "/v1/release", RELEASE),
    WS_API_ROUTE("POST", "/v1/releases/{id}/abort", RELEASE),
    WS_API_ROUTE("POST", "/v1/{model}/remove", ADMIN),
    {0},
};
static const struct ws_api_route *const tables[] = {more, NULL};

/* The role, or 0 where no table has the path. */
static unsigned role_of(const char *method, const char *path, struct ws_api_request *q)
{
    struct ws_error err;
    if (ws_api_parse(path, "", q, &err) < 0)
        return 0;
    const struct ws_api_route *r = ws_api_route_find(tables, method, path, q);
    return r ? r->role : 0;
}

static void a_request_has_one_route(void **state)
{
    static const struct {
        const char *method, *path;
        unsigned role;
    } table[] = {
        {"GET", "/v1/models", WS_ROLE_READ},
        {"HEAD", "/v1/models", WS_ROLE_READ},
        {"POST", "/v1/models", 0},
        {"GET", "/v1/actor/3/manifest", WS_ROLE_READ},
        {"GET", "/v1/actor/3/files/a.safetensors", WS_ROLE_READ},
        {"GET", "/v1/actor/events", WS_ROLE_READ},
        {"POST", "/v1/actor/3/manifest", 0},
        {"POST", "/v1/release", WS_ROLE_RELEASE},
        {"GET", "/v1/release", 0},
        {"POST", "/v1/releases/7/abort", WS_ROLE_RELEASE},
        {"POST", "/v1/releases/x/abort", 0},
        {"POST", "/v1/releases//abort", 0},
        {"POST", "/v1/releases/7/abort/more", 0},
        {"POST", "/v1/actor/remove", WS_ROLE_ADMIN},
        {"POST", "/v1/actor/3/remove", 0},
        {"POST", "/v1/%61ctor/remove", WS_ROLE_ADMIN},
        {"GET", "/v1/actor/3/unknown", 0},
        {"GET", "/v2/models", 0},
        {"GET", "", 0},
        {"DELETE", "/v1/models", 0},
    };
    struct ws_api_request q;
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const unsigned role = role_of(table[i].method, table[i].path, &q);
        if (role != table[i].role)
            fail_msg("%s %s: %s", table[i].method, table[i].path, ws_role_name(role));
    }
}

static void the_model_that_a_client_has_to_have(void **state)
{
    struct ws_api_request q;
    struct ws_error err;
    (void)state;
    assert_int_equal(ws_api_parse("/v1/%61ctor/3/manifest", "", &q, &err), 0);
    assert_string_equal(
        ws_api_route_model(ws_api_route_find(tables, "GET", "/v1/%61ctor/3/manifest", &q), &q), "actor");
    assert_int_equal(ws_api_parse("/v1/models", "", &q, &err), 0);
    assert_null(ws_api_route_model(ws_api_route_find(tables, "GET", "/v1/models", &q),
                                   &q)); /* it answers with what is theirs */
    assert_int_equal(ws_api_parse("/v1/release", "", &q, &err), 0);
    assert_string_equal(ws_api_route_model(ws_api_route_find(tables, "POST", "/v1/release", &q), &q),
                        ""); /* of all */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_has_one_route),
        cmocka_unit_test(the_model_that_a_client_has_to_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
