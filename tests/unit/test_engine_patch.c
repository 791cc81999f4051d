/* Stages of a patch: what workers answer is believed only where all of them say so, in step; whatever else may have been written
 * is undone, and what was not offered or not sent has changed nothing. */
#include "backends/engine/patch.h"
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

#define LENGTH(a)       (sizeof(a) / sizeof((a)[0]))
#define DIGEST          ",\"digest\":\"00112233445566778899aabbccddeeff\""
#define RESULTS(all)    "{\"results\":[" all "]}"
#define AND             ","
#define PUT(rank, more) "{\"rank\":" rank ",\"stage\":\"put\"," more "}"
#define DID             "\"ok\":true,\"why\":\"\",\"wrote\":true,\"seconds\":0.25"
#define REFUSED         "\"ok\":false,\"why\":\"moved\",\"wrote\":false"
#define BROKE           "\"ok\":false,\"why\":\"gone\",\"wrote\":true"
#define RECORDED                                                                                             \
    {"/update_weight_version", BAD_JSON, 200, "{\"success\":true}"},                                         \
    {                                                                                                        \
        "/weight_info", BAD_JSON, 200, "{\"weight_version\":\"42@r\"}"                                       \
    }

static struct ws_error err;

static struct ws_engine_patch ask(enum ws_engine_patch_stage stage)
{
    return (struct ws_engine_patch){.stage = stage,
                                    .plan = "p1",
                                    .target = "/w/actor/42",
                                    .base = "/w/actor/41@r",
                                    .version = "42@r",
                                    .path = "/w/actor/42"};
}

static int run(const struct ws_engine_ops *ops, const struct bad_step *steps, size_t n,
               enum ws_engine_patch_stage stage, struct ws_engine_patch_reply *out)
{
    struct bad_step all[8] = {{"wsync_serving", BAD_JSON, 200, RESULTS("{\"patches\":true}")}};
    assert_true(n < LENGTH(all));
    memcpy(all + 1, steps, n * sizeof(steps[0]));
    struct bad_server *s = bad_server_start(all, n + 1);
    const struct ws_engine_patch q = ask(stage);
    struct engine e;
    engine_at(&e, bad_server_port(s));
    e.target.timeout_ms = 3000;
    const int rc = ops->patch(&e.target, &q, out, &err);
    bad_server_stop(s);
    return rc;
}

