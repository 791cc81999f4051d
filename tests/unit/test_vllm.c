/* vLLM's table with the reference engine, which really loads, and with servers that sleep, answer out of
 * order, or lack routes. */
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/engine.h"
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

/* vLLM's development routes accept any key, also a wrong one: what is sent to them counts. */
static void test_vllm_wrong_key(void **state)
{
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm", .api_key = "s3cret-of-the-engine"});
    e.target.token = "s3cret-of-the-engine";
    e.target.admin_token = "s3cret-of-somebody-else";
    assert_int_equal(ws_engine_vllm.probe(&e.target, &facts, &now, &err), 0);
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2");
    engine_stop(&e);
}

static void test_vllm(void **state)
{
    struct engine e;
    struct ws_engine_serving now;
    const struct ws_engine_ops *ops = &ws_engine_vllm;
    char *before, *after;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm"});
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(facts.release, "0.32.0");
    assert_string_equal(now.version, "default");
    assert_string_equal(now.path, engine_one); /* the version at its start is the rollback target */
    assert_string_equal(facts.missing, "");
    e.target.facts = &facts;
    before = engine_checksum(&e.target, "/weight_checker", "checksums");
    for (size_t i = 0; ops->pause_modes[i]; i++) {
        e.target.pause_mode = ops->pause_modes[i];
        assert_int_equal(ops->pause(&e.target, &err), 0);
        assert_int_equal(ops->serving(&e.target, &now, &err), 0);
        assert_true(now.paused);
        assert_int_equal(ops->load(&e.target, engine_two, "2", &err), 0);
        assert_int_equal(ops->resume(&e.target, &err), 0);
        assert_int_equal(ops->serving(&e.target, &now, &err), 0);
        assert_false(now.paused);
        assert_string_equal(now.version, "2");
        after = engine_checksum(&e.target, "/weight_checker", "checksums");
        assert_string_not_equal(before, after);
        free(after);
    }
    assert_int_equal(ops->load(&e.target, "/nonexistent", "3", &err), -EREMOTEIO);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2"); /* recorded only after a load */
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.path, ""); /* it does not report what it loaded last */
    e.target.cache = WS_CACHE_EXTERNAL;
    assert_int_equal(ops->load(&e.target, engine_one, "4", &err), 0);
    free(before);
    engine_stop(&e);
}

static int plain(const struct engine *e, const char *path)
{
    struct ws_http_reply reply;
    json_t *body = json_object();
    int rc = ws_http_call(
        engine_http, &(struct ws_http_request){.url = e->url, .path = path, .body = body, .timeout_ms = 5000},
        &reply, &err);
    json_decref(body);
    if (rc == 0)
        ws_http_reply_release(&reply);
    return rc;
}

static void test_vllm_asleep(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm"});
    assert_int_equal(plain(&e, "/sleep?level=2"), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_true(now.sleeping);
    e.target.sleeping = now.sleeping;
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    for (unsigned i = 0; i < 2; i++) { /* woken for it; a second load, as a rollback's, ends no pause */
        assert_int_equal(ws_engine_vllm.load(&e.target, i ? engine_one : engine_two, "2", &err), 0);
        assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
        assert_true(now.paused);
        assert_true(now.sleeping); /* partly */
    }
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_false(now.sleeping || now.paused);
    assert_int_equal(plain(&e, "/v1/completions"), 0); /* it would end without its cache's memory */
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_true(now.paused);
    assert_false(now.sleeping || now.sleep_unknown);
    engine_stop(&e);
}

/* What it holds is what it held after level 1, and undefined after level 2, though it reports the same version. */
static void test_vllm_levels(void **state)
{
    struct engine e;
    struct ws_engine_serving now;
    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm"});
    char *before = engine_checksum(&e.target, "/weight_checker", "checksums");
    for (int level = 1; level <= 2; level++) {
        assert_int_equal(plain(&e, level == 1 ? "/sleep?level=1" : "/sleep?level=2"), 0);
        assert_int_equal(plain(&e, "/wake_up"), 0);
        char *after = engine_checksum(&e.target, "/weight_checker", "checksums");
        assert_int_equal(strcmp(before, after) == 0, level == 1);
        free(after);
    }
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "default");
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_one, "1", &err), 0);
    char *after = engine_checksum(&e.target, "/weight_checker", "checksums");
    assert_string_equal(before, after);
    free(after);
    free(before);
    engine_stop(&e);
}

