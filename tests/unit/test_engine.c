/* Engines: SGLang's table against the reference engine, which really loads, and against servers that
 * refuse, hang, lie and talk nonsense. */
#include "backends/engine/call.h"
#include "backends/engine/engine.h"
#include "backends/engine/load.h"
#include "backends/engine/reference/reference.h"
#include "backends/engine/update.h"
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/checkpoint.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include "transports/http/client.h"
#include "transports/http/url.h"
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
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static struct ws_error err;
static struct ws_engine_facts facts;
static struct ws_http_client *http; /* one a test: its thread must not see a fork */
static char *one, *two;             /* checkpoint folders with the seeds 1 and 2 */

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

static int make_folders(void **state)
{
    (void)state;
    one = checkpoint_folder();
    two = checkpoint_folder();
    checkpoint_write_model(one, 1);
    checkpoint_write_model(two, 2);
    return 0;
}

static int remove_folders(void **state)
{
    (void)state;
    checkpoint_remove(one);
    checkpoint_remove(two);
    return 0;
}

/* --- against the reference engine --- */

struct engine {
    struct ws_reference *reference;
    struct ws_engine_target target;
    char url[64];
};

static void start_engine(struct engine *e, struct ws_reference_options options)
{
    options.listen = "127.0.0.1:0";
    options.model_path = options.model_path ? options.model_path : one;
    err = (struct ws_error){0};
    assert_int_equal(ws_reference_new(&e->reference, &options, &err), 0);
    snprintf(e->url, sizeof(e->url), "http://127.0.0.1:%u", ws_reference_port(e->reference));
    e->target = (struct ws_engine_target){.http = http, .url = e->url, .timeout_ms = 60000};
}

static void stop_engine(struct engine *e)
{
    ws_reference_free(e->reference);
}

/* What the reference engine must answer for a model of this seed: the rule of its checksum, over bytes
 * that the test knows. */
static void expected_checksum(unsigned seed, char out[33])
{
    XXH3_state_t state;
    XXH128_hash_t whole;

    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < LENGTH(checkpoint_model); i++) {
        const struct ws_tensor *t = &checkpoint_model[i];
        unsigned char bytes[8192];
        char hex[17];
        uint64_t n;
        assert_int_equal(ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &n), 0);
        assert_true(n <= sizeof(bytes));
        for (uint64_t k = 0; k < n; k++)
            bytes[k] = checkpoint_byte(t->name, seed, k);
        snprintf(hex, sizeof(hex), "%016lx", XXH3_64bits(bytes, n));
        XXH3_128bits_update(&state, t->name, strlen(t->name) + 1);
        XXH3_128bits_update(&state, hex, 16);
    }
    whole = XXH3_128bits_digest(&state);
    snprintf(out, 33, "%016lx%016lx", whole.high64, whole.low64);
}

static void assert_holds(const struct ws_engine_target *t, unsigned seed)
{
    char expected[33], *sum;

    expected_checksum(seed, expected);
    assert_int_equal(ws_engine_sglang.checksum(t, &sum, &err), 0);
    assert_string_equal(sum, expected);
    free(sum);
}

static void assert_serves(const struct ws_engine_target *t, const char *path, const char *version)
{
    struct ws_engine_serving now;

    assert_int_equal(ws_engine_sglang.serving(t, &now, &err), 0);
    assert_string_equal(now.path, path);
    assert_string_equal(now.version, version);
}

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

static void test_switch_by_every_pause_mode(void **state)
{
    struct engine e;

    (void)state;
    start_engine(&e, (struct ws_reference_options){0});
    assert_serves(&e.target, one, "default");
    assert_holds(&e.target, 1);
    for (size_t i = 0; ws_engine_sglang.pause_modes[i]; i++) {
        e.target.pause_mode = ws_engine_sglang.pause_modes[i];
        assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
        assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), 0);
        assert_int_equal(ws_engine_sglang.resume(&e.target, &err), 0);
        assert_serves(&e.target, two, "2");
        assert_holds(&e.target, 2);
        assert_int_equal(ws_engine_sglang.load(&e.target, one, "1", &err), 0);
        assert_holds(&e.target, 1);
    }
    stop_engine(&e);
}

static void test_weights_outlive_the_folder(void **state)
{
    char *gone = checkpoint_folder();
    struct engine e;

    (void)state;
    checkpoint_write_model(gone, 3);
    start_engine(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.load(&e.target, gone, "3", &err), 0);
    checkpoint_remove(gone);
    assert_holds(&e.target, 3);
    stop_engine(&e);
}