static void test_workers_answers(void **state)
{
    static const struct bad_step good[] = {
        {"/collective_rpc", BAD_JSON, 200,
         RESULTS("{\"rank\":0,\"stage\":\"state\",\"ready\":true,\"patchable\":0.9,\"whole\":[\"a\",\"b\"],"
                 "\"plan\":null,\"put\":false,\"served\":{\"version\":41,\"run\":\"r\"" DIGEST "}}" AND
                 "{\"rank\":1,\"stage\":\"state\",\"ready\":true,\"patchable\":0.5,\"whole\":[\"b\",\"c\"],"
                 "\"plan\":\"old\",\"put\":true,\"served\":{\"version\":\"41\",\"run\":\"r\"" DIGEST "}}")}};
    static const struct bad_step prepared[] = {
        {"\"stage\":\"prepare\",\"plan\":\"p1\",\"target\":\"/w/actor/42\",\"base\":\"/w/actor/41@r\"",
         BAD_JSON, 200,
         RESULTS("{\"rank\":0,\"stage\":\"prepare\",\"ok\":true,\"changed\":3,\"bytes\":40}" AND
                 "{\"rank\":7,\"stage\":\"prepare\",\"ok\":false,\"why\":\"not recorded\",\"changed\":-5}" AND
                 "{\"rank\":8,\"stage\":\"prepare\",\"ok\":false,\"why\":\"nor here\"}")}};
    static const struct bad_step mixed[] = {
        {"/collective_rpc", BAD_JSON, 200,
         RESULTS(
             "{\"rank\":0,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":41,\"run\":\"r\"" DIGEST
             "}}" AND
             "{\"rank\":1,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":40,\"run\":\"r\"" DIGEST
             "}}" AND
             "{\"rank\":2,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":41,\"run\":\"r\"" DIGEST
             "}}")}};
    static const char *const others[] = {
        RESULTS(
            "{\"rank\":0,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":41,\"run\":\"r\"" DIGEST
            "}}" AND
            "{\"rank\":1,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":41,\"run\":\"r\","
            "\"digest\":\"10112233445566778899aabbccddeeff\"}}"),
        RESULTS("{\"rank\":0,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":41,\"run\":\"r\"}}"),
        RESULTS("{\"rank\":0,\"stage\":\"state\",\"ready\":true,\"served\":{\"version\":41,\"run\":\"r\","
                "\"digest\":\"00\"}}")};
    struct ws_engine_patch_reply r;
    (void)state;
    assert_int_equal(run(&ws_engine_vllm, mixed, LENGTH(mixed), WS_PATCH_STATE, &r), 0);
    assert_false(r.ok);
    assert_string_equal(r.why, "its workers do not hold one version");
    for (size_t i = 0; i < LENGTH(others); i++) {
        const struct bad_step step = {"/collective_rpc", BAD_JSON, 200, others[i]};
        assert_int_equal(run(&ws_engine_vllm, &step, 1, WS_PATCH_STATE, &r), 0);
        assert_int_equal(r.ok, i > 0);
        assert_string_equal(r.served.version, "");
    }
    assert_int_equal(run(&ws_engine_vllm, good, LENGTH(good), WS_PATCH_STATE, &r), 0);
    assert_true(r.ok && r.put && r.workers == 2);
    assert_true(r.patchable > 0.49 && r.patchable < 0.51);
    assert_string_equal(r.whole, "a,b,c");
    assert_string_equal(r.plan, "old");
    assert_string_equal(r.served.version, "41@r");
    assert_string_equal(r.served.digest, "00112233445566778899aabbccddeeff");
    assert_int_equal(run(&ws_engine_vllm, prepared, LENGTH(prepared), WS_PATCH_PREPARE, &r), 0);
    assert_false(r.ok);
    assert_string_equal(r.why, "rank 7: not recorded");
    assert_int_equal(r.changed, 3);
    assert_int_equal(r.bytes, 40);
}

/* The workers of a patch that is asked of a server which has none, or whose workers are out of step. */
static void test_no_answers(void **state)
{
    static const struct {
        unsigned status;
        const char *reply;
        int rc;
    } cases[] = {{404, "{}", -EPROTO},
                 {500, "{\"error\":{\"message\":\"no attribute wsync_patch\"}}", -EREMOTEIO},
                 {400, "{\"error\":\"x\"}", -EPROTO},
                 {200, "{}", -EPROTO},
                 {200, "[]", -EPROTO},
                 {200, RESULTS(""), -EPROTO},
                 {200, RESULTS("null"), -EPROTO},
                 {200, RESULTS("3" AND "[]"), -EPROTO},
                 {200, RESULTS("{\"ok\":true}"), -EPROTO},
                 {200, RESULTS("{\"rank\":0,\"stage\":\"prepare\",\"ok\":true}"), -EPROTO},
                 {200, RESULTS("{\"rank\":0,\"stage\":\"state\",\"ready\":true}" AND "null"), -EPROTO}};
    struct ws_engine_patch_reply r;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step step = {"/collective_rpc", BAD_JSON, cases[i].status, cases[i].reply};
        if (run(&ws_engine_vllm, &step, 1, WS_PATCH_STATE, &r) != cases[i].rc)
            fail_msg("answer %zu: %s", i, err.text);
    }
}

