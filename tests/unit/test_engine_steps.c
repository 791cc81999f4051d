/* The public steps of an engine's client: against the reference engine, and against servers that refuse, lack
 * routes, are busy or do not answer. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/engine.h"
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
#define BUSY_MS    300 /* of what stays busy */

static wsync_engine_client *open_client(wsync_engine engine, unsigned port)
{
    char url[64];
    wsync_engine_client *c;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    engine.url = url;
    if (wsync_engine_client_open(&engine, &c) < 0)
        fail_msg("%s", wsync_error());
    return c;
}

static wsync_engine_state query(wsync_engine_client *c)
{
    wsync_engine_state s = {.struct_size = sizeof(s)};
    if (wsync_engine_query(c, TIMEOUT_MS, &s) < 0)
        fail_msg("%s", wsync_error());
    return s;
}

static void test_vllm(void **state)
{
    struct engine e;
    int acted = 0;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm", .refuse_resumes = 2});
    wsync_engine_client *c = open_client((wsync_engine){.kind = "vllm"}, ws_reference_port(e.reference));
    wsync_engine_state s = query(c);
    assert_string_equal(s.version, "default");
    assert_string_equal(s.path, engine_one); /* that it was started with */
    assert_int_equal(s.paused, 0);
    assert_int_equal(s.sleeping, 0);
    assert_int_equal(wsync_engine_pause(c, TIMEOUT_MS, &acted), 0);
    assert_int_equal(acted, 1);
    s = query(c);
    assert_int_equal(s.paused, 1);
    assert_int_equal(s.sleeping, 0);
    assert_int_equal(wsync_engine_set_version(c, "7@r", TIMEOUT_MS, &acted), 0);
    assert_int_equal(wsync_engine_flush(c, TIMEOUT_MS), 0);
    assert_int_equal(wsync_engine_resume(c, TIMEOUT_MS, &acted), 0); /* the third one */
    s = query(c);
    assert_string_equal(s.version, "7@r");
    assert_int_equal(s.paused, 0);
    wsync_engine_client_close(c);
    engine_stop(&e);
}

static void test_sglang(void **state)
{
    struct engine e;
    int acted = 0;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "sglang"});
    wsync_engine_client *c =
        open_client((wsync_engine){.kind = "sglang", .cache = "external"}, ws_reference_port(e.reference));
    wsync_engine_state s = query(c);
    assert_string_equal(s.path, engine_one);
    assert_int_equal(s.paused, -1);
    assert_int_equal(s.sleeping, -1);
    assert_int_equal(wsync_engine_pause(c, TIMEOUT_MS, NULL), 0);
    assert_int_equal(wsync_engine_set_version(c, "7@r", TIMEOUT_MS, NULL), 0);
    assert_int_equal(wsync_engine_flush(c, TIMEOUT_MS), 0);
    assert_int_equal(wsync_engine_resume(c, TIMEOUT_MS, &acted), 0);
    assert_int_equal(acted, 1);
    assert_string_equal(query(c).version, "7@r");
    wsync_engine_client_close(c);
    engine_stop(&e);
}

/* What a server refuses before it looks at its state changes nothing; whatever else it answers, it may have. */
static void test_acted(void **state)
{
    static const struct {
        struct bad_step step;
        int rc, acted;
    } cases[] = {
        {{NULL, BAD_JSON, 200, "{\"status\":\"paused\"}"}, 0, 1},
        {{NULL, BAD_JSON, 200, "{}"}, -EREMOTEIO, 1},
        {{NULL, BAD_JSON, 200, "<html>"}, -EPROTO, 1},
        {{NULL, BAD_JSON, 400, "{\"error\":\"mode\"}"}, -EREMOTEIO, 0},
        {{NULL, BAD_JSON, 401, "{}"}, -EACCES, 0},
        {{NULL, BAD_JSON, 403, "{}"}, -EACCES, 0},
        {{NULL, BAD_JSON, 404, "{}"}, -EPROTO, 0},
        {{NULL, BAD_JSON, 405, "{}"}, -EPROTO, 0},
        {{NULL, BAD_JSON, 409, "{}"}, -EREMOTEIO, 1},
        {{NULL, BAD_JSON, 413, "<html>"}, -EPROTO, 0},
        {{NULL, BAD_JSON, 422, "{}"}, -EREMOTEIO, 0},
        {{NULL, BAD_JSON, 500, "{}"}, -EREMOTEIO, 1},
        {{NULL, BAD_JSON, 502, "{}"}, -EREMOTEIO, 1},
        {{NULL, BAD_CLOSE, 0, NULL}, -ECONNRESET, 1},
        {{NULL, BAD_HANG, 0, NULL}, -ETIMEDOUT, 1},
    };
    int acted;

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct bad_server *s = bad_server_start(&cases[i].step, 1);
        wsync_engine_client *c = open_client((wsync_engine){.kind = "vllm"}, bad_server_port(s));
        acted = -1;
        const int rc = wsync_engine_pause(c, cases[i].step.kind == BAD_HANG ? BUSY_MS : TIMEOUT_MS, &acted);
        if (rc != cases[i].rc || acted != cases[i].acted)
            fail_msg("answer %zu: %d, acted %d: %s", i, rc, acted, wsync_error());
        wsync_engine_client_close(c);
        bad_server_stop(s);
    }
    wsync_engine_client *c = open_client((wsync_engine){.kind = "vllm"}, bad_server_dead_port());
    assert_int_equal(wsync_engine_pause(c, TIMEOUT_MS, &acted), -EHOSTUNREACH);
    assert_int_equal(acted, 0);
    wsync_engine_client_close(c);
}

