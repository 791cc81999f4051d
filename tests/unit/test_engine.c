/* The table of engines, and what every kind must do: servers that are absent, hang or answer nonsense, keys
 * that must stay hidden, facts that an engine cannot report for a moment, and the templates of kind
 * remote. */
#include "backends/engine/call.h"
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/engine.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;
static struct ws_engine_facts facts;

static void test_find(void **state)
{
    const char *const *kinds = ws_engine_kinds();

    (void)state;
    assert_ptr_equal(ws_engine_find("sglang"), &ws_engine_sglang);
    assert_null(ws_engine_find("sglang "));
    assert_null(ws_engine_find(""));
    for (size_t i = 0; kinds[i]; i++)
        assert_string_equal(ws_engine_find(kinds[i])->kind, kinds[i]);
}

static void test_no_server(void **state)
{
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_dead_port());
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EHOSTUNREACH);
    assert_non_null(strstr(err.text, e.url));
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EHOSTUNREACH);
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EHOSTUNREACH);
    assert_int_equal(ws_engine_sglang.resume(&e.target, &err), -EHOSTUNREACH);
}

#define OPEN_8  "[[[[[[[["
#define CLOSE_8 "]]]]]]]]"
#define DEEP                                                                                                 \
    OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 CLOSE_8 CLOSE_8 CLOSE_8 CLOSE_8 CLOSE_8 CLOSE_8  \
        CLOSE_8 CLOSE_8

/* One malformed answer to every request, and the results of probe and load. */
static const struct odd {
    struct bad_step step;
    int probe, load;
} odd[] = {
    {{NULL, BAD_CLOSE, 0, NULL}, -ECONNRESET, -ECONNRESET},
    {{NULL, BAD_FLOOD, 0, NULL}, -EPROTO, -EPROTO},
    {{NULL, BAD_REPLY, 0, "220 mail.example ESMTP\r\n"}, -EPROTO, -EPROTO},
    {{NULL, BAD_REPLY, 0, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"success\":true"},
     -ECONNRESET,
     -ECONNRESET},
    {{NULL, BAD_REPLY, 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
     -ECONNRESET,
     -ECONNRESET},
    {{NULL, BAD_REPLY, 0, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"},
     -EPROTO,
     -EPROTO},
    {{NULL, BAD_JSON, 200, ""}, -EPROTO, -EPROTO},
    {{NULL, BAD_JSON, 200, "[]"}, -EPROTO, -EPROTO},
    {{NULL, BAD_JSON, 200,
      "{\"model_path\":\"/\",\"weight_version\":\"1\",\"a\":\"]]]]\",\"deep\":" DEEP "}"},
     -EPROTO,
     -EPROTO},
    {{NULL, BAD_JSON, 200, "<html>hello</html>"}, -EPROTO, -EPROTO},
    {{NULL, BAD_JSON, 200, "{\"success\":true}"}, -EPROTO, -EPROTO},
    {{NULL, BAD_JSON, 200, "{\"success\":true,\"success\":false}"}, -EPROTO, -EPROTO},
    {{NULL, BAD_JSON, 200, "{\"success\":1,\"model_path\":5}"}, -EPROTO, -EREMOTEIO},
    {{NULL, BAD_JSON, 200, "{\"success\":false,\"message\":\"no\",\"model_path\":\"/m\"}"},
     -EPROTO,
     -EREMOTEIO},
    {{NULL, BAD_JSON, 200, "{\"success\":true,\"model_path\":\"/other\"}"}, -EPROTO, -EREMOTEIO},
    {{NULL, BAD_JSON, 400, "{\"success\":false,\"message\":\"evil\\nforged line\\u001b[31m\"}"},
     -EPROTO,
     -EREMOTEIO},
    {{NULL, BAD_JSON, 400, "{\"success\":true}"}, -EPROTO, -EREMOTEIO},
    {{NULL, BAD_JSON, 401, "{}"}, -EACCES, -EACCES},
    {{NULL, BAD_JSON, 403, "{}"}, -EACCES, -EACCES},
    {{NULL, BAD_JSON, 404, "{}"}, -EPROTO, -EPROTO},
    {{NULL, BAD_JSON, 500, "{}"}, -EREMOTEIO, -EREMOTEIO},
    {{NULL, BAD_JSON, 503, "Service Unavailable"}, -EREMOTEIO, -EREMOTEIO},
};

static void test_malformed_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(odd); i++) {
        struct bad_server *s = bad_server_start(&odd[i].step, 1);
        struct ws_engine_serving now;
        struct engine e;
        int probe, load;
        engine_at(&e, bad_server_port(s));
        err = (struct ws_error){0};
        probe = ws_engine_sglang.probe(&e.target, &facts, &now, &err);
        assert_true(probe == 0 || err.text[0]);
        load = ws_engine_sglang.load(&e.target, engine_two, "2", &err);
        assert_null(strchr(err.text, '\n'));
        assert_null(strchr(err.text, '\033'));
        if (probe != odd[i].probe || load != odd[i].load)
            fail_msg("answer %zu: probe %d, load %d, %s", i, probe, load, err.text);
        assert_int_not_equal(ws_engine_sglang.pause(&e.target, &err), 0);
        bad_server_stop(s);
    }
}