/* Workers with an older package are not asked what they do not know. */
static void test_older_package(void **state)
{
    static const char *const replies[] = {RESULTS("{\"version\":41}"), RESULTS("{\"patches\":true}" AND "{}"),
                                          RESULTS("")};
    struct ws_engine_patch_reply r;
    (void)state;
    for (size_t i = 0; i < LENGTH(replies); i++) {
        const struct bad_step steps[] = {{"wsync_serving", BAD_JSON, 200, replies[i]},
                                         {"wsync_patch", BAD_JSON, 500, "{}"}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        const struct ws_engine_patch q = ask(WS_PATCH_STATE);
        struct engine e;
        engine_at(&e, bad_server_port(s));
        assert_int_equal(ws_engine_vllm.patch(&e.target, &q, &r, &err), -EPROTO);
        assert_int_equal(bad_server_hits(s, 1), 0);
        bad_server_stop(s);
    }
}

/* Texts that are too long, of other types or of hostile contents end in what fits. */
static void test_hostile_answers(void **state)
{
    char *reply = NULL, *text = malloc(20001);
    struct ws_engine_patch_reply r;
    (void)state;
    memset(text, 'x', 20000);
    text[20000] = 0;
    assert_true(
        asprintf(
            &reply,
            RESULTS("{\"rank\":\"0\",\"stage\":\"state\",\"ready\":\"yes\",\"why\":\"%s\",\"plan\":\"%s\","
                    "\"whole\":[\"%s\",3,\"ok\"],\"put\":1,\"patchable\":\"all\",\"changed\":1e300,"
                    "\"served\":{\"version\":-1,\"run\":\"%s\"}}"),
            text, text, text, text) > 0);
    const struct bad_step step = {"/collective_rpc", BAD_JSON, 200, reply};
    assert_int_equal(run(&ws_engine_vllm, &step, 1, WS_PATCH_STATE, &r), 0);
    assert_false(r.ok || r.put);
    assert_true(strlen(r.why) > 100 && r.wrote);
    assert_string_equal(r.plan, "");
    assert_string_equal(r.served.version, "");
    assert_string_equal(r.whole, "ok");
    assert_int_equal(r.changed, 0);
    free(reply);
    free(text);
}

static void test_sglang(void **state)
{
    static const struct bad_step good[] = {
        {"wsync_patch:{\\\"stage\\\":\\\"put\\\",\\\"plan\\\":\\\"p1\\\"}", BAD_JSON, 200,
         "{\"success\":true,\"ranks\":[{\"checksums\":{\"wsync_patch\":\"{\\\"rank\\\":0,\\\"stage\\\":"
         "\\\"put\\\",\\\"ok\\\":true}\"}}]}"},
        {"\"manifest\":{\"wsync_patch\":{\"stage\":\"note\",\"plan\":\"p1\"}}", BAD_JSON, 200,
         "{\"success\":true}"},
        {"/model_info", BAD_JSON, 200, INFO_OF("/w/actor/42", "42@r")}};
    static const char *const others[] = {
        "{\"success\":false,\"message\":\"Unsupported action\"}", "{\"success\":true}",
        "{\"success\":true,\"ranks\":[{\"checksums\":{\"a\":\"ff\"}}]}",
        "{\"success\":true,\"ranks\":[{\"checksums\":{\"wsync_patch\":\"{\"}}]}",
        "{\"success\":true,\"ranks\":[{\"checksums\":{\"wsync_patch\":\"{\\\"stage\\\":\\\"put\\\","
        "\\\"ok\\\":true}\"}},3]}"};
    struct ws_engine_patch_reply r;
    (void)state;
    assert_int_equal(run(&ws_engine_sglang, good, LENGTH(good), WS_PATCH_PUT, &r), 0);
    assert_true(r.ok && r.workers == 1);
    for (size_t i = 0; i < LENGTH(others); i++) {
        const struct bad_step step = {"/weights_checker", BAD_JSON, 200, others[i]};
        assert_int_equal(run(&ws_engine_sglang, &step, 1, WS_PATCH_PUT, &r), -EPROTO);
    }
    /* All have it, and the server takes no note of it, or of something else. */
    struct bad_step steps[3] = {good[0], {good[1].match, BAD_JSON, 400, "{\"success\":false}"}, good[2]};
    assert_int_equal(run(&ws_engine_sglang, steps, 3, WS_PATCH_PUT, &r), -EREMOTEIO);
    steps[1] = good[1];
    steps[2].reply = INFO_OF("/w/actor/41", "41@r");
    assert_int_equal(run(&ws_engine_sglang, steps, 3, WS_PATCH_PUT, &r), -EREMOTEIO);
    assert_true(r.ok && r.wrote);
}

/* --- what has become of it --- */

static enum ws_engine_patch_outcome outcome(const struct bad_step *step, enum ws_engine_patch_stage stage,
                                            unsigned *hits)
{
    const struct bad_step steps[] = {*step, IS_PAUSED, RECORDED};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    const struct ws_engine_patch q = ask(stage);
    struct engine e;
    double seconds = 0;
    engine_at(&e, bad_server_port(s));
    e.target.timeout_ms = 1000;
    const enum ws_engine_patch_outcome o =
        stage == WS_PATCH_PUT ? ws_engine_patch_put(&ws_engine_vllm, &e.target, &q, 2, &seconds, &err)
                              : ws_engine_patch_undo(&ws_engine_vllm, &e.target, &q, 2, &err);
    *hits = bad_server_hits(s, 0);
    bad_server_stop(s);
    return o;
}

static void test_put(void **state)
{
    static const struct {
        struct bad_step step;
        enum ws_engine_patch_outcome o;
    } cases[] = {
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", DID) AND PUT("1", DID))}, WS_PATCH_DONE},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", REFUSED) AND PUT("1", REFUSED))},
         WS_PATCH_NOTHING},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", DID) AND PUT("1", REFUSED))}, WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", REFUSED) AND PUT("1", BROKE))},
         WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", "\"ok\":false") AND PUT("1", REFUSED))},
         WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", DID))}, WS_PATCH_UNKNOWN}, /* there were two */
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", REFUSED))}, WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS("{}" AND "{}")},
         WS_PATCH_UNKNOWN}, /* they answer something else */
        {{"/collective_rpc", BAD_JSON, 404, "{}"}, WS_PATCH_NOTHING},
        {{"/collective_rpc", BAD_JSON, 400, "{}"}, WS_PATCH_NOTHING},
        {{"/collective_rpc", BAD_JSON, 500, "{}"}, WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_JSON, 200, "<html>"}, WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_CLOSE, 0, NULL}, WS_PATCH_UNKNOWN},
        {{"/collective_rpc", BAD_HANG, 0, NULL}, WS_PATCH_UNKNOWN},
        {{"/is_paused", BAD_JSON, 500, "{}"}, WS_PATCH_NOTHING}, /* it was not sent */
        {{"/update_weight_version", BAD_JSON, 500, "{}"}, WS_PATCH_UNKNOWN},
        {{"/weight_info", BAD_JSON, 200, "{\"weight_version\":\"41@r\"}"}, WS_PATCH_UNKNOWN},
    };
    unsigned hits;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct bad_step steps[5] = {cases[i].step, cases[0].step, IS_PAUSED, RECORDED};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        const struct ws_engine_patch q = ask(WS_PATCH_PUT);
        struct engine e;
        double seconds;
        engine_at(&e, bad_server_port(s));
        e.target.timeout_ms = 1000;
        const enum ws_engine_patch_outcome o =
            ws_engine_patch_put(&ws_engine_vllm, &e.target, &q, 2, &seconds, &err);
        if (o != cases[i].o)
            fail_msg("answer %zu: outcome %d, not %d: %s", i, o, cases[i].o, err.text);
        if (bad_server_hits(s, 0) > 1)
            fail_msg("answer %zu: a put was sent %u times", i, bad_server_hits(s, 0));
        if (o == WS_PATCH_DONE)
            assert_true(seconds > 0.24 && seconds < 0.26);
        bad_server_stop(s);
    }
    assert_int_equal(outcome(&(struct bad_step){"/collective_rpc", BAD_HANG, 0, NULL}, WS_PATCH_PUT, &hits),
                     WS_PATCH_UNKNOWN);
    assert_int_equal(hits, 1);
}