static void test_refused_version(void **state)
{
    struct engine e;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.refuse = "2"});
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "--refuse"));
    assert_serves(&e.target, one, "default");
    assert_holds(&e.target, 1);
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "3", &err), 0);
    stop_engine(&e);
}

static void test_bad_folder_keeps_the_old_weights(void **state)
{
    char *bad = checkpoint_folder();
    struct engine e;

    (void)state;
    start_engine(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.load(&e.target, "/nonexistent/wsync", "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "Failed to get weights iterator"));
    checkpoint_write_text(bad, "model.safetensors", "this is no safetensors file");
    assert_int_equal(ws_engine_sglang.load(&e.target, bad, "2", &err), -EREMOTEIO);
    assert_serves(&e.target, one, "default");
    assert_holds(&e.target, 1);
    checkpoint_remove(bad);
    stop_engine(&e);
}

static void test_key(void **state)
{
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.api_key = "s3cret-of-the-engine"});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EACCES);
    assert_non_null(strstr(err.text, "token-file="));
    e.target.token = "s3cret-of-somebody-else";
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EACCES);
    assert_null(strstr(err.text, "s3cret"));
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EACCES);
    e.target.token = "s3cret-of-the-engine";
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), 0);
    e.target.admin_token = "s3cret-of-somebody-else"; /* is what changes it asked with, and no more */
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), 0);
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EACCES);
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EACCES);
    stop_engine(&e);
}

/* vLLM's development routes are anyone's, also with the wrong key: what is sent to them counts. */
static void test_vllm_wrong_key(void **state)
{
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.api = "vllm", .api_key = "s3cret-of-the-engine"});
    e.target.token = "s3cret-of-the-engine";
    e.target.admin_token = "s3cret-of-somebody-else";
    assert_int_equal(ws_engine_vllm.probe(&e.target, &facts, &now, &err), 0);
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2");
    stop_engine(&e);
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
    start_engine(&e, (struct ws_reference_options){.slow_ms = 2000});
    e.target.cancel[0] = &cancel;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &cancel), 0);
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -ECANCELED);
    pthread_join(thread, NULL);
    stop_engine(&e);
}

/* A request that comes while the engine is paused is answered after the resume, by the new weights. */
static void *ask(void *arg)
{
    struct engine *e = arg;
    json_t *body = json_pack("{s:s}", "text", "hello");
    struct ws_http_request request = {.url = e->url, .path = "/generate", .body = body, .timeout_ms = 30000};
    struct ws_http_reply reply;
    struct ws_error own = {0};
    char *version = NULL;

    if (!ws_http_call(http, &request, &reply, &own)) {
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
    start_engine(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, ask, &e), 0);
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), 0);
    assert_int_equal(ws_engine_sglang.resume(&e.target, &err), 0);
    pthread_join(thread, &version);
    assert_non_null(version);
    assert_string_equal(version, "2");
    free(version);
    stop_engine(&e);
}

static void test_stopped_while_a_request_waits(void **state)
{
    pthread_t thread;
    struct engine e;
    void *version;

    (void)state;
    start_engine(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, ask, &e), 0);
    usleep(50000);
    stop_engine(&e);
    pthread_join(thread, &version);
    free(version);
}

static void test_bad_options(void **state)
{
    struct ws_reference_options o = {.listen = "127.0.0.1:0", .model_path = one, .die_at = "dinner"};
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
    struct ws_reference_options o = {.listen = "127.0.0.1:0", .model_path = one, .die_at = step};
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
    e->target = (struct ws_engine_target){.http = http, .url = e->url, .timeout_ms = 20000};
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
            rc = ws_engine_sglang.load(&e.target, two, "2", &err);
        if (!rc)
            rc = ws_engine_sglang.resume(&e.target, &err);
        assert_int_equal(rc, -ECONNRESET);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EHOSTUNREACH);
        ws_http_client_free(e.target.http);
    }
}

/* --- against hostile servers --- */

static void target_of(struct engine *e, unsigned port)
{
    snprintf(e->url, sizeof(e->url), "http://127.0.0.1:%u", port);
    e->target = (struct ws_engine_target){.http = http, .url = e->url, .timeout_ms = 10000};
}

static void test_nobody_there(void **state)
{
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    target_of(&e, bad_server_dead_port());
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EHOSTUNREACH);
    assert_non_null(strstr(err.text, e.url));
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EHOSTUNREACH);
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EHOSTUNREACH);
    assert_int_equal(ws_engine_sglang.resume(&e.target, &err), -EHOSTUNREACH);
}

#define INFO_OF(path, version) "{\"model_path\":\"" path "\",\"weight_version\":\"" version "\"}"

