/* SGLang's table with the reference engine, which really loads, and with servers that refuse, lie, or are of
 * another release. */
#include "backends/engine/load.h"
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/checkpoint.h"
#include "tests/fixtures/engine.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;
static struct ws_engine_facts facts;

/* What it cannot say, or what its schedulers do not agree on, is not known; a wake of that sends nothing. */
static void test_asleep(void **state)
{
#define SCHEDULER(list) "{\"weight_version\":\"1\",\"wsync\":{\"released\":" list "}}"
#define INFO(...)       "{\"internal_states\":[" __VA_ARGS__ "]}"
    static const struct {
        const char *info;
        bool unknown, asleep;
    } cases[] = {
        {INFO(SCHEDULER("[]")), false, false},
        {INFO(SCHEDULER("[\"kv_cache\"]") "," SCHEDULER("[\"kv_cache\"]")), false, true},
        {INFO(SCHEDULER("[\"kv_cache\"]") "," SCHEDULER("[]")), true, false},
        {INFO(SCHEDULER("[]") "," SCHEDULER("[\"weights\"]")), true, false},
        {INFO(SCHEDULER("[\"a part of a later release\"]")), true, false},
        {INFO(SCHEDULER("[1]")), true, false},
        {INFO(SCHEDULER("null")), true, false},
        {INFO("{\"weight_version\":\"1\"}"), true, false},
        {"{}", true, false},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step steps[] = {{"GET /model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                         {"GET /server_info", BAD_JSON, 200, cases[i].info},
                                         {"GET /server_info", BAD_JSON, 200, cases[i].info}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct ws_engine_serving now;
        struct engine e;
        engine_at(&e, bad_server_port(s));
        e.target.sleep = WS_SLEEP_LOSES;
        assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), 0);
        assert_int_equal(now.sleep_unknown, cases[i].unknown);
        assert_int_equal(now.sleeping, cases[i].asleep);
        e.target.sleeping = true;
        if (cases[i].unknown) {
            assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EAGAIN);
            assert_non_null(strstr(err.text, "which parts of its memory are released"));
        }
        bad_server_stop(s);
    }
#undef SCHEDULER
#undef INFO
}

static void test_switch_by_every_pause_mode(void **state)
{
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){0});
    engine_assert_serves(&e.target, engine_one, "default");
    engine_assert_holds(&e.target, 1);
    for (size_t i = 0; ws_engine_sglang.pause_modes[i]; i++) {
        e.target.pause_mode = ws_engine_sglang.pause_modes[i];
        assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
        assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), 0);
        assert_int_equal(ws_engine_sglang.resume(&e.target, &err), 0);
        engine_assert_serves(&e.target, engine_two, "2");
        engine_assert_holds(&e.target, 2);
        assert_int_equal(ws_engine_sglang.load(&e.target, engine_one, "1", &err), 0);
        engine_assert_holds(&e.target, 1);
    }
    engine_stop(&e);
}

static void test_weights_outlive_the_folder(void **state)
{
    char *gone = checkpoint_folder();
    struct engine e;

    (void)state;
    checkpoint_write_model(gone, 3);
    engine_start(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.load(&e.target, gone, "3", &err), 0);
    checkpoint_remove(gone);
    engine_assert_holds(&e.target, 3);
    engine_stop(&e);
}

static void test_refused_version(void **state)
{
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.refuse = "2"});
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "--refuse"));
    engine_assert_serves(&e.target, engine_one, "default");
    engine_assert_holds(&e.target, 1);
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "3", &err), 0);
    engine_stop(&e);
}

static void test_bad_folder_keeps_the_old_weights(void **state)
{
    char *bad = checkpoint_folder();
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.load(&e.target, "/nonexistent/wsync", "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "Failed to get weights iterator"));
    checkpoint_write_text(bad, "model.safetensors", "this is no safetensors file");
    assert_int_equal(ws_engine_sglang.load(&e.target, bad, "2", &err), -EREMOTEIO);
    engine_assert_serves(&e.target, engine_one, "default");
    engine_assert_holds(&e.target, 1);
    checkpoint_remove(bad);
    engine_stop(&e);
}

static void test_key(void **state)
{
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.api_key = "s3cret-of-the-engine"});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EACCES);
    assert_non_null(strstr(err.text, "token-file="));
    e.target.token = "s3cret-of-somebody-else";
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EACCES);
    assert_null(strstr(err.text, "s3cret"));
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EACCES);
    e.target.token = "s3cret-of-the-engine";
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), 0);
    e.target.admin_token = "s3cret-of-somebody-else"; /* only for requests that change the server */
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), 0);
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EACCES);
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EACCES);
    engine_stop(&e);
}