/* An undo that was not answered is sent again; one that was answered is not. */
static void test_undo(void **state)
{
    static const struct {
        struct bad_step step;
        enum ws_engine_patch_outcome o;
        unsigned hits;
    } cases[] = {
        {{"/collective_rpc", BAD_JSON, 200,
          RESULTS("{\"rank\":0,\"stage\":\"undo\",\"ok\":true}" AND
                  "{\"rank\":1,\"stage\":\"undo\",\"ok\":true}")},
         WS_PATCH_DONE,
         1},
        {{"/collective_rpc", BAD_JSON, 200,
          RESULTS("{\"rank\":0,\"stage\":\"undo\",\"ok\":true}" AND
                  "{\"rank\":1,\"stage\":\"undo\",\"ok\":false}")},
         WS_PATCH_UNKNOWN,
         1},
        {{"/collective_rpc", BAD_CLOSE, 0, NULL}, WS_PATCH_UNKNOWN, 2},
        {{"/collective_rpc", BAD_JSON, 200, RESULTS(PUT("0", DID) AND PUT("1", DID))},
         WS_PATCH_UNKNOWN,
         2}, /* late */
        {{"/collective_rpc", BAD_JSON, 404, "{}"}, WS_PATCH_NOTHING, 1},
    };
    unsigned hits;
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const enum ws_engine_patch_outcome o = outcome(&cases[i].step, WS_PATCH_UNDO, &hits);
        if (o != cases[i].o || hits != cases[i].hits)
            fail_msg("answer %zu: outcome %d after %u: %s", i, o, hits, err.text);
    }
}