#define OPEN_8  "[[[[[[[["
#define CLOSE_8 "]]]]]]]]"
#define DEEP                                                                                                 \
    OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 OPEN_8 CLOSE_8 CLOSE_8 CLOSE_8 CLOSE_8 CLOSE_8 CLOSE_8  \
        CLOSE_8 CLOSE_8

/* One odd answer to every request, and what probe and load make of it. */
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

static void test_odd_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(odd); i++) {
        struct bad_server *s = bad_server_start(&odd[i].step, 1);
        struct ws_engine_serving now;
        struct engine e;
        int probe, load;
        target_of(&e, bad_server_port(s));
        err = (struct ws_error){0};
        probe = ws_engine_sglang.probe(&e.target, &facts, &now, &err);
        assert_true(probe == 0 || err.text[0]);
        load = ws_engine_sglang.load(&e.target, two, "2", &err);
        assert_null(strchr(err.text, '\n'));
        assert_null(strchr(err.text, '\033'));
        if (probe != odd[i].probe || load != odd[i].load)
            fail_msg("answer %zu: probe %d, load %d, %s", i, probe, load, err.text);
        assert_int_not_equal(ws_engine_sglang.pause(&e.target, &err), 0);
        bad_server_stop(s);
    }
}

static void test_key_in_a_reply(void **state)
{
    static const struct bad_step step = {
        NULL, BAD_JSON, 400, "{\"success\":false,\"message\":\"no such key: s3cret-of-the-engine\"}"};
    struct bad_server *s = bad_server_start(&step, 1);
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    e.target.token = "s3cret-of-the-engine";
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EREMOTEIO);
    assert_null(strstr(err.text, "s3cret"));
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "no such key"));
    assert_null(strstr(err.text, "s3cret"));
    bad_server_stop(s);
}

static void test_hanging(void **state)
{
    static const struct bad_step step = {NULL, BAD_HANG, 0, NULL};
    struct bad_server *s = bad_server_start(&step, 1);
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    e.target.timeout_ms = 200;
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -ETIMEDOUT);
    bad_server_stop(s);
}

/* Whatever a call may take by itself, it ends with the time that all of them have. */
static void test_hanging_at_the_end(void **state)
{
    static const struct bad_step step = {NULL, BAD_HANG, 0, NULL};
    struct bad_server *s = bad_server_start(&step, 1);
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    e.target.timeout_ms = 86400000; /* a short call has a tenth of it */
    assert_int_equal(ws_call_within_ms(&e.target, 86400000), 86400000);
    e.target.end_ns = ws_clock_ns() + 200 * WS_MS_NS;
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -ETIMEDOUT);
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -ETIMEDOUT);
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), -ETIMEDOUT);
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
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    bad_server_stop(s);
    snprintf(reply, 6000, "{\"model_path\":\"/m\",\"weight_version\":\"%0100d\"}", 0);
    s = bad_server_start(&step, 1);
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    bad_server_stop(s);
    free(reply);
}

/* "success" is believed only when the engine then says that it serves the version. */
static void test_success_that_is_none(void **state)
{
    static const struct bad_step steps[] = {
        {"/update_weights_from_disk", BAD_JSON, 200, "{\"success\":true,\"message\":\"done\"}"},
        {"/model_info", BAD_JSON, 200, INFO_OF("/wsync/actor/2", "1")},
    };
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
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
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), 0);
    assert_int_equal(bad_server_hits(s, 0), 1);
    /* what a person asked for is not replaced */
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
    target_of(&e, bad_server_port(s));
    assert_serves(&e.target, "/m", "7");
    bad_server_stop(s);
}

/* --- the client: one thread, connections that are kept --- */

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
    static const struct bad_step step = {NULL, BAD_JSON, 200, INFO_OF("/m", "1")};
    struct bad_server *s = bad_server_start(&step, 1);
    unsigned port = bad_server_port(s);

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(get(port, (struct ws_http_request){0}), 200);
    assert_int_equal(bad_server_connections(s), 1);
    for (unsigned i = 0; i < 3; i++) /* not kept, and not instead of the one that is */
        assert_int_equal(get(port, (struct ws_http_request){.fresh = true}), 200);
    assert_int_equal(bad_server_connections(s), 4);
    assert_int_equal(get(port, (struct ws_http_request){0}), 200);
    assert_int_equal(bad_server_connections(s), 4);
    assert_int_equal(bad_server_hits(s, 0), 9);
    bad_server_stop(s);
}

