/* A load is sent once, and counts as successful only if this load alone can explain what the engine reports
 * afterwards: replies that are lost, time out, or come from an engine that reported the version all along. */
#include "backends/engine/load.h"
#include "backends/engine/update.h"
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/checkpoint.h"
#include "tests/fixtures/engine.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;

/* libcurl repeats a request by itself if a kept connection ends without a reply: never for a load or a
 * resume. */
static void test_load_is_sent_once(void **state)
{
    static const struct bad_step steps[] = {{"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                            {"/update_weights_from_disk", BAD_CLOSE, 0, NULL},
                                            {"/reload", BAD_CLOSE, 0, NULL},
                                            {"/is_paused", BAD_JSON, 200, "{\"is_paused\":true}"},
                                            {"/collective_rpc", BAD_CLOSE, 0, NULL},
                                            {"/wake_up", BAD_CLOSE, 0, NULL},
                                            {"/pause_generation", BAD_CLOSE, 0, NULL},
                                            {"/continue_generation", BAD_CLOSE, 0, NULL},
                                            {"/resume", BAD_CLOSE, 0, NULL}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_templates templates = {
        .load = "POST:/reload", .resume = "POST:/resume", .serving = "GET:/model_info:.weight_version"};
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.templates = &templates;
    engine_assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 1), 1);
    engine_assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_remote.load(&e.target, engine_two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 2), 1);
    engine_assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 4), 1);
    e.target.sleeping = true;
    assert_int_equal(ws_engine_vllm.load(&e.target, engine_two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 5), 1);
    e.target.sleeping = false;
    engine_assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 6), 2); /* may be repeated, and is */
    engine_assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_sglang.resume(&e.target, &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 7), 1);
    for (unsigned i = 1; i <= 2; i++) {
        const struct ws_engine_ops *ops = i == 1 ? &ws_engine_vllm : &ws_engine_remote;
        engine_assert_serves(&e.target, "/m", "1");
        assert_int_equal(ops->resume(&e.target, &err), -ECONNRESET);
        assert_int_equal(bad_server_hits(s, 8), i);
    }
    bad_server_stop(s);
}

/* The engine received the request and has ended: that is not "no connection", even if libcurl finds none on
 * its second try. */
static void test_dies_of_a_request(void **state)
{
    static const struct bad_step steps[] = {{"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                            {NULL, BAD_DIE, 0, NULL}};

    (void)state;
    for (unsigned load = 0; load < 2; load++) {
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct engine e;
        engine_at(&e, bad_server_port(s));
        engine_assert_serves(&e.target, "/m", "1");
        assert_int_equal(load ? ws_engine_sglang.load(&e.target, engine_two, "2", &err)
                              : ws_engine_sglang.pause(&e.target, &err),
                         -ECONNRESET);
        assert_int_equal(bad_server_hits(s, 1), 1);
        assert_int_equal(bad_server_connections(s), 1 + load);
        assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EHOSTUNREACH);
        if (!load)
            assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EHOSTUNREACH);
        bad_server_stop(s);
    }
}

/* The engine answered that it loaded, and has ended when its version is queried: it received the load. */
static void test_dies_after_a_load(void **state)
{
    static const struct bad_step steps[] = {
        {"/update_weights_from_disk", BAD_LAST, 200, "{\"success\":true}"},
        {"/collective_rpc", BAD_LAST, 200, "{\"results\":[null]}"},
        {"/wake_up", BAD_LAST, 200, "{}"},
        {"/start_weight_update", BAD_LAST, 200, "{}"},
        {"/reload", BAD_LAST, 200, "{}"}};
    const struct ws_engine_facts no_rpc = {.known = true};
    struct ws_engine_templates templates = {.load = "POST:/reload", .serving = "GET:/version:.version"};

    (void)state;
    for (size_t i = 0; i < LENGTH(steps); i++) {
        const struct ws_engine_ops *ops = i == 0                   ? &ws_engine_sglang
                                          : i + 1 == LENGTH(steps) ? &ws_engine_remote
                                                                   : &ws_engine_vllm;
        const struct bad_step pair[] = {steps[i], IS_PAUSED};
        struct bad_server *s = bad_server_start(pair, LENGTH(pair));
        struct engine e;
        engine_at(&e, bad_server_port(s));
        e.target.templates = &templates;
        e.target.sleeping = i == 2;
        e.target.facts = i == 3 ? &no_rpc : NULL;
        assert_int_equal(ops->load(&e.target, engine_two, "2", &err), -ECONNRESET);
        assert_int_equal(err.code, ECONNRESET);
        assert_int_equal(bad_server_hits(s, 0), 1);
        bad_server_stop(s);
    }
}

