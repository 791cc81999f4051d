/* The public client of engines, against scripted servers: which key is sent where, that keys stay hidden, and
 * how a request without an answer ends. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/bad_server.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a)  (sizeof(a) / sizeof((a)[0]))
#define TIMEOUT_MS 60000

static wsync_engine_client *open_client(unsigned port)
{
    char url[64];
    wsync_engine_client *c;
    wsync_engine e = {.url = url, .token = "token-of-readers", .admin_token = "token-of-\"admins"};
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    if (wsync_engine_client_open(&e, &c) < 0)
        fail_msg("%s", wsync_error());
    memset(url, 'x', sizeof(url) - 1); /* copied */
    return c;
}

static void expect(wsync_engine_client *c, const char *path, const char *json, int status, const char *text)
{
    char *got;
    int got_status;
    if (wsync_engine_request(c, path, json, TIMEOUT_MS, &got_status, &got) < 0)
        fail_msg("%s", wsync_error());
    assert_int_equal(got_status, status);
    assert_string_equal(got, text);
    free(got);
}

static void test_requests(void **state)
{
    static const struct bad_step steps[] = {
        {"{\"a\":\"b\"}", BAD_JSON, 200, "{\"took\":1}"},
        {"GET /asked?x=1", BAD_JSON, 200, "no JSON"},
        {"Bearer token-of-\"admins", BAD_JSON, 403, "{\"no\":\"token-of-\\\"admins\"}"},
        {"Bearer token-of-readers", BAD_JSON, 500, ""},
    };
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    wsync_engine_client *c = open_client(bad_server_port(s));

    (void)state;
    expect(c, "/told", "{\"a\": \"b\"}", 200, "{\"took\":1}");
    expect(c, "/asked?x=1", NULL, 200, "no JSON");
    expect(c, "/changed", "{}", 403, "{\"no\":\"*****************\"}");
    expect(c, "/other", NULL, 500, "");
    assert_int_equal(bad_server_connections(s), 4); /* each on its own */
    wsync_engine_client_close(c);
    bad_server_stop(s);
}

static void test_refused(void **state)
{
    static const struct {
        wsync_engine engine;
        int rc;
    } cases[] = {{{.url = NULL}, -EINVAL},
                 {{.url = "ftp://127.0.0.1:1"}, -EINVAL},
                 {{.url = "http://user:secret@127.0.0.1:1"}, -EINVAL},
                 {{.url = "http://127.0.0.1:1", .token = "secret-line\n"}, -EINVAL},
                 {{.url = "http://127.0.0.1:1", .admin_token = "secret\r\nX: y"}, -EINVAL},
                 {{.url = "https://127.0.0.1:1", .ca_file = "/nowhere"}, -ENOENT}};
    wsync_engine_client *c = (void *)1;
    char *text = (char *)1;
    int status;

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_int_equal(wsync_engine_client_open(&cases[i].engine, &c), cases[i].rc);
        assert_null(c);
        assert_null(strstr(wsync_error(), "secret"));
    }
    c = open_client(bad_server_dead_port());
    assert_int_equal(wsync_engine_request(c, "/x", NULL, TIMEOUT_MS, &status, &text), -EHOSTUNREACH);
    assert_null(text);
    assert_int_equal(wsync_engine_request(c, "x", NULL, TIMEOUT_MS, &status, &text), -EINVAL);
    assert_int_equal(wsync_engine_request(c, "/x", "[]", TIMEOUT_MS, &status, &text), -EINVAL);
    assert_int_equal(wsync_engine_request(c, "/x", "{", TIMEOUT_MS, &status, &text), -EINVAL);
    assert_int_equal(wsync_engine_request(c, "/x", "{}", 0, &status, &text), -EINVAL);
    wsync_engine_client_close(c);
    wsync_engine_client_close(NULL);
}

struct waiting {
    wsync_engine_client *client;
    int rc;
};

static void *ask(void *arg)
{
    struct waiting *w = arg;
    char *text;
    int status;
    w->rc = wsync_engine_request(w->client, "/hang", "{}", 10 * TIMEOUT_MS, &status, &text);
    free(text);
    return NULL;
}

static void test_ends(void **state)
{
    static const struct bad_step steps[] = {
        {"/hang", BAD_HANG, 0, NULL}, {"/close", BAD_CLOSE, 0, NULL}, {NULL, BAD_JSON, 200, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct waiting w = {.client = open_client(bad_server_port(s))};
    pthread_t thread;
    char *text;
    int status;

    (void)state;
    assert_int_equal(wsync_engine_request(w.client, "/hang", "{}", 50, &status, &text), -ETIMEDOUT);
    assert_int_equal(wsync_engine_request(w.client, "/close", "{}", TIMEOUT_MS, &status, &text), -ECONNRESET);
    wsync_engine_client_cancel(w.client); /* no request is in flight */
    assert_int_equal(pthread_create(&thread, NULL, ask, &w), 0);
    while (bad_server_connections(s) < 3)
        usleep(1000);
    wsync_engine_client_cancel(w.client);
    pthread_join(thread, NULL);
    assert_int_equal(w.rc, -ECANCELED);
    expect(w.client, "/later", "{}", 200, "{}");
    wsync_engine_client_close(w.client);
    bad_server_stop(s);
}

/* The thread that drives requests is the parent's alone. */
static void test_fork(void **state)
{
    static const struct bad_step steps[] = {{NULL, BAD_JSON, 200, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    wsync_engine_client *c = open_client(bad_server_port(s));
    int status = -1;
    char *text;
    pid_t child = fork();

    (void)state;
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* instead of waiting forever */
        int rc = wsync_engine_request(c, "/x", "{}", TIMEOUT_MS, &status, &text);
        bool opened = strstr(wsync_error(), "a fork: open one here");
        wsync_engine_client_cancel(c);
        wsync_engine_client_close(c);
        _exit(rc == -EPERM && !text && opened ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(bad_server_connections(s), 0);
    expect(c, "/x", "{}", 200, "{}"); /* does not affect the parent */
    wsync_engine_client_close(c);
    bad_server_stop(s);
}

/* A server that knows the key may repeat it as often as a reply can hold. */
static void test_many_keys(void **state)
{
    static const char key[] = "token-of-readers";
    const size_t n = 2000000, bytes = sizeof(key) - 1;
    char *said = malloc(n * bytes + 1), *blanked = malloc(n * bytes + 1);
    assert_true(said && blanked);
    for (size_t i = 0; i < n; i++)
        memcpy(said + i * bytes, key, bytes);
    memset(blanked, '*', n * bytes);
    said[n * bytes] = blanked[n * bytes] = 0;
    const struct bad_step steps[] = {{NULL, BAD_JSON, 200, said}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    wsync_engine_client *c = open_client(bad_server_port(s));

    (void)state;
    expect(c, "/x", NULL, 200, blanked);
    wsync_engine_client_close(c);
    bad_server_stop(s);
    free(said);
    free(blanked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests), cmocka_unit_test(test_refused),   cmocka_unit_test(test_ends),
        cmocka_unit_test(test_fork),     cmocka_unit_test(test_many_keys),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