/* libcurl asks again by itself when a connection that it had kept ends without a reply: never for a load or a
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
    target_of(&e, bad_server_port(s));
    e.target.templates = &templates;
    assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 1), 1);
    assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_remote.load(&e.target, two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 2), 1);
    assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 4), 1);
    e.target.sleeping = true;
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 5), 1);
    e.target.sleeping = false;
    assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 6), 2); /* may be repeated, and is */
    assert_serves(&e.target, "/m", "1");
    assert_int_equal(ws_engine_sglang.resume(&e.target, &err), -ECONNRESET);
    assert_int_equal(bad_server_hits(s, 7), 1);
    for (unsigned i = 1; i <= 2; i++) {
        const struct ws_engine_ops *ops = i == 1 ? &ws_engine_vllm : &ws_engine_remote;
        assert_serves(&e.target, "/m", "1");
        assert_int_equal(ops->resume(&e.target, &err), -ECONNRESET);
        assert_int_equal(bad_server_hits(s, 8), i);
    }
    bad_server_stop(s);
}

/* It had the request and is gone: that is not "no connection", also when libcurl found none at its second
 * try. */
static void test_dies_of_a_request(void **state)
{
    static const struct bad_step steps[] = {{"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
                                            {NULL, BAD_DIE, 0, NULL}};

    (void)state;
    for (unsigned load = 0; load < 2; load++) {
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct engine e;
        target_of(&e, bad_server_port(s));
        assert_serves(&e.target, "/m", "1");
        assert_int_equal(load ? ws_engine_sglang.load(&e.target, two, "2", &err)
                              : ws_engine_sglang.pause(&e.target, &err),
                         -ECONNRESET);
        assert_int_equal(bad_server_hits(s, 1), 1);
        assert_int_equal(bad_server_connections(s), 1 + load);
        assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EHOSTUNREACH);
        if (!load)
            assert_int_equal(ws_engine_sglang.pause(&e.target, &err), -EHOSTUNREACH);
        bad_server_stop(s);
    }
}

#define IS_PAUSED                                                                                            \
    {                                                                                                        \
        "/is_paused", BAD_JSON, 200, "{\"is_paused\":true}"                                                  \
    }

/* It said that it loaded, and was gone when it was asked what it serves: it has been told. */
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
        target_of(&e, bad_server_port(s));
        e.target.templates = &templates;
        e.target.sleeping = i == 2;
        e.target.facts = i == 3 ? &no_rpc : NULL;
        assert_int_equal(ops->load(&e.target, two, "2", &err), -ECONNRESET);
        assert_int_equal(err.code, ECONNRESET);
        assert_int_equal(bad_server_hits(s, 0), 1);
        bad_server_stop(s);
    }
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
    static const struct bad_step steps[] = {{"/hang", BAD_HANG, 0, NULL},
                                            {"/close", BAD_CLOSE, 0, NULL},
                                            {NULL, BAD_JSON, 200, INFO_OF("/m", "1")}};
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
    ws_run_at_once(call_often, callers, LENGTH(callers));
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
    static const struct bad_step steps[] = {{"/hang", BAD_HANG, 0, NULL},
                                            {NULL, BAD_JSON, 200, INFO_OF("/m", "1")}};
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
    ws_run_at_once(call_or_cancel, callers, LENGTH(callers));
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

static void test_ca_file(void **state)
{
    static const struct bad_step step = {NULL, BAD_JSON, 200, INFO_OF("/m", "1")};
    struct bad_server *s = bad_server_start(&step, 1);
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    snprintf(e.url, sizeof(e.url), "https://127.0.0.1:%u", bad_server_port(s));
    e.target.ca_file = "/nonexistent/ca.pem";
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EACCES);
    e.target.ca_file = "/etc/passwd"; /* no certificates: what counts is who opens it */
    e.target.ca_below = "/usr";
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EACCES);
    assert_non_null(strstr(err.text, "is no file below /usr"));
    e.target.ca_below = "/etc";
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), -EACCES);
    assert_non_null(strstr(err.text, "is not trusted"));
    bad_server_stop(s);
}

/* --- vLLM --- */