/* Any of its requests counts: an SGLang that refuses one mode is asked for another. */
static void test_acted_in_a_second_request(void **state)
{
    static const struct bad_step steps[] = {{"{\"mode\":\"abort\"}", BAD_JSON, 500, "{}"},
                                            {"/pause_generation", BAD_JSON, 400, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    wsync_engine_client *c = open_client((wsync_engine){.kind = "sglang"}, bad_server_port(s));
    int acted = -1;

    (void)state;
    assert_int_equal(wsync_engine_pause(c, TIMEOUT_MS, &acted), -EREMOTEIO);
    assert_int_equal(acted, 1);
    wsync_engine_client_close(c);
    c = open_client((wsync_engine){.kind = "sglang", .pause_mode = "retract"}, bad_server_port(s));
    assert_int_equal(wsync_engine_pause(c, TIMEOUT_MS, &acted), -EREMOTEIO);
    assert_int_equal(acted, 0);
    wsync_engine_client_close(c);
    bad_server_stop(s);
}

/* An SGLang has resumed when it reports that it takes requests; an older one does not report it. */
static void test_resume_sglang(void **state)
{
    static const struct {
        unsigned ready;
        int rc;
        bool again;
    } cases[] = {{503, -EREMOTEIO, true}, {200, 0, false}, {404, 0, false}, {500, -EREMOTEIO, false}};

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step steps[] = {{"POST /continue_generation", BAD_JSON, 200, "{\"status\":\"ok\"}"},
                                         {"GET /ready", BAD_JSON, cases[i].ready, ""}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        wsync_engine_client *c = open_client((wsync_engine){.kind = "sglang"}, bad_server_port(s));
        const int rc = wsync_engine_resume(c, cases[i].again ? BUSY_MS : TIMEOUT_MS, NULL);
        if (rc != cases[i].rc || (bad_server_hits(s, 0) > 1) != cases[i].again)
            fail_msg("%u: %d after %u: %s", cases[i].ready, rc, bad_server_hits(s, 0), wsync_error());
        wsync_engine_client_close(c);
        bad_server_stop(s);
    }
}

static void test_flush(void **state)
{
    static const struct {
        const char *kind, *cache, *route;
        unsigned status;
        const char *reply;
        int rc;
        bool again;
    } cases[] = {
        {"sglang", NULL, "POST /flush_cache", 200, "Cache flushed.", 0, false},
        {"sglang", NULL, "POST /flush_cache", 400, "pending", -EREMOTEIO, true},
        {"sglang", NULL, "POST /flush_cache", 500, "{}", -EREMOTEIO, false},
        {"sglang", "keep", "POST /flush_cache", 500, "{}", 0, false},
        {"sglang", "external", "POST /flush_cache", 200, "", -EPROTO, false}, /* it has no such store */
        {"vllm", NULL, "POST /reset_prefix_cache", 200, "{\"success\":true}", 0, false},
        {"vllm", NULL, "POST /reset_prefix_cache", 200, "{\"success\":false}", -EREMOTEIO, true},
        {"vllm", NULL, "POST /reset_prefix_cache", 404, "{}", 0, false}, /* its pause has emptied it */
        {"vllm", "external", "POST /reset_prefix_cache", 404, "{}", -EPROTO, false},
        {"vllm", NULL, "POST /reset_encoder_cache", 500, "{}", -EREMOTEIO, false},
        {"vllm", "keep", "POST /reset_encoder_cache", 500, "{}", -EREMOTEIO, false},
        {"vllm", NULL, "POST /reset_mm_cache", 500, "{}", 0, false}, /* left alone */
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step step = {cases[i].route, BAD_JSON, cases[i].status, cases[i].reply};
        struct bad_server *s = bad_server_start(&step, 1);
        wsync_engine_client *c =
            open_client((wsync_engine){.kind = cases[i].kind, .cache = cases[i].cache}, bad_server_port(s));
        const int rc = wsync_engine_flush(c, cases[i].again ? BUSY_MS : TIMEOUT_MS);
        if (rc != cases[i].rc || (bad_server_hits(s, 0) > 1) != cases[i].again)
            fail_msg("%zu: %d after %u: %s", i, rc, bad_server_hits(s, 0), wsync_error());
        wsync_engine_client_close(c);
        bad_server_stop(s);
    }
}

/* A release whose version only a load changes. */
static void test_no_version(void **state)
{
    struct bad_server *s = bad_server_start(NULL, 0);
    wsync_engine_client *c = open_client((wsync_engine){.kind = "sglang"}, bad_server_port(s));
    int acted = -1;

    (void)state;
    assert_int_equal(wsync_engine_set_version(c, "2", TIMEOUT_MS, &acted), -EPROTO);
    assert_int_equal(acted, 0);
    wsync_engine_client_close(c);
    bad_server_stop(s);
}

static void test_query_fits_the_struct(void **state)
{
    static const struct bad_step steps[] = {
        {"GET /model_info", BAD_JSON, 200, INFO_OF("/wsync/actor/2", "2@r")}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    wsync_engine_client *c = open_client((wsync_engine){.kind = "sglang"}, bad_server_port(s));
    wsync_engine_state older = {.struct_size = offsetof(wsync_engine_state, path)}, none = {0};
    struct {
        wsync_engine_state known;
        int more;
    } newer = {.known.struct_size = sizeof(newer)};

    (void)state;
    assert_int_equal(wsync_engine_query(c, TIMEOUT_MS, &older), 0);
    assert_string_equal(older.version, "2@r");
    assert_int_equal(older.struct_size, offsetof(wsync_engine_state, path));
    assert_string_equal(older.path, "");
    assert_int_equal(wsync_engine_query(c, TIMEOUT_MS, &newer.known), 0);
    assert_string_equal(newer.known.path, "/wsync/actor/2");
    assert_int_equal(newer.known.struct_size, sizeof(newer));
    assert_int_equal(wsync_engine_query(c, TIMEOUT_MS, &none), -EINVAL);
    wsync_engine_client_close(c);
    bad_server_stop(s);
}

/* Before anything is sent. */
static void test_invalid(void **state)
{
    static const wsync_engine engines[] = {{.kind = NULL},
                                           {.kind = "remote"},
                                           {.kind = "vllm", .pause_mode = "retract"},
                                           {.kind = "sglang", .pause_mode = "keep"},
                                           {.kind = "vllm", .cache = "none"}};
    static const struct bad_step step = {NULL, BAD_JSON, 200, "{}"};
    struct bad_server *s = bad_server_start(&step, 1);
    wsync_engine_client *c;
    int acted;

    (void)state;
    for (size_t i = 0; i < LENGTH(engines); i++) {
        wsync_engine_state now = {.struct_size = sizeof(now)};
        c = open_client(engines[i], bad_server_port(s));
        acted = -1;
        assert_int_equal(wsync_engine_pause(c, TIMEOUT_MS, &acted), -EINVAL);
        assert_int_equal(acted, 0);
        assert_int_equal(wsync_engine_resume(c, TIMEOUT_MS, NULL), -EINVAL);
        assert_int_equal(wsync_engine_flush(c, TIMEOUT_MS), -EINVAL);
        assert_int_equal(wsync_engine_set_version(c, "2", TIMEOUT_MS, NULL), -EINVAL);
        assert_int_equal(wsync_engine_query(c, TIMEOUT_MS, &now), -EINVAL);
        wsync_engine_client_close(c);
    }
    c = open_client((wsync_engine){.kind = "vllm"}, bad_server_port(s));
    assert_int_equal(wsync_engine_pause(c, 0, NULL), -EINVAL);
    assert_int_equal(wsync_engine_set_version(c, NULL, TIMEOUT_MS, NULL), -EINVAL);
    wsync_engine_client_close(c);
    assert_int_equal(bad_server_connections(s), 0);
    bad_server_stop(s);
}

struct waiting {
    wsync_engine_client *client;
    int rc, acted;
};

static void *pause_it(void *arg)
{
    struct waiting *w = arg;
    w->rc = wsync_engine_pause(w->client, 10 * TIMEOUT_MS, &w->acted);
    return NULL;
}

static void test_cancel(void **state)
{
    static const struct bad_step step = {NULL, BAD_HANG, 0, NULL};
    struct bad_server *s = bad_server_start(&step, 1);
    struct waiting w = {.client = open_client((wsync_engine){.kind = "vllm"}, bad_server_port(s))};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, pause_it, &w), 0);
    while (bad_server_hits(s, 0) < 1)
        usleep(1000);
    wsync_engine_client_cancel(w.client);
    pthread_join(thread, NULL);
    assert_int_equal(w.rc, -ECANCELED);
    assert_int_equal(w.acted, 1);
    wsync_engine_client_close(w.client);
    bad_server_stop(s);
}

static void test_fork(void **state)
{
    wsync_engine_client *c = open_client((wsync_engine){.kind = "vllm"}, bad_server_dead_port());
    int status = -1;
    pid_t child = fork();

    (void)state;
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* instead of waiting for ever */
        _exit(wsync_engine_pause(c, TIMEOUT_MS, NULL) == -EPERM ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    wsync_engine_client_close(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_vllm),
        TEST(test_sglang),
        cmocka_unit_test(test_acted),
        cmocka_unit_test(test_acted_in_a_second_request),
        cmocka_unit_test(test_resume_sglang),
        cmocka_unit_test(test_flush),
        cmocka_unit_test(test_no_version),
        cmocka_unit_test(test_query_fits_the_struct),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_fork),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("engine steps", tests, engine_make_folders, engine_remove_folders);
}