static void *cancel_soon(void *cancel)
{
    usleep(50000);
    atomic_store((atomic_bool *)cancel, true);
    return NULL;
}

static void test_cancelled_load(void **state)
{
    atomic_bool cancel = false;
    pthread_t thread;
    struct engine e;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.slow_ms = 2000});
    e.target.cancel[0] = &cancel;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &cancel), 0);
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -ECANCELED);
    pthread_join(thread, NULL);
    engine_stop(&e);
}

/* A request that arrives while the engine is paused is answered after the resume, with the new weights. */
static void *ask(void *arg)
{
    struct engine *e = arg;
    json_t *body = json_pack("{s:s}", "text", "hello");
    struct ws_http_request request = {.url = e->url, .path = "/generate", .body = body, .timeout_ms = 30000};
    struct ws_http_reply reply;
    struct ws_error own = {0};
    char *version = NULL;

    if (!ws_http_call(engine_http, &request, &reply, &own)) {
        json_t *meta = json_object_get(reply.json, "meta_info");
        version = strdup(json_string_value(json_object_get(meta, "weight_version")));
        ws_http_reply_release(&reply);
    }
    json_decref(body);
    return version;
}

static void test_request_during_pause(void **state)
{
    pthread_t thread;
    struct engine e;
    void *version;

    (void)state;
    engine_start(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, ask, &e), 0);
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), 0);
    assert_int_equal(ws_engine_sglang.resume(&e.target, &err), 0);
    pthread_join(thread, &version);
    assert_non_null(version);
    assert_string_equal(version, "2");
    free(version);
    engine_stop(&e);
}

static void test_stopped_while_a_request_waits(void **state)
{
    pthread_t thread;
    struct engine e;
    void *version;

    (void)state;
    engine_start(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, ask, &e), 0);
    usleep(50000);
    engine_stop(&e);
    pthread_join(thread, &version);
    free(version);
}

static void test_bad_options(void **state)
{
    struct ws_reference_options o = {.listen = "127.0.0.1:0", .model_path = engine_one, .die_at = "dinner"};
    struct ws_reference *r;

    (void)state;
    assert_int_equal(ws_reference_new(&r, &o, &err), -EINVAL);
    o.die_at = NULL;
    o.listen = "nowhere";
    assert_int_equal(ws_reference_new(&r, &o, &err), -EINVAL);
    o.listen = "127.0.0.1:99999999";
    assert_int_equal(ws_reference_new(&r, &o, &err), -EINVAL);
    o.listen = "127.0.0.1:0";
    o.model_path = "/nonexistent/wsync";
    assert_int_equal(ws_reference_new(&r, &o, &err), -ENOENT);
}

/* Runs an engine that dies at a step in a child process; returns its port. */
static pid_t dying_engine(const char *step, struct engine *e)
{
    struct ws_reference_options o = {.listen = "127.0.0.1:0", .model_path = engine_one, .die_at = step};
    unsigned port = 0;
    int ends[2];
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (ws_reference_new(&e->reference, &o, NULL))
            _exit(9);
        port = ws_reference_port(e->reference);
        if (write(ends[1], &port, sizeof(port)) != sizeof(port))
            _exit(9);
        alarm(60);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &port, sizeof(port)), sizeof(port));
    close(ends[0]);
    snprintf(e->url, sizeof(e->url), "http://127.0.0.1:%u", port);
    e->target = (struct ws_engine_target){.http = engine_http, .url = e->url, .timeout_ms = 20000};
    return pid;
}