static void test_vllm(void **state)
{
    struct engine e;
    struct ws_engine_serving now;
    const struct ws_engine_ops *ops = &ws_engine_vllm;
    char *before, *after;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.api = "vllm"});
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(facts.release, "0.32.0");
    assert_string_equal(now.version, "default");
    assert_string_equal(now.path, one); /* what it was started with is the way back */
    assert_non_null(strstr(facts.lacks, "/finish_weight_update"));
    e.target.facts = &facts;
    assert_int_equal(ops->checksum(&e.target, &before, &err), 0);
    for (size_t i = 0; ops->pause_modes[i]; i++) {
        e.target.pause_mode = ops->pause_modes[i];
        assert_int_equal(ops->pause(&e.target, &err), 0);
        assert_int_equal(ops->serving(&e.target, &now, &err), 0);
        assert_true(now.paused);
        assert_int_equal(ops->load(&e.target, two, "2", &err), 0);
        assert_int_equal(ops->resume(&e.target, &err), 0);
        assert_int_equal(ops->serving(&e.target, &now, &err), 0);
        assert_false(now.paused);
        assert_string_equal(now.version, "2");
        assert_int_equal(ops->checksum(&e.target, &after, &err), 0);
        assert_string_not_equal(before, after);
        free(after);
    }
    assert_int_equal(ops->load(&e.target, "/nonexistent", "3", &err), -EREMOTEIO);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2"); /* recorded only after a load */
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.path, ""); /* it does not say what it loaded last */
    e.target.cache = WS_CACHE_EXTERNAL;
    assert_int_equal(ops->load(&e.target, one, "4", &err), 0);
    free(before);
    stop_engine(&e);
}

static int plain(const struct engine *e, const char *path)
{
    struct ws_http_reply reply;
    json_t *body = json_object();
    int rc = ws_http_call(
        http, &(struct ws_http_request){.url = e->url, .path = path, .body = body, .timeout_ms = 5000},
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
    start_engine(&e, (struct ws_reference_options){.api = "vllm"});
    assert_int_equal(plain(&e, "/sleep?level=2"), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_true(now.sleeping);
    e.target.sleeping = now.sleeping;
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    for (unsigned i = 0; i < 2; i++) { /* woken for it; a second load, as one that goes back, ends no pause */
        assert_int_equal(ws_engine_vllm.load(&e.target, i ? one : two, "2", &err), 0);
        assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
        assert_true(now.paused);
        assert_true(now.sleeping); /* in part */
    }
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_false(now.sleeping || now.paused);
    assert_int_equal(plain(&e, "/v1/completions"), 0); /* it would have died without its cache's memory */
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_true(now.paused);
    assert_false(now.sleeping || now.sleep_unknown);
    stop_engine(&e);
}

/* Paused, and maybe asleep: only its metrics could say. A reply that says nothing is not one that denies. */
static void test_vllm_does_not_say_that_it_sleeps(void **state)
{
    static const struct {
        const char *sleeping, *metrics;
        unsigned status; /* of the metrics */
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
        target_of(&e, bad_server_port(s));
        assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), cases[i].rc);
        if (cases[i].rc == 0) {
            assert_int_equal(now.sleeping, cases[i].asleep);
            assert_int_equal(now.sleep_unknown, cases[i].unknown);
        }
        bad_server_stop(s);
    }
}

/* A `timeout` of its own makes vLLM's workers answer the call after. */
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
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), 0);
    bad_server_stop(s);
}

/* The second worker's reply is that to the call before. */
static void test_vllm_workers_out_of_step(void **state)
{
    static const struct bad_step steps[] = {
        IS_PAUSED,
        {"reload_weights", BAD_JSON, 200, "{\"results\":[null,null]}"},
        {"get_supported_tasks", BAD_JSON, 200, "{\"results\":[\"generate\",null]}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "restart it"));
    bad_server_stop(s);
}

/* Nobody waits any more for the pause that is under way: a resume is refused until it is done. */
static void test_vllm_resume_in_a_pause(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.api = "vllm", .refuse_resumes = 5});
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.serving(&e.target, &now, &err), 0);
    assert_false(now.paused);
    stop_engine(&e);
    start_engine(&e, (struct ws_reference_options){.api = "vllm", .refuse_resumes = 1000000});
    e.target.short_ms = 100;
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "still in flight"));
    stop_engine(&e);
}

static void ask_for_an_image(const struct engine *e)
{
    struct ws_http_reply reply;
    json_t *body = json_pack("{s:s}", "image", "a cat");
    struct ws_http_request request = {
        .url = e->url, .path = "/v1/completions", .body = body, .timeout_ms = 30000};
    assert_int_equal(ws_http_call(http, &request, &reply, &err), 0);
    assert_int_equal(reply.status, 200);
    ws_http_reply_release(&reply);
    json_decref(body);
}

/* The scheduler and the workers forget an image together, also with cache=keep: else it dies of the next. */
static void test_vllm_images(void **state)
{
    struct engine e;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.api = "vllm"});
    e.target.cache = WS_CACHE_KEEP;
    ask_for_an_image(&e);
    assert_int_equal(ws_engine_vllm.pause(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), 0);
    assert_int_equal(ws_engine_vllm.flush(&e.target, &err), 0);
    assert_int_equal(ws_engine_vllm.resume(&e.target, &err), 0);
    ask_for_an_image(&e);
    stop_engine(&e);
}