static void test_hanging(void **state)
{
    static const struct bad_step step = {NULL, BAD_HANG, 0, NULL};
    struct bad_server *s = bad_server_start(&step, 1);
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.timeout_ms = 200;
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -ETIMEDOUT);
    bad_server_stop(s);
}

/* On a busy machine the time can be over before there is a connection. */
static void assert_ran_out(int rc)
{
    assert_true(rc == -ETIMEDOUT || rc == -EHOSTUNREACH);
}

/* However long a single call may take, it ends when the time of the whole operation is over. */
static void test_hanging_at_the_end(void **state)
{
    static const struct bad_step step = {NULL, BAD_HANG, 0, NULL};
    struct bad_server *s = bad_server_start(&step, 1);
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.timeout_ms = 86400000; /* a short call has a tenth of it */
    assert_int_equal(ws_call_within_ms(&e.target, 86400000), 86400000);
    e.target.end_ns = ws_clock_ns() + 200 * WS_MS_NS;
    assert_ran_out(ws_engine_sglang.load(&e.target, engine_two, "2", &err));
    assert_ran_out(ws_engine_sglang.serving(&e.target, &now, &err));
    assert_ran_out(ws_engine_vllm.pause(&e.target, &err));
    assert_int_equal(ws_call_within_ms(&e.target, 86400000), 1);
    bad_server_stop(s);
}

static void test_long_fields(void **state)
{
    char *reply = malloc(6000);
    struct bad_step step = {NULL, BAD_JSON, 200, reply};
    struct ws_engine_serving now;
    struct bad_server *s;
    struct engine e;

    (void)state;
    snprintf(reply, 6000, "{\"model_path\":\"%05000d\",\"weight_version\":\"1\"}", 0);
    s = bad_server_start(&step, 1);
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    bad_server_stop(s);
    snprintf(reply, 6000, "{\"model_path\":\"/m\",\"weight_version\":\"%0100d\"}", 0);
    s = bad_server_start(&step, 1);
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    bad_server_stop(s);
    free(reply);
}

static void test_ca_file(void **state)
{
    static const struct bad_step step = {NULL, BAD_JSON, 200, INFO_OF("/m", "1")};
    struct bad_server *s = bad_server_start(&step, 1);
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    snprintf(e.url, sizeof(e.url), "https://127.0.0.1:%u", bad_server_port(s));
    e.target.ca_file = "/nonexistent/ca.pem";
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EACCES);
    e.target.ca_file = "/etc/passwd"; /* not certificates: the error shows which user opens it */
    e.target.ca_below = "/usr";
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EACCES);
    assert_non_null(strstr(err.text, "is no file below /usr"));
    e.target.ca_below = "/etc";
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EACCES);
    assert_non_null(strstr(err.text, "is not trusted"));
    bad_server_stop(s);
}

/* A fact that an engine cannot report for a moment, as behind a gateway, is neither a missing route nor a
 * default setting. */