static void test_dies_without_a_reply(void **state)
{
    static const char *const steps[] = {"pause", "open", "load", "reply", "continue"};
    struct ws_engine_serving now;

    (void)state;
    for (size_t i = 0; i < LENGTH(steps); i++) {
        struct engine e;
        pid_t pid = dying_engine(steps[i], &e);
        int status, rc;
        assert_int_equal(ws_http_client_new(&e.target.http, &err), 0);
        rc = ws_engine_sglang.pause(&e.target, &err);
        if (!rc)
            rc = ws_engine_sglang.load(&e.target, engine_two, "2", &err);
        if (!rc)
            rc = ws_engine_sglang.resume(&e.target, &err);
        assert_int_equal(rc, -ECONNRESET);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EHOSTUNREACH);
        ws_http_client_free(e.target.http);
    }
}

static void test_key_in_a_reply(void **state)
{
    static const struct bad_step step = {
        NULL, BAD_JSON, 400, "{\"success\":false,\"message\":\"no such key: s3cret-of-the-engine\"}"};
    struct bad_server *s = bad_server_start(&step, 1);
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.token = "s3cret-of-the-engine";
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EREMOTEIO);
    assert_null(strstr(err.text, "s3cret"));
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "no such key"));
    assert_null(strstr(err.text, "s3cret"));
    bad_server_stop(s);
}

/* "success" counts only if the engine then reports the version. */
static void test_false_success(void **state)
{
    static const struct bad_step steps[] = {
        {"/update_weights_from_disk", BAD_JSON, 200, "{\"success\":true,\"message\":\"done\"}"},
        {"/model_info", BAD_JSON, 200, INFO_OF("/wsync/actor/2", "1")},
    };
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.load(&e.target, "/wsync/actor/2", "2", &err), -EREMOTEIO);
    assert_int_equal(ws_engine_sglang.load(&e.target, "/wsync/actor/3", "1", &err), -EREMOTEIO);
    assert_int_equal(ws_engine_sglang.load(&e.target, "/wsync/actor/2", "1", &err), 0);
    bad_server_stop(s);
}

static void test_server_that_only_knows_abort(void **state)
{
    static const struct bad_step steps[] = {
        {"{\"mode\":\"abort\"}", BAD_JSON, 200, "{\"message\":\"paused\",\"status\":\"ok\"}"},
        {"/pause_generation", BAD_JSON, 400, "{\"error\":{\"message\":\"mode\"}}"},
    };
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
    assert_int_equal(bad_server_hits(s, 0), 1);
    /* the operator's choice is not replaced */
    e.target.pause_mode = "retract";
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EREMOTEIO);
    assert_int_equal(bad_server_hits(s, 0), 1);
    bad_server_stop(s);
}

static void test_older_model_info(void **state)
{
    static const struct bad_step step = {"/get_model_info", BAD_JSON, 200, INFO_OF("/m", "7")};
    struct bad_server *s = bad_server_start(&step, 1);
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    engine_assert_serves(&e.target, "/m", "7");
    bad_server_stop(s);
}

/* With data parallelism each scheduler names its process, in the order in which they have answered; what one of them lacks the
 * engine lacks. */
static void test_several_schedulers(void **state)
{
#define SCHEDULER(name) "{\"wsync\":{\"loads_draft\":true,\"freezes_draft\":true,\"process\":\"" name "\"}}"
#define ENGINE(states)                                                                                       \
    "{\"model_path\":\"/m\",\"speculative_algorithm\":\"EAGLE\",\"speculative_draft_model_path\":\"/d\","    \
    "\"internal_states\":[" states "]}"
    static const struct {
        const char *info, *process;
    } cases[] = {
        {ENGINE(SCHEDULER("aa") "," SCHEDULER("bb")), "aa"},
        {ENGINE(SCHEDULER("bb") "," SCHEDULER("aa")), "aa"},
        {ENGINE(SCHEDULER("bb") "," SCHEDULER("cc")), "bb"},
        {ENGINE(SCHEDULER("aa") ",{}"), NULL},
        {ENGINE(""), NULL},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step step = {"/server_info", BAD_JSON, 200, cases[i].info};
        struct bad_server *s = bad_server_start(&step, 1);
        char process[WS_ENGINE_PROCESS_CHARS + 1] = "";
        struct engine e;
        engine_at(&e, bad_server_port(s));
        assert_int_equal(ws_engine_sglang.process(&e.target, process, &err), cases[i].process ? 0 : -EPROTO);
        assert_string_equal(process, cases[i].process ? cases[i].process : "");
        bad_server_stop(s);
    }
}