/* --- a load that is believed --- */

static const char *const both[] = {"sglang", "vllm"};

/* It timed out, and the engine has named the version all along: that is no success. When the load is over,
 * the next one is. */
static void test_timed_out_under_its_own_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(both); i++) {
        const struct ws_engine_ops *ops = ws_engine_find(both[i]);
        struct engine e;
        struct ws_engine_serving now;
        bool told = false;
        start_engine(&e, (struct ws_reference_options){.api = both[i], .slow_ms = 1500});
        assert_int_equal(ops->label(&e.target, "2", &err), 0);
        assert_int_equal(ops->pause(&e.target, &err), 0);
        e.target.timeout_ms = 300;
        assert_int_equal(ws_engine_load(ops, &e.target, two, "2", &told, &err), -ETIMEDOUT);
        e.target.timeout_ms = 60000;
        assert_int_equal(ws_engine_load(ops, &e.target, two, "2", &told, &err), 0);
        assert_int_equal(ops->serving(&e.target, &now, &err), 0);
        assert_string_equal(now.version, "2");
        assert_int_equal(ws_engine_confirm(ops, &e.target, "2", &err), 0);
        assert_int_equal(ws_engine_confirm(ops, &e.target, "3", &err), -EREMOTEIO);
        stop_engine(&e);
    }
}

/* Without a mount a version has no number: every load is the "default" one, as is what it was started with.
 */
static void test_update_under_one_name(void **state)
{
    char *bad = checkpoint_folder();
    (void)state;
    checkpoint_write_text(bad, "model.safetensors", "this is no safetensors file");
    const struct ws_engine_ops *ops = &ws_engine_vllm;
    struct engine e;
    struct ws_engine_serving now;
    start_engine(&e, (struct ws_reference_options){.api = "vllm", .slow_ms = 1500});
    e.target.timeout_ms = 300;
    assert_int_equal(ws_engine_update(ops, &e.target, bad, "default", NULL, &err), -ETIMEDOUT);
    e.target.timeout_ms = 60000;
    assert_int_equal(ws_engine_update(ops, &e.target, two, "default", NULL, &err), 0);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "default");
    stop_engine(&e);
    checkpoint_remove(bad);
}

/* One that cannot be told another version: what it says after a lost reply proves nothing. */
static void test_lost_reply_without_a_label(void **state)
{
    static const struct bad_step steps[] = {{"/update_weights_from_disk", BAD_CLOSE, 0, NULL},
                                            {"/model_info", BAD_JSON, 200, INFO_OF("/m", "2")}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    bool told = false;

    (void)state;
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", &told, &err), -ECONNRESET);
    assert_true(told);
    bad_server_stop(s);
}

/* An engine that says `named`, takes another label, and of which a load is never heard. */
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

static void test_load_that_is_never_heard(void **state)
{
    static const struct ws_engine_ops ops = {.serving = say_named, .label = take_label, .load = sleep_on};
    struct engine e = {0};
    bool told = false;

    (void)state;
    strcpy(named, "2");
    label_result = 0;
    assert_int_equal(ws_engine_load(&ops, &e.target, "/m", "2", &told, &err), -EAGAIN);
    assert_false(told);
    assert_string_equal(named, "2"); /* it goes on as it was, and says so */
    label_result = -ETIMEDOUT;
    assert_int_equal(ws_engine_load(&ops, &e.target, "/m", "2", &told, &err), -ETIMEDOUT);
    assert_false(told);
    assert_string_equal(named, "2");
    told = true; /* it has heard of another one: who knows what it holds */
    label_result = 0;
    assert_int_equal(ws_engine_load(&ops, &e.target, "/m", "2", &told, &err), -EAGAIN);
    assert_false(told);
    assert_string_equal(named, "loading 2");
}

/* One that answers with a failure does not say that the load before it is over. */
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
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", &told, &err), -EREMOTEIO);
    assert_false(told);
    assert_int_equal(bad_server_hits(s, 1), 0);
    bad_server_stop(s);
}

/* One that takes another version and goes on to say this one, as schedulers that never hear of a label. */
static void test_lost_reply_with_a_label_of_no_effect(void **state)
{
    static const struct bad_step steps[] = {{"/update_weights_from_disk", BAD_CLOSE, 0, NULL},
                                            {"/update_weight_version", BAD_JSON, 200, "{\"success\":true}"},
                                            {"/model_info", BAD_JSON, 200, INFO_OF("/m", "2")}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    bool told = false;

    (void)state;
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, "/m", "2", &told, &err), -ECONNRESET);
    assert_true(told);
    assert_int_equal(bad_server_hits(s, 1), 1);
    bad_server_stop(s);
}