/* Weights that cannot be woken never received the load: nothing has changed. */
static void test_vllm_stays_asleep(void **state)
{
    static const struct bad_step steps[] = {
        {"POST /wake_up", BAD_JSON, 500, "{\"error\":\"no memory for the weights\"}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.sleeping = true;
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), -EAGAIN);
    assert_non_null(strstr(err.text, "no memory for the weights"));
    assert_non_null(strstr(err.text, "wake it and try again"));
    bad_server_stop(s);
}

/* Paused, and maybe asleep: only its metrics could tell. A reply without the field does not deny it. */
static void test_vllm_does_not_say_that_it_sleeps(void **state)
{
    static const struct {
        const char *sleeping, *metrics;
        unsigned status; /* from the metrics */
        int rc;
        bool asleep, unknown;
    } cases[] = {
        {"{\"is_sleeping\":true}", "", 404, 0, false, true},
        {"{\"is_sleeping\":true}", "up 1\n", 200, 0, false, true},
        {"{\"is_sleeping\":true}", "vllm:engine_sleep_state{sleep_state=\"awake\"} 1.0\n", 200, 0, false,
         false},
        {"{\"is_sleeping\":true}",
         "vllm:engine_sleep_state{sleep_state=\"awake\",engine=\"0\"} 1.0\n"
         "vllm:engine_sleep_state{sleep_state=\"awake\",engine=\"1\"} 0.0\n",
         200, 0, true, false},
        {"{\"is_sleeping\":false}", "", 404, 0, false, false},
        {"{}", "", 404, -EPROTO, false, false},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step steps[] = {IS_PAUSED,
                                         {"GET /is_sleeping", BAD_JSON, 200, cases[i].sleeping},
                                         {"GET /wake_up", BAD_JSON, 405, "{}"},
                                         {"GET /metrics", BAD_JSON, cases[i].status, cases[i].metrics},
                                         {"GET /weight_info", BAD_JSON, 200, "{\"weight_version\":\"1\"}"}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct ws_engine_serving now;
        struct engine e;
        engine_at(&e, bad_server_port(s));
        assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), cases[i].rc);
        if (cases[i].rc == 0) {
            assert_int_equal(now.sleeping, cases[i].asleep);
            assert_int_equal(now.sleep_unknown, cases[i].unknown);
        }
        bad_server_stop(s);
    }
}

