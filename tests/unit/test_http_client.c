/* The HTTP client: one thread, reused connections, many callers, cancelled and timed-out calls, and which
 * addresses it accepts. */
#include "tests/fixtures/bad_server.h"
#include "transports/base/workers.h"
#include "transports/http/client.h"
#include "transports/http/url.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define OK        "{\"weight_version\":\"1\"}"

static struct ws_error err;
static struct ws_http_client *http; /* one per test: its thread must not exist across a fork */

static int make_http(void **state)
{
    (void)state;
    return ws_http_client_new(&http, &err);
}

static int free_http(void **state)
{
    (void)state;
    ws_http_client_free(http);
    return 0;
}

static int get(unsigned port, struct ws_http_request r)
{
    char url[64];
    struct ws_http_reply reply;
    struct ws_error own = {0};

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    r.url = url;
    r.path = r.path ? r.path : "/model_info";
    r.timeout_ms = r.timeout_ms ? r.timeout_ms : 10000;
    int rc = ws_http_call(http, &r, &reply, &own);
    if (rc == 0) {
        rc = (int)reply.status;
        ws_http_reply_release(&reply);
    }
    return rc;
}

static void test_connection_is_kept(void **state)
{
    static const struct bad_step step = {NULL, BAD_JSON, 200, OK};
    struct bad_server *s = bad_server_start(&step, 1);
    unsigned port = bad_server_port(s);

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(get(port, (struct ws_http_request){0}), 200);
    assert_int_equal(bad_server_connections(s), 1);
    for (unsigned i = 0; i < 3; i++) /* a new connection, not kept and not in place of the kept one */
        assert_int_equal(get(port, (struct ws_http_request){.fresh = true}), 200);
    assert_int_equal(bad_server_connections(s), 4);
    assert_int_equal(get(port, (struct ws_http_request){0}), 200);
    assert_int_equal(bad_server_connections(s), 4);
    assert_int_equal(bad_server_hits(s, 0), 9);
    bad_server_stop(s);
}

static void *cancel_soon(void *cancel)
{
    usleep(50000);
    atomic_store((atomic_bool *)cancel, true);
    return NULL;
}

struct caller {
    unsigned port;
    struct ws_http_request request;
    int results[20];
};

static void call_often(void *arg, size_t i)
{
    struct caller *c = (struct caller *)arg + i;
    for (size_t k = 0; k < LENGTH(c->results); k++)
        c->results[k] = get(c->port, c->request);
}

static void test_many_callers(void **state)
{
    static const struct bad_step steps[] = {
        {"/hang", BAD_HANG, 0, NULL}, {"/close", BAD_CLOSE, 0, NULL}, {NULL, BAD_JSON, 200, OK}};
    static struct caller callers[40];
    struct bad_server *servers[4];
    const unsigned dead = bad_server_dead_port();

    (void)state;
    for (size_t i = 0; i < LENGTH(servers); i++)
        servers[i] = bad_server_start(steps, LENGTH(steps));
    for (size_t i = 0; i < LENGTH(callers); i++) {
        callers[i] = (struct caller){.port = bad_server_port(servers[i % 4])};
        callers[i].request.fresh = i % 5 == 0;
        if (i == 7)
            callers[i].port = dead;
        if (i == 8)
            callers[i].request.path = "/close";
        if (i == 9)
            callers[i].request = (struct ws_http_request){.path = "/hang", .timeout_ms = 200};
    }
    ws_workers_run_at_once(call_often, callers, LENGTH(callers));
    for (size_t i = 0; i < LENGTH(callers); i++)
        for (size_t k = 0; k < LENGTH(callers[i].results); k++)
            assert_int_equal(callers[i].results[k], i == 7   ? -EHOSTUNREACH
                                                    : i == 8 ? -ECONNRESET
                                                    : i == 9 ? -ETIMEDOUT
                                                             : 200);
    for (size_t i = 0; i < LENGTH(servers); i++)
        bad_server_stop(servers[i]);
}