/* --- what SGLang was started with --- */

static void test_sglang_of_dummy_weights(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.load_format = "dummy"});
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EREMOTEIO);
    e.target.load_format = "auto";
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), 0);
    e.target.load_format = NULL;
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    e.target.facts = &facts;
    assert_int_equal(ws_engine_sglang.load(&e.target, one, "1", &err), 0);
    e.target.load_format = "dummy"; /* what a person asked for is not replaced */
    assert_int_equal(ws_engine_sglang.load(&e.target, two, "2", &err), -EREMOTEIO);
    stop_engine(&e);
}

/* Whoever answers was not told of the load: the schedulers were. */
static void test_sglang_with_tokenizer_workers(void **state)
{
    struct engine e;
    struct ws_engine_serving now;
    bool told = false;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.workers = 2});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.path, one);
    e.target.facts = &facts;
    assert_int_equal(ws_engine_load(&ws_engine_sglang, &e.target, two, "2", &told, &err), 0);
    assert_int_equal(ws_engine_sglang.serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2");
    assert_string_equal(now.path, "");
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.version, "2");
    assert_string_equal(now.path, ""); /* each worker names its own */
    assert_holds(&e.target, 2);
    e.target.pause_mode = "abort";
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "--tokenizer-worker-num"));
    stop_engine(&e);
}

/* Several workers of a release whose schedulers do not say what they hold. */
static void test_sglang_workers_that_cannot_say(void **state)
{
    static const struct bad_step steps[] = {
        {"/model_info", BAD_JSON, 200, INFO_OF("/m", "1")},
        {"GET /server_info", BAD_JSON, 200, "{\"tokenizer_worker_num\":4,\"internal_states\":[{}]}"},
        {"GET /update_weights_from_disk", BAD_JSON, 405, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_serving now;
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "--tokenizer-worker-num 1"));
    bad_server_stop(s);
}

/* Who sees images wants the plug-in, or no cache of them. */
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
        target_of(&e, bad_server_port(s));
        assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
        assert_int_equal(!!strstr(facts.lacks, "SGLANG_VLM_CACHE_SIZE_MB=0"), i == 0);
        bad_server_stop(s);
    }
}

/* What an engine cannot say for a moment, as behind a gateway, is not that it has no such route, nor that it
 * was started as by default. */
static void test_facts_that_are_not_told(void **state)
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
        target_of(&e, bad_server_port(s));
        assert_int_equal(cases[i].ops->probe(&e.target, &facts, &now, &err), -EREMOTEIO);
        assert_int_equal(bad_server_hits(s, cases[i].n - 1), 1);
        bad_server_stop(s);
    }
}

/* Weights that cannot be woken were never told of a load: nothing has changed. */
static void test_vllm_stays_asleep(void **state)
{
    static const struct bad_step steps[] = {
        {"POST /wake_up", BAD_JSON, 500, "{\"error\":\"no memory for the weights\"}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
    e.target.sleeping = true;
    assert_int_equal(ws_engine_vllm.load(&e.target, two, "2", &err), -EAGAIN);
    assert_non_null(strstr(err.text, "no memory for the weights"));
    assert_non_null(strstr(err.text, "wake it and try again"));
    bad_server_stop(s);
}

/* Each kind says of the other's server that it is none of its kind, and what to do. */
static void test_wrong_kind(void **state)
{
    struct engine e;
    struct ws_engine_serving now;

    (void)state;
    start_engine(&e, (struct ws_reference_options){.api = "vllm"});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    stop_engine(&e);
    start_engine(&e, (struct ws_reference_options){0});
    assert_int_equal(ws_engine_vllm.probe(&e.target, &facts, &now, &err), -EPROTO);
    stop_engine(&e);
}

/* A vLLM that was started without its development mode. */
static void test_vllm_without_routes(void **state)
{
    static const struct bad_step steps[] = {{"GET /version", BAD_JSON, 200, "{\"version\":\"0.30\"}"}};
    struct ws_engine_serving now;
    char url[64];
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_target t = {.http = http, .url = url, .timeout_ms = 5000};

    (void)state;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(s));
    assert_int_equal(ws_engine_vllm.probe(&t, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, "VLLM_SERVER_DEV_MODE=1"));
    bad_server_stop(s);
}

/* A flush is believed where it says so, or has no body as that of older releases. */
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
            .http = http, .url = url, .timeout_ms = 5000, .short_ms = 300, .templates = &templates};
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(s));
        assert_int_equal(ws_engine_vllm.flush(&t, &err), cases[i].vllm);
        assert_int_equal(ws_engine_remote.flush(&t, &err), cases[i].remote);
        bad_server_stop(s);
    }
}