static void test_unreported_facts(void **state)
{
    static const struct bad_step sglang[] = {{"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                             {"GET /update_weights_from_disk", BAD_JSON, 405, "{}"},
                                             {"GET /server_info", BAD_JSON, 503, "{}"}},
                                 vllm[] = {{"GET /version", BAD_JSON, 200, "{\"version\":\"0.30\"}"},
                                           {"GET /collective_rpc", BAD_JSON, 405, "{}"},
                                           {"GET /is_paused", BAD_JSON, 200, "{\"is_paused\":false}"},
                                           {"GET /reset_prefix_cache", BAD_JSON, 503, "{}"}},
                                 busy[] = {{"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                           {"GET /update_weights_from_disk", BAD_JSON, 502, "{}"}},
                                 paused[] = {{"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                             {"GET /update_weights_from_disk", BAD_JSON, 405, "{}"},
                                             {"GET /ready", BAD_JSON, 502, "{}"}};
    const struct {
        const struct ws_engine_ops *ops;
        const struct bad_step *steps;
        size_t n;
    } cases[] = {{&ws_engine_sglang, sglang, LENGTH(sglang)},
                 {&ws_engine_vllm, vllm, LENGTH(vllm)},
                 {&ws_engine_sglang, busy, LENGTH(busy)},
                 {&ws_engine_sglang, paused, LENGTH(paused)}};

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct bad_server *s = bad_server_start(cases[i].steps, cases[i].n);
        struct ws_engine_serving now;
        struct engine e;
        engine_at(&e, bad_server_port(s));
        assert_int_equal(cases[i].ops->probe(&e.target, &facts, &now, &err), -EREMOTEIO);
        assert_int_equal(bad_server_hits(s, cases[i].n - 1), 1);
        bad_server_stop(s);
    }
}

/* Each kind recognizes the other's server, and the error says what to do. */
static void test_wrong_kind(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm"});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    engine_stop(&e);
    engine_start(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_vllm.probe(&e.target, &facts, &now, &err), -EPROTO);
    engine_stop(&e);
}

/* A flush succeeded if the reply says so, or has no body, as in older releases. */
static void test_flush_answers(void **state)
{
    static const struct {
        const char *body;
        int vllm, remote;
    } cases[] = {{"{\"success\": true}", 0, 0},
                 {"", 0, 0},
                 {"{\"success\": false}", -EREMOTEIO, -EREMOTEIO},
                 {"{\"success\": \"no\"}", -EREMOTEIO, 0},
                 {"<html>", -EREMOTEIO, 0}};
    const struct ws_engine_templates templates = {.flush = "POST:/reset_prefix_cache"};
    char url[64];

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step steps[] = {{"POST /reset_prefix_cache", BAD_JSON, 200, cases[i].body}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct ws_engine_target t = {
            .http = engine_http, .url = url, .timeout_ms = 5000, .short_ms = 300, .templates = &templates};
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(s));
        assert_int_equal(ws_engine_vllm.flush(&t, &err), cases[i].vllm);
        assert_int_equal(ws_engine_remote.flush(&t, &err), cases[i].remote);
        bad_server_stop(s);
    }
}

/* An engine has two keys; a reply may repeat the one that was not sent. */
static void test_other_key_is_not_shown(void **state)
{
    static const struct bad_step steps[] = {
        {"POST", BAD_JSON, 500, "{\"error\":\"not s3cret-of-all nor s3cret-of-admin\"}"}};
    const struct ws_engine_templates templates = {.resume = "POST:/resume"};
    const struct ws_engine_ops *const kinds[] = {&ws_engine_sglang, &ws_engine_vllm, &ws_engine_remote};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.token = "s3cret-of-all";
    e.target.admin_token = "s3cret-of-admin";
    e.target.templates = &templates;
    for (size_t i = 0; i < LENGTH(kinds); i++) {
        assert_int_equal(kinds[i]->resume(&e.target, &err), -EREMOTEIO);
        assert_non_null(strstr(err.text, "nor"));
        assert_null(strstr(err.text, "s3cret"));
    }
    bad_server_stop(s);
}

static void test_remote(void **state)
{
    struct engine e;
    struct ws_engine_serving now;
    const struct ws_engine_ops *ops = &ws_engine_remote;
    struct ws_engine_templates t = {
        .pause = "POST:/pause_generation:{\"mode\":\"retract\"}",
        .load = "POST:/update_weights_from_disk:{\"model_path\":\"{path}\",\"weight_version\":\"{version}\"}",
        .resume = "POST:/continue_generation:{\"torch_empty_cache\":false}",
        .serving = "GET:/model_info:.weight_version"};

    (void)state;
    engine_start(&e, (struct ws_reference_options){.refuse = "7"});
    e.target.templates = &t;
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.version, "default");
    assert_int_equal(ops->pause(&e.target, &err), 0);
    assert_int_equal(ops->load(&e.target, engine_two, "a \"2\"", &err), 0); /* quoted as JSON wants it */
    assert_int_equal(ops->resume(&e.target, &err), 0);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "a \"2\"");
    engine_assert_holds(&e.target, 2);
    assert_int_equal(ops->load(&e.target, engine_one, "7", &err), -EREMOTEIO);
    t.load = "POST:/flush_cache"; /* answers 200 and loads nothing: does not count as loaded */
    assert_int_equal(ops->load(&e.target, engine_one, "8", &err), -EREMOTEIO);
    t.load = "PUT:/x";
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), -EINVAL);
    t.load = NULL;
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), -EINVAL);
    t.load = "POST:/x:{no JSON}";
    assert_int_equal(ops->load(&e.target, engine_one, "9", &err), -EINVAL);
    t.serving = "GET:/model_info:.nothing.there";
    assert_int_equal(ops->serving(&e.target, &now, &err), -EPROTO);
    engine_stop(&e);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_find),
        TEST(test_no_server),
        TEST(test_malformed_answers),
        TEST(test_hanging),
        TEST(test_hanging_at_the_end),
        TEST(test_long_fields),
        TEST(test_ca_file),
        TEST(test_unreported_facts),
        TEST(test_wrong_kind),
        TEST(test_flush_answers),
        TEST(test_other_key_is_not_shown),
        TEST(test_remote),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("engine", tests, engine_make_folders, engine_remove_folders);
}