/* An engine that answers with a failure does not say that the previous load is over. */
static void test_sglang_that_does_not_settle(void **state)
{
    static const struct bad_step steps[] = {
        {"/server_info", BAD_JSON, 500, "{}"},
        {"/update_weights_from_disk", BAD_JSON, 200, "{\"success\":true}"},
        {"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    bool told = true;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", NULL, &told, &err), -EREMOTEIO);
    assert_false(told);
    assert_int_equal(bad_server_hits(s, 1), 0);
    bad_server_stop(s);
}

static void test_sglang_of_dummy_weights(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.load_format = "dummy"});
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EREMOTEIO);
    e.target.load_format = "auto";
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), 0);
    e.target.load_format = NULL;
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    e.target.facts = &facts;
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_one, "1", &err), 0);
    e.target.load_format = "dummy"; /* the operator's choice is not replaced */
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), -EREMOTEIO);
    engine_stop(&e);
}

/* The worker that answers did not get the load: the schedulers did. */
static void test_sglang_with_tokenizer_workers(void **state)
{
    struct engine e;
    struct ws_engine_serving now;
    bool told = false;

    (void)state;
    engine_start(&e, (struct ws_reference_options){.workers = 2});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.path, engine_one);
    e.target.facts = &facts;
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, engine_two, "2", NULL, &told, &err), 0);
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2");
    assert_string_equal(now.path, "");
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.version, "2");
    assert_string_equal(now.path, ""); /* each worker reports its own */
    engine_assert_holds(&e.target, 2);
    e.target.pause_mode = "abort";
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "--tokenizer-worker-num"));
    engine_stop(&e);
}

/* Several workers of a release whose schedulers do not report their weights. */
static void test_sglang_workers_without_reports(void **state)
{
    static const struct bad_step steps[] = {
        {"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
        {"GET /server_info", BAD_JSON, 200, "{\"tokenizer_worker_num\":4,\"internal_states\":[{}]}"},
        {"GET /update_weights_from_disk", BAD_JSON, 405, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "--tokenizer-worker-num 1"));
    bad_server_stop(s);
}

/* A model that sees images needs the plug-in, or no cache of image embeddings. */
static void test_sglang_with_images(void **state)
{
    static const char *const states[] = {"{}", "{\"wsync\":{\"forgets_embeddings\":true}}"};
    (void)state;
    for (size_t i = 0; i < LENGTH(states); i++) {
        char info[128];
        snprintf(info, sizeof(info), "{\"version\":\"0.5.23\",\"internal_states\":[%s]}", states[i]);
        const struct bad_step steps[] = {
            {"/model_info", BAD_JSON, 200,
             "{\"model_path\":\"/m\",\"weight_version\":\"1\",\"has_image_understanding\":true}"},
            {"GET /server_info", BAD_JSON, 200, info},
            {"GET /update_weights_from_disk", BAD_JSON, 405, "{}"}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct ws_engine_serving now;
        struct engine e;
        engine_at(&e, bad_server_port(s));
        assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
        assert_int_equal(!!strstr(facts.missing, "SGLANG_VLM_CACHE_SIZE_MB=0"), i == 0);
        bad_server_stop(s);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_asleep),
        TEST(test_switch_by_every_pause_mode),
        TEST(test_weights_outlive_the_folder),
        TEST(test_refused_version),
        TEST(test_bad_folder_keeps_the_old_weights),
        TEST(test_key),
        TEST(test_cancelled_load),
        TEST(test_request_during_pause),
        TEST(test_stopped_while_a_request_waits),
        TEST(test_bad_options),
        TEST(test_several_schedulers),
        cmocka_unit_test(test_dies_without_a_reply),
        TEST(test_key_in_a_reply),
        TEST(test_false_success),
        TEST(test_server_that_only_knows_abort),
        TEST(test_older_model_info),
        TEST(test_sglang_that_does_not_settle),
        TEST(test_sglang_of_dummy_weights),
        TEST(test_sglang_with_tokenizer_workers),
        TEST(test_sglang_workers_without_reports),
        TEST(test_sglang_with_images),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("sglang", tests, engine_make_folders, engine_remove_folders);
}