/* An engine has two keys, and may repeat the one that it was not asked with. */
static void test_other_key_is_not_shown(void **state)
{
    static const struct bad_step steps[] = {
        {"POST", BAD_JSON, 500, "{\"error\":\"not s3cret-of-all nor s3cret-of-admin\"}"}};
    const struct ws_engine_templates templates = {.resume = "POST:/resume"};
    const struct ws_engine_ops *const kinds[] = {&ws_engine_sglang, &ws_engine_vllm, &ws_engine_remote};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;

    (void)state;
    target_of(&e, bad_server_port(s));
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

/* --- remote --- */

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
    start_engine(&e, (struct ws_reference_options){.refuse = "7"});
    e.target.templates = &t;
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(now.version, "default");
    assert_int_equal(ops->pause(&e.target, &err), 0);
    assert_int_equal(ops->load(&e.target, two, "a \"2\"", &err), 0); /* quoted as JSON wants it */
    assert_int_equal(ops->resume(&e.target, &err), 0);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "a \"2\"");
    assert_holds(&e.target, 2);
    assert_int_equal(ops->load(&e.target, one, "7", &err), -EREMOTEIO);
    t.load = "POST:/flush_cache"; /* says 200 and loads nothing: not believed */
    assert_int_equal(ops->load(&e.target, one, "8", &err), -EREMOTEIO);
    t.load = "PUT:/x";
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), -EINVAL);
    t.load = NULL;
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), -EINVAL);
    t.load = "POST:/x:{no JSON}";
    assert_int_equal(ops->load(&e.target, one, "9", &err), -EINVAL);
    t.serving = "GET:/model_info:.nothing.there";
    assert_int_equal(ops->serving(&e.target, &now, &err), -EPROTO);
    stop_engine(&e);
}

/* --- addresses --- */

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
        TEST(test_find),
        TEST(test_switch_by_every_pause_mode),
        TEST(test_weights_outlive_the_folder),
        TEST(test_refused_version),
        TEST(test_bad_folder_keeps_the_old_weights),
        TEST(test_key),
        TEST(test_vllm_wrong_key),
        TEST(test_key_in_a_reply),
        TEST(test_cancelled_load),
        TEST(test_request_during_pause),
        TEST(test_stopped_while_a_request_waits),
        TEST(test_bad_options),
        cmocka_unit_test(test_dies_without_a_reply),
        TEST(test_nobody_there),
        TEST(test_odd_answers),
        TEST(test_hanging),
        TEST(test_hanging_at_the_end),
        TEST(test_long_fields),
        TEST(test_success_that_is_none),
        TEST(test_server_that_only_knows_abort),
        TEST(test_older_model_info),
        TEST(test_connection_is_kept),
        TEST(test_load_is_sent_once),
        TEST(test_dies_of_a_request),
        TEST(test_dies_after_a_load),
        TEST(test_many_callers),
        TEST(test_cancel_one_of_many),
        TEST(test_client_without_calls),
        TEST(test_ca_file),
        TEST(test_vllm),
        TEST(test_vllm_asleep),
        TEST(test_vllm_stays_asleep),
        TEST(test_vllm_does_not_say_that_it_sleeps),
        TEST(test_vllm_reload_has_no_timeout),
        TEST(test_vllm_workers_out_of_step),
        TEST(test_vllm_resume_in_a_pause),
        TEST(test_vllm_images),
        TEST(test_timed_out_under_its_own_name),
        TEST(test_update_under_one_name),
        TEST(test_lost_reply_without_a_label),
        TEST(test_load_that_is_never_heard),
        TEST(test_sglang_that_does_not_settle),
        TEST(test_lost_reply_with_a_label_of_no_effect),
        TEST(test_sglang_of_dummy_weights),
        TEST(test_sglang_with_tokenizer_workers),
        TEST(test_sglang_workers_that_cannot_say),
        TEST(test_sglang_with_images),
        TEST(test_facts_that_are_not_told),
        TEST(test_wrong_kind),
        TEST(test_vllm_without_routes),
        TEST(test_flush_answers),
        TEST(test_other_key_is_not_shown),
        TEST(test_remote),
        TEST(test_urls),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("engine", tests, make_folders, remove_folders);
}