static void test_remote(void **state)
{
    static const struct bad_step steps[] = {
        {"{\"stage\":\"prepare\",\"plan\":\"p1\",\"path\":\"/w/actor/42\",\"base\":\"/w/actor/41@r\","
         "\"version\":\"42@r\"}",
         BAD_JSON, 200, RESULTS("{\"rank\":0,\"stage\":\"prepare\",\"ok\":true}")},
        {"\"stage\":\"put\"", BAD_JSON, 200, RESULTS("{\"rank\":0,\"stage\":\"put\",\"ok\":true}")},
        {"GET /version", BAD_JSON, 200, "{\"version\":\"41@r\"}"}};
    struct ws_engine_templates templates = {
        .load = "POST:/reload:{\"path\":\"{path}\",\"version\":\"{version}\"}",
        .serving = "GET:/version:.version",
        .patch = "POST:/"
                 "patch:{\"stage\":\"{stage}\",\"plan\":\"{plan}\",\"path\":\"{path}\",\"base\":\"{base}\","
                 "\"version\":\"{version}\"}"};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_patch_reply r;
    struct ws_engine_patch q = ask(WS_PATCH_PREPARE);
    struct engine e;
    (void)state;
    engine_at(&e, bad_server_port(s));
    e.target.templates = &templates;
    assert_int_equal(ws_engine_remote.patch(&e.target, &q, &r, &err), 0);
    assert_true(r.ok);
    q.stage = WS_PATCH_PUT;
    assert_int_equal(ws_engine_remote.patch(&e.target, &q, &r, &err),
                     -EREMOTEIO); /* it says that it serves 41 */
    templates.serving = NULL;
    assert_int_equal(ws_engine_remote.patch(&e.target, &q, &r, &err), 0);
    templates.patch = NULL;
    assert_int_equal(ws_engine_remote.patch(&e.target, &q, &r, &err), -EPROTO);
    bad_server_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_workers_answers, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_no_answers, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_older_package, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_hostile_answers, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_sglang, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_put, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_undo, engine_setup, engine_teardown),
        cmocka_unit_test_setup_teardown(test_remote, engine_setup, engine_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