static const char *const both[] = {"sglang", "vllm"};

/* The load timed out, and the engine has reported the version all along: that is no success. Once the load is
 * over, the next one is. */
static void test_timed_out_under_its_own_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(both); i++) {
        const struct ws_engine_ops *ops = ws_engine_find(both[i]);
        struct engine e;
        struct ws_engine_serving now;
        bool told = false;
        engine_start(&e, (struct ws_reference_options){.api = both[i], .slow_ms = 1500});
        assert_int_equal(ops->label(&e.target, "2", &err), 0);
        assert_int_equal(ops->pause(&e.target, &err), 0);
        e.target.timeout_ms = 300;
        assert_int_equal(ws_engine_load(ops, &e.target, engine_two, "2", NULL, &told, &err), -ETIMEDOUT);
        e.target.timeout_ms = 60000;
        assert_int_equal(ws_engine_load(ops, &e.target, engine_two, "2", NULL, &told, &err), 0);
        assert_int_equal(ops->serving(&e.target, &now, &err), 0);
        assert_string_equal(now.version, "2");
        assert_int_equal(ws_engine_confirm(ops, &e.target, "2", &err), 0);
        assert_int_equal(ws_engine_confirm(ops, &e.target, "3", &err), -EREMOTEIO);
        engine_stop(&e);
    }
}

/* Without a mount a version has no number: every load has the name "default", as does the version at the
 * start. */
static void test_update_under_one_name(void **state)
{
    char *bad = checkpoint_folder();
    (void)state;
    checkpoint_write_text(bad, "model.safetensors", "this is no safetensors file");
    const struct ws_engine_ops *ops = &ws_engine_vllm;
    struct engine e;
    struct ws_engine_serving now;
    engine_start(&e, (struct ws_reference_options){.api = "vllm", .slow_ms = 1500});
    e.target.timeout_ms = 300;
    assert_int_equal(ws_engine_update(ops, &e.target, bad, "default", NULL, &err), -ETIMEDOUT);
    e.target.timeout_ms = 60000;
    assert_int_equal(ws_engine_update(ops, &e.target, engine_two, "default", NULL, &err), 0);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "default");
    engine_stop(&e);
    checkpoint_remove(bad);
}

struct canceller {
    struct bad_server *server;
    atomic_bool cancel;
};

/* Cancels when step 2 has come. */
static void *cancel_late(void *arg)
{
    struct canceller *c = arg;
    while (bad_server_hits(c->server, 2) == 0)
        usleep(1000);
    atomic_store(&c->cancel, true);
    return NULL;
}

/* vLLM has reloaded, and is being told the version: a cancel does not leave it with the name of the one before. */
static void test_cancel_after_the_reload(void **state)
{
    static const struct bad_step steps[] = {IS_PAUSED,
                                            {"/collective_rpc", BAD_JSON, 200, "{\"results\":[null]}"},
                                            {"/update_weight_version", BAD_HANG, 0, NULL}};
    struct canceller c = {bad_server_start(steps, LENGTH(steps)), false};
    struct engine e;
    pthread_t thread;

    (void)state;
    engine_at(&e, bad_server_port(c.server));
    e.target.short_ms = 500;
    e.target.cancel[2] = &c.cancel;
    assert_int_equal(pthread_create(&thread, NULL, cancel_late, &c), 0);
    assert_int_equal(ws_engine_vllm.load(&e.target, "/m", "2", &err), -ETIMEDOUT);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(atomic_load(&c.cancel));
    bad_server_stop(c.server);
}

/* What lasts while it is paused is what a load cannot do without: it is not asked whether it is paused. What it says of its
 * version is asked for before and after. */