/* A `timeout` argument makes vLLM's workers answer a later call. */
static void test_vllm_reload_has_no_timeout(void **state)
{
    static const struct bad_step steps[] = {
        IS_PAUSED,
        {"\"timeout\"", BAD_JSON, 500, "{\"error\":\"late\"}"},
        {"reload_weights", BAD_JSON, 200, "{\"results\":[null,null]}"},
        {"get_supported_tasks", BAD_JSON, 200, "{\"results\":[\"generate\",\"generate\"]}"},
        {"POST /update_weight_version", BAD_JSON, 200, "{\"success\":true}"},
        {"/weight_info", BAD_JSON, 200, "{\"weight_version\":\"2\"}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), 0);
    bad_server_stop(s);
}

/* The second worker's reply is that to the previous call. */
static void test_vllm_workers_out_of_step(void **state)
{
    static const struct bad_step steps[] = {
        IS_PAUSED,
        {"reload_weights", BAD_JSON, 200, "{\"results\":[null,null]}"},
        {"get_supported_tasks", BAD_JSON, 200, "{\"results\":[\"generate\",null]}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "restart it"));
    bad_server_stop(s);
}

/* The caller of the running pause has given up waiting: a resume is refused until the pause has ended. */
static void test_vllm_resume_in_a_pause(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm", .refuse_resumes = 5});
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_false(now.paused);
    engine_stop(&e);
    engine_start(&e, (struct ws_reference_options){.api = "vllm", .refuse_resumes = 1000000});
    e.target.short_ms = 100;
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "still in flight"));
    engine_stop(&e);
}

static void ask_for_an_image(const struct engine *e)
{
    struct ws_http_reply reply;
    json_t *body = json_pack("{s:s}", "image", "a cat");
    struct ws_http_request request = {
        .url = e->url, .path = "/v1/completions", .body = body, .timeout_ms = 30000};
    assert_int_equal(ws_http_call(engine_http, &request, &reply, &err), 0);
    assert_int_equal(reply.status, 200);
    ws_http_reply_release(&reply);
    json_decref(body);
}

/* The scheduler and the workers drop an image together, also with cache=keep: else vLLM dies of the next
 * one. */
static void test_vllm_images(void **state)
{
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api = "vllm"});
    e.target.cache = WS_CACHE_KEEP;
    ask_for_an_image(&e);
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), 0);
    assert_int_equal(ws_engine_vllm.flush(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), 0);
    ask_for_an_image(&e);
    engine_stop(&e);
}

/* A vLLM started without its development mode. */
static void test_vllm_without_routes(void **state)
{
    static const struct bad_step steps[] = {{"GET /version", BAD_JSON, 200, "{\"version\":\"0.30\"}"}};
    struct ws_engine_serving now;
    char url[64];
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_target t = {.http = engine_http, .url = url, .timeout_ms = 5000};

    (void)state;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(s));
    assert_int_equal(ws_engine_vllm.probe(&t, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "VLLM_SERVER_DEV_MODE=1"));
    bad_server_stop(s);
}

/* A vLLM without its sleep mode, as on a CPU: its routes are there and do nothing. */
static void test_vllm_stays_awake(void **state)
{
    static const struct bad_step steps[] = {
        {"GET /version", BAD_JSON, 200, "{\"version\":\"0.32.0\"}"},
        {"GET /collective_rpc", BAD_JSON, 405, "{}"},
        {"GET /wake_up", BAD_JSON, 405, "{}"},
        {"GET /is_paused", BAD_JSON, 200, "{\"is_paused\":false}"},
        {"GET /is_sleeping", BAD_JSON, 200, "{\"is_sleeping\":false}"},
        {"GET /v1/models", BAD_JSON, 200, "{\"data\":[]}"},
        {"GET /server_info", BAD_JSON, 200,
         "{\"vllm_config\":{\"model_config\":{\"enable_sleep_mode\":false}}}"}};
    struct ws_engine_serving now;
    char url[64];
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_target t = {.http = engine_http, .url = url, .timeout_ms = 5000};

    (void)state;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(s));
    assert_int_equal(ws_engine_vllm.probe(&t, &facts, &now, &err), 0);
    t.sleep = WS_SLEEP_LOSES;
    assert_int_equal(ws_engine_vllm.probe(&t, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "leave sleep= out"));
    bad_server_stop(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_vllm_wrong_key),
        TEST(test_vllm),
        TEST(test_vllm_asleep),
        TEST(test_vllm_levels),
        TEST(test_vllm_stays_asleep),
        TEST(test_vllm_does_not_say_that_it_sleeps),
        TEST(test_vllm_reload_has_no_timeout),
        TEST(test_vllm_workers_out_of_step),
        TEST(test_vllm_resume_in_a_pause),
        TEST(test_vllm_images),
        TEST(test_vllm_without_routes),
        TEST(test_vllm_stays_awake),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("vllm", tests, engine_make_folders, engine_remove_folders);
}