static void call_or_cancel(void *arg, size_t i)
{
    struct caller *c = (struct caller *)arg + i;
    if (c->port)
        c->results[0] = get(c->port, c->request);
    else
        cancel_soon((void *)(uintptr_t)c->request.cancel[0]);
}

static void test_cancel_one_of_many(void **state)
{
    static const struct bad_step steps[] = {{"/hang", BAD_HANG, 0, NULL}, {NULL, BAD_JSON, 200, OK}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    atomic_bool cancel = false, other = false;
    const atomic_bool *flags[] = {NULL, &cancel}, *others[] = {&other, NULL};
    struct caller callers[10] = {0};
    struct timespec start, now;

    (void)state;
    for (size_t i = 0; i < 9; i++)
        callers[i] = (struct caller){
            bad_server_port(s), {.path = "/hang", .timeout_ms = 1000, .n_cancel = 2, .cancel = others}, {0}};
    callers[4].request.cancel = flags;
    callers[4].request.timeout_ms = 60000;
    callers[9].request.cancel = &flags[1];
    clock_gettime(CLOCK_MONOTONIC, &start);
    ws_workers_run_at_once(call_or_cancel, callers, LENGTH(callers));
    clock_gettime(CLOCK_MONOTONIC, &now);
    assert_true(now.tv_sec - start.tv_sec < 30);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(callers[i].results[0], i == 4 ? -ECANCELED : -ETIMEDOUT);
    assert_int_equal(get(bad_server_port(s), callers[4].request), -ECANCELED); /* never begins */
    assert_int_equal(bad_server_hits(s, 0), 9);
    assert_int_equal(get(bad_server_port(s), (struct ws_http_request){0}), 200);
    bad_server_stop(s);
}

static void test_client_without_calls(void **state)
{
    struct ws_http_client *other;

    (void)state;
    assert_int_equal(ws_http_client_new(&other, &err), 0);
    ws_http_client_free(other);
    ws_http_client_free(NULL);
    assert_int_equal(ws_http_client_new(&other, &err), 0);
    usleep(20000); /* asleep */
    ws_http_client_free(other);
}

static void test_urls(void **state)
{
    static const char *const good[] = {"http://127.0.0.1:30000", "https://engine.example", "http://[::1]:1/",
                                       "http://gateway.example/engine-1"};
    static const char *const bad[] = {
        "",        "127.0.0.1:30000",   "ftp://host/",      "file:///etc/passwd",
        "http://", "http://host:99999", "http://host/?q=1", "http://host/#x"};
    static const char *const secret[] = {"http://user:pa55@host:1", "http://pa55@host", "ftp://u:pa55@host/",
                                         "http://u:pa55@host/?q=pa55"};

    (void)state;
    for (size_t i = 0; i < LENGTH(good); i++)
        assert_int_equal(ws_http_check_url("an engine", good[i], &err), 0);
    for (size_t i = 0; i < LENGTH(bad); i++) {
        if (ws_http_check_url("an engine", bad[i], &err) != -EINVAL)
            fail_msg("'%s' was taken", bad[i]);
    }
    for (size_t i = 0; i < LENGTH(secret); i++) {
        assert_int_equal(ws_http_check_url("an engine", secret[i], &err), -EINVAL);
        assert_null(strstr(err.text, "pa55"));
    }
    assert_true(ws_http_is_same("http://host:80", "HTTP://host/"));
    assert_true(ws_http_is_same("http://host:1/engine-1", "http://host:1/engine-1/"));
    assert_false(ws_http_is_same("http://host:1", "https://host:1"));
    assert_false(ws_http_is_same("http://host:1/engine-1", "http://host:1/engine-2"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_http, free_http)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_connection_is_kept),   TEST(test_many_callers), TEST(test_cancel_one_of_many),
        TEST(test_client_without_calls), TEST(test_urls),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("http_client", tests, NULL, NULL);
}