static void test_requests_of_a_load(void **state)
{
    static const struct bad_step steps[] = {
        {"GET /ready", BAD_JSON, 503, "{}"},
        {"GET /model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
        {"GET /server_info", BAD_JSON, 200, "{}"},
        {"GET /update_weights_from_disk", BAD_JSON, 405, "{}"},
        {"POST /update_weights_from_disk", BAD_JSON, 200, "{\"success\":true}"},
        {"GET /hicache", BAD_JSON, 404, "{}"},
        {"GET /update_weight_version", BAD_JSON, 405, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_facts facts;
    struct ws_engine_serving now;
    struct engine e;
    bool told = false;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_true(now.reports_paused && now.paused);
    e.target.facts = &facts;
    const unsigned ready = bad_server_hits(s, 0), info = bad_server_hits(s, 1),
                   drains = bad_server_hits(s, 2);
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", NULL, &told, &err), -EREMOTEIO);
    assert_true(told); /* it says that it serves version 1 afterwards */
    assert_int_equal(bad_server_hits(s, 0), ready);
    assert_int_equal(bad_server_hits(s, 1), info + 2);
    assert_int_equal(bad_server_hits(s, 2), drains + 1);
    assert_int_equal(bad_server_hits(s, 4), 1);
    /* What it reported before its pause is not asked for again, unless that is the version which is loaded. */
    assert_int_equal(ws_engine_settle(&ws_engine_sglang, &e.target, &now, &err), 0);
    assert_int_equal(bad_server_hits(s, 0), ready + 1); /* whether it is paused, too */
    assert_int_equal(bad_server_hits(s, 1), info + 3);
    assert_int_equal(bad_server_hits(s, 2), drains + 2);
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", now.version, &told, &err),
                     -EREMOTEIO);
    assert_int_equal(bad_server_hits(s, 1), info + 4);
    assert_int_equal(bad_server_hits(s, 2), drains + 2);
    told = false;
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "1", "1", &told, &err), 0);
    assert_int_equal(bad_server_hits(s, 2), drains + 3);
    bad_server_stop(s);
}

/* An engine without version names: its report after a lost reply proves nothing. */
static void test_lost_reply_without_a_label(void **state)
{
    static const struct bad_step steps[] = {{"/update_weights_from_disk", BAD_CLOSE, 0, NULL},
                                            {"/model_info", BAD_JSON, 200, INFO_OF("/m", "2")}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    bool told = false;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", NULL, &told, &err), -ECONNRESET);
    assert_true(told);
    bad_server_stop(s);
}

/* An engine that reports `named`, accepts another label, and never receives the load. */
static char named[64];

static int label_result;

static int say_named(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *e)
{
    (void)t;
    (void)e;
    *out = (struct ws_engine_serving){0};
    snprintf(out->version, sizeof(out->version), "%s", named);
    return 0;
}

static int take_label(const struct ws_engine_target *t, const char *version, struct ws_error *e)
{
    (void)t;
    snprintf(named, sizeof(named), "%s", version);
    return label_result ? ws_error_set(e, -label_result, "the answer was lost") : 0;
}

static int sleep_on(const struct ws_engine_target *t, const char *path, const char *version,
                    struct ws_error *e)
{
    (void)t;
    (void)path;
    (void)version;
    assert_string_equal(named, "loading 2");
    return ws_error_set(e, EAGAIN, "it sleeps");
}

static void test_load_never_received(void **state)
{
    static const struct ws_engine_ops ops = {.serving = say_named, .label = take_label, .load = sleep_on};
    struct engine e = {0};
    bool told = false;

    (void)state;
    strcpy(named, "2");
    label_result = 0;
    assert_int_equal(ws_engine_load(&ops, &e.target, "/m", "2", NULL, &told, &err), -EAGAIN);
    assert_false(told);
    assert_string_equal(named, "2"); /* the engine keeps running, and reports the same */
    label_result = -ETIMEDOUT;
    assert_int_equal(ws_engine_load(&ops, &e.target, "/m", "2", NULL, &told, &err), -ETIMEDOUT);
    assert_false(told);
    assert_string_equal(named, "2");
    told = true; /* it has received another load: its weights are unknown */
    label_result = 0;
    assert_int_equal(ws_engine_load(&ops, &e.target, "/m", "2", NULL, &told, &err), -EAGAIN);
    assert_false(told);
    assert_string_equal(named, "loading 2");
}

/* An engine that accepts another version name and goes on to report this one, as if its schedulers never got
 * the label. */
static void test_lost_reply_with_a_label_of_no_effect(void **state)
{
    static const struct bad_step steps[] = {{"/update_weights_from_disk", BAD_CLOSE, 0, NULL},
                                            {"/update_weight_version", BAD_JSON, 200, "{\"success\":true}"},
                                            {"/model_info", BAD_JSON, 200, INFO_OF("/m", "2")}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    bool told = false;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", NULL, &told, &err), -ECONNRESET);
    assert_true(told);
    assert_int_equal(bad_server_hits(s, 1), 1);
    bad_server_stop(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_load_is_sent_once),       TEST(test_dies_of_a_request),
        TEST(test_dies_after_a_load),       TEST(test_timed_out_under_its_own_name),
        TEST(test_update_under_one_name),   TEST(test_lost_reply_without_a_label),
        TEST(test_load_never_received),     TEST(test_lost_reply_with_a_label_of_no_effect),
        TEST(test_cancel_after_the_reload), TEST(test_requests_of_a_load),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("engine_load", tests, engine_make_folders, engine_remove_folders);
}
