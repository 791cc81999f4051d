/* Adapters and draft models by the tables of vLLM and SGLang, with reference engines, which really read them, and with
 * servers that answer otherwise.
 * sanitizers: address thread */
#include "tests/fixtures/bad_server.h"
#include "tests/fixtures/checkpoint.h"
#include "tests/fixtures/engine.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define CONFIG                                                                                               \
    "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"target_modules\":[\"0\"],\"base_model_name_or_"      \
    "path\":\"x\"}"

static struct ws_error err;
static struct ws_engine_adapters adapters;
static char *one, *two, *misfit; /* adapters of the model of engine_one; one whose base is another */
static char *draft, *other_draft;

static void write_adapter(char **out, uint64_t in, unsigned seed)
{
    const struct ws_tensor tensors[] = {
        {.name = "base_model.model.layers.0.lora_A.weight", .dtype = WS_F32, .n_dims = 2, .shape = {4, in}},
        {.name = "base_model.model.layers.0.lora_B.weight", .dtype = WS_F32, .n_dims = 2, .shape = {17, 4}}};
    *out = checkpoint_folder();
    checkpoint_write(*out, "adapter_model.safetensors", tensors, LENGTH(tensors), seed);
    checkpoint_write_text(*out, "adapter_config.json", CONFIG);
}

/* A draft model: one tensor of its own, and one with a name and shape of the target's. */
static void write_draft(char **out, unsigned seed, size_t n)
{
    const struct ws_tensor tensors[] = {
        {.name = "embed.weight", .dtype = WS_BF16, .n_dims = 2, .shape = {64, 32}},
        {.name = "fc.weight", .dtype = WS_BF16, .n_dims = 2, .shape = {32, 64}}};
    *out = checkpoint_folder();
    checkpoint_write(*out, "model.safetensors", tensors, n, seed);
}

static int make_folders(void **state)
{
    write_adapter(&one, 13, 1);
    write_adapter(&two, 13, 2);
    write_adapter(&misfit, 14, 1);
    write_draft(&draft, 7, 2);
    write_draft(&other_draft, 8, 2);
    return engine_make_folders(state);
}

static int remove_folders(void **state)
{
    char *const folders[] = {one, two, misfit, draft, other_draft};
    for (size_t i = 0; i < LENGTH(folders); i++)
        checkpoint_remove(folders[i]);
    return engine_remove_folders(state);
}

static void start(struct engine *e, const struct ws_engine_ops *ops, struct ws_reference_options options)
{
    options.api = ops->kind;
    engine_start(e, options);
}

/* What the engine says of its weights: "adapters", "draft_checksum", "checksums" ... as JSON text. */
static char *holds(const struct engine *e, const struct ws_engine_ops *ops, const char *key)
{
    return engine_checksum(&e->target, ops == &ws_engine_vllm ? "/weight_checker" : "/weights_checker", key);
}

/* One request; adapter NULL: to the base. Returns the status; *holds: the adapter's checksum, where it is not NULL. */
static long request(const struct engine *e, const struct ws_engine_ops *ops, const char *adapter,
                    char sum[33])
{
    const bool vllm = ops == &ws_engine_vllm;
    json_t *body = json_pack("{s:s*}", vllm ? "model" : "lora_path", adapter);
    struct ws_http_request request = {
        .url = e->url, .path = vllm ? "/v1/completions" : "/generate", .body = body, .timeout_ms = 60000};
    struct ws_http_reply reply;
    assert_int_equal(ws_http_call(engine_http, &request, &reply, &err), 0);
    json_decref(body);
    long status = reply.status;
    const char *got = json_string_value(json_object_get(json_object_get(reply.json, "adapter"), "checksum"));
    if (sum)
        snprintf(sum, 33, "%s", got ? got : "");
    ws_http_reply_release(&reply);
    return status;
}

static const struct ws_engine_ops *const kinds[] = {&ws_engine_vllm, &ws_engine_sglang};

static void test_load_list_unload(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        const struct ws_engine_ops *ops = kinds[k];
        char first[33], second[33];
        struct engine e;
        start(&e, ops, (struct ws_reference_options){.max_lora_rank = 4});
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), 0);
        assert_int_equal(adapters.n, 0);
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", one, &err), 0);
        assert_int_equal(ops->adapter_load(&e.target, "lora@2", two, &err), 0);
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), 0);
        assert_int_equal(adapters.n, 2);
        assert_string_equal(adapters.items[0].name, "lora@1");
        assert_string_equal(adapters.items[0].path, one);
        assert_string_equal(adapters.items[1].path, two);
        assert_false(adapters.more);
        assert_int_equal(request(&e, ops, "lora@1", first), 200);
        assert_int_equal(request(&e, ops, "lora@2", second), 200);
        assert_string_not_equal(first, second);
        assert_int_equal(strlen(first), 32);
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", one, &err),
                         0); /* a try whose first answer was lost */
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", two, &err), -EREMOTEIO);
        assert_non_null(strstr(err.text, "one path for ever"));
        assert_int_equal(ops->adapter_unload(&e.target, "lora@1", &err), 0);
        assert_int_equal(ops->adapter_unload(&e.target, "lora@1", &err), 0);
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), 0);
        assert_int_equal(adapters.n, 1);
        assert_string_equal(adapters.items[0].name, "lora@2");
        engine_stop(&e);
    }
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        const struct ws_engine_ops *ops = kinds[k];
        struct engine e;
        start(&e, ops, (struct ws_reference_options){.max_lora_rank = 4, .refuse_adapter = "lora@7"});
        assert_int_equal(ops->adapter_load(&e.target, "lora@3", misfit, &err), -EREMOTEIO);
        assert_non_null(strstr(err.text, "layers.0.weight"));
        assert_int_equal(ops->adapter_load(&e.target, "lora@3", "/nonexistent", &err), -EREMOTEIO);
        assert_int_equal(ops->adapter_load(&e.target, "lora@3", engine_one, &err), -EREMOTEIO); /* a model */
        assert_int_equal(ops->adapter_load(&e.target, "lora@7", one, &err), -EREMOTEIO);
        assert_non_null(strstr(err.text, "--refuse-adapter"));
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), 0);
        assert_int_equal(adapters.n, 0);
        engine_stop(&e);
        start(&e, ops,
              (struct ws_reference_options){.max_lora_rank = 4, .refuse_adapter = "lora@7", .lie = true});
        assert_int_equal(ops->adapter_load(&e.target, "lora@7", one, &err), -EREMOTEIO);
        assert_non_null(strstr(err.text, "does not list adapter lora@7"));
        engine_stop(&e);
        start(&e, ops, (struct ws_reference_options){.max_lora_rank = 3});
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", one, &err), -EREMOTEIO);
        assert_non_null(strstr(err.text, "max_lora_rank 3"));
        engine_stop(&e);
    }
}

/* How to turn them on. */
static void test_started_without(void **state)
{
    static const char *const says[] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--enable-lora"};
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        const struct ws_engine_ops *ops = kinds[k];
        struct engine e;
        start(&e, ops, (struct ws_reference_options){0});
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", one, &err), -EPROTO);
        assert_non_null(strstr(err.text, says[k]));
        assert_int_equal(ops->adapter_unload(&e.target, "lora@1", &err), -EPROTO);
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), -EPROTO);
        assert_non_null(strstr(err.text, says[k]));
        engine_stop(&e);
    }
    assert_null(ws_engine_remote.adapter_load);
    assert_null(ws_engine_remote.load_draft);
}

/* The routes are there and adapters are not: the load fails inside. */
static void test_vllm_without_enable_lora(void **state)
{
    static const struct bad_step steps[] = {
        {"GET /v1/load_lora_adapter", BAD_JSON, 405, "{}"},
        {"POST /v1/load_lora_adapter", BAD_JSON, 500,
         "{\"error\":{\"message\":\"LoRA is not enabled. Use --enable-lora to enable LoRA.\"}}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_vllm.adapter_load(&e.target, "lora@1", "/x", &err), -EPROTO);
    assert_non_null(strstr(err.text, "--enable-lora"));
    bad_server_stop(s);
}

/* Success, and another list: names and paths that do not fit, no list, a list of another path. */
static void test_lists(void **state)
{
    static char wide[8192], many[8192];
    static const struct {
        const char *list, *says;
        int rc;
    } cases[] = {
        {"{\"data\":[{\"id\":\"a\",\"parent\":\"m\",\"root\":\"/x\"}]}", "", 0},
        {"{\"data\":[{\"id\":\"a\",\"parent\":\"m\",\"root\":\"/y\"}]}", "one path for ever", -EREMOTEIO},
        {"{\"data\":[{\"id\":\"a\",\"parent\":\"m\"}]}", "one path for ever", -EREMOTEIO},
        {"{\"data\":[{\"id\":\"a\",\"root\":\"/x\"}]}", "does not list", -EREMOTEIO}, /* the base */
        {"{\"data\":[{\"id\":3,\"parent\":\"m\"},7,null]}", "does not list", -EREMOTEIO},
        {"{\"data\":{}}", "without a list", -EPROTO},
        {"[]", "no JSON object", -EPROTO},
        {wide, "", 0},
        {many, "", 0},
    };
    (void)state;
    snprintf(
        wide, sizeof(wide),
        "{\"data\":[{\"id\":\"%0200d\",\"parent\":\"m\"},{\"id\":\"a\",\"parent\":\"m\",\"root\":\"/x\"},"
        "{\"id\":\"b\",\"parent\":\"m\",\"root\":\"/%05000d\"}]}",
        0, 0);
    size_t n =
        (size_t)snprintf(many, sizeof(many), "{\"data\":[{\"id\":\"a\",\"parent\":\"m\",\"root\":\"/x\"}");
    for (size_t i = 0; i < WS_MAX_ENGINE_ADAPTERS; i++)
        n += (size_t)snprintf(many + n, sizeof(many) - n, ",{\"id\":\"a%zu\",\"parent\":\"m\"}", i);
    snprintf(many + n, sizeof(many) - n, "]}");
    for (size_t i = 0; i < LENGTH(cases); i++) {
        const struct bad_step steps[] = {{"GET /v1/models", BAD_JSON, 200, cases[i].list},
                                         {"GET /v1/load_lora_adapter", BAD_JSON, 405, "{}"},
                                         {"POST /v1/load_lora_adapter", BAD_JSON, 200, "Success"},
                                         {"POST /load_lora_adapter", BAD_JSON, 200, "{\"success\":true}"}};
        struct bad_server *s = bad_server_start(steps, LENGTH(steps));
        struct engine e;
        engine_at(&e, bad_server_port(s));
        for (size_t k = 0; k < LENGTH(kinds); k++) {
            assert_int_equal(kinds[k]->adapter_load(&e.target, "a", "/x", &err), cases[i].rc);
            if (cases[i].rc)
                assert_non_null(strstr(err.text, cases[i].says));
        }
        assert_int_equal(ws_engine_vllm.adapters(&e.target, &adapters, &err),
                         cases[i].rc == -EPROTO ? -EPROTO : 0);
        if (cases[i].list == wide) { /* somebody else's name, and one with a path that is nobody's here */
            assert_int_equal(adapters.n, 2);
            assert_string_equal(adapters.items[1].name, "b");
            assert_string_equal(adapters.items[1].path, "/");
        }
        if (cases[i].rc == 0)
            assert_int_equal(adapters.more, cases[i].list == many);
        bad_server_stop(s);
    }
}

/* vLLM reads an adapter's files again after a load of its base: they have to stay. */
static void test_base_load_drops_vllms(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        const struct ws_engine_ops *ops = kinds[k];
        char before[33], after[33], *gone;
        struct engine e;
        write_adapter(&gone, 13, 3);
        start(&e, ops, (struct ws_reference_options){.max_lora_rank = 4});
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", one, &err), 0);
        assert_int_equal(ops->adapter_load(&e.target, "lora@3", gone, &err), 0);
        assert_int_equal(request(&e, ops, "lora@1", before), 200);
        checkpoint_remove(gone);
        assert_int_equal(request(&e, ops, "lora@3", NULL), 200);
        assert_int_equal(ops->pause(&e.target, &err), 0);
        assert_int_equal(ops->load(&e.target, engine_two, "2", &err), 0);
        assert_int_equal(ops->resume(&e.target, &err), 0);
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), 0);
        assert_int_equal(adapters.n, 2);
        assert_int_equal(request(&e, ops, "lora@1", after), 200);
        assert_string_equal(before, after);
        if (ops->load_drops_adapters)
            assert_int_not_equal(request(&e, ops, "lora@3", NULL), 200);
        else
            assert_int_equal(request(&e, ops, "lora@3", NULL), 200);
        engine_stop(&e);
    }
}

struct asking {
    const struct engine *e;
    const struct ws_engine_ops *ops;
    char sum[33];
    long status;
};

static void *ask(void *arg)
{
    struct asking *a = arg;
    a->status = request(a->e, a->ops, "lora@1", a->sum);
    return NULL;
}

/* Waits until a request has begun to use the adapter: what vLLM lists, and SGLang waits for, does not tell. */
static void wait_for_use(void)
{
    usleep(300000);
}

/* A request under way ends on the adapter that it began with; SGLang's unload waits for it. */
static void test_requests_under_way(void **state)
{
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        const struct ws_engine_ops *ops = kinds[k];
        struct asking asking = {.ops = ops};
        char sum[33];
        struct engine e;
        pthread_t thread;
        start(&e, ops, (struct ws_reference_options){.max_lora_rank = 4});
        asking.e = &e;
        assert_int_equal(ops->adapter_load(&e.target, "lora@1", one, &err), 0);
        assert_int_equal(request(&e, ops, "lora@1", sum), 200);
        assert_int_equal(ops->pause(&e.target, &err), 0); /* it is held there */
        assert_int_equal(pthread_create(&thread, NULL, ask, &asking), 0);
        wait_for_use();
        struct ws_engine_target hurried = e.target;
        hurried.timeout_ms = 400;
        int rc = ops->adapter_unload(&hurried, "lora@1", &err);
        if (ops == &ws_engine_sglang) {
            assert_int_equal(rc, -ETIMEDOUT);
            assert_non_null(strstr(err.text, "waits for requests"));
        } else {
            assert_int_equal(rc, 0);
        }
        assert_int_equal(ops->resume(&e.target, &err), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(asking.status, 200);
        assert_string_equal(asking.sum, sum);
        assert_int_equal(ops->adapter_unload(&e.target, "lora@1", &err), 0); /* that it is gone is no error */
        assert_int_equal(ops->adapters(&e.target, &adapters, &err), 0);
        assert_int_equal(adapters.n, 0);
        if (ops == &ws_engine_sglang) { /* and is back, of its old path, where a request names it */
            assert_int_equal(request(&e, ops, "lora@1", sum), 200);
            assert_int_equal(ops->adapter_load(&e.target, "lora@1", two, &err), -EREMOTEIO);
        } else {
            assert_int_equal(request(&e, ops, "lora@1", NULL), 404);
        }
        engine_stop(&e);
    }
}

/* --- draft models --- */

static void check_draft(const struct ws_engine_ops *ops)
{
    struct ws_engine_facts facts;
    struct ws_engine_serving now;
    struct engine e;
    start(&e, ops, (struct ws_reference_options){.draft_path = draft, .transfers = true, .max_lora_rank = 4});
    assert_int_equal(ops->probe(&e.target, &facts, &now, &err), 0);
    assert_true(facts.loads_draft);
    assert_int_equal(facts.max_adapter_rank, 4);
    assert_string_equal(facts.draft, "unchanged");
    char process[WS_ENGINE_PROCESS_CHARS + 1] = "";
    assert_int_equal(ops->process(&e.target, process, &err), 0);
    assert_true(process[0]);
    e.target.facts = &facts;
    char *first = holds(&e, ops, "draft_checksum"), *target = holds(&e, ops, "per_engine_checksum");
    assert_int_equal(ops->pause(&e.target, &err), 0);
    assert_int_equal(ops->load(&e.target, engine_two, "2", &err), 0);
    char *frozen = holds(&e, ops, "draft_checksum"), *moved = holds(&e, ops, "per_engine_checksum");
    assert_string_equal(first, frozen); /* it has a tensor of the target's name and shape */
    assert_string_not_equal(target, moved);
    assert_int_equal(ops->load_draft(&e.target, other_draft, "9", &err), 0);
    char *second = holds(&e, ops, "draft_checksum"), *still = holds(&e, ops, "per_engine_checksum");
    assert_string_not_equal(first, second);
    assert_string_equal(moved, still);
    assert_int_equal(ops->serving(&e.target, &now, &err), 0);
    assert_string_equal(now.version, "2"); /* the target's */
    assert_true(now.paused);
    assert_int_equal(ops->load_draft(&e.target, engine_one, "9", &err), -EREMOTEIO); /* it lacks a tensor */
    assert_int_equal(ops->load_draft(&e.target, draft, "7", &err), 0);
    char *back = holds(&e, ops, "draft_checksum");
    assert_string_equal(first, back);
    assert_int_equal(ops->resume(&e.target, &err), 0);
    char *const texts[] = {first, target, frozen, moved, second, still, back};
    for (size_t i = 0; i < LENGTH(texts); i++)
        free(texts[i]);
    engine_stop(&e);
}

static void test_draft(void **state)
{
    (void)state;
    check_draft(&ws_engine_vllm);
    check_draft(&ws_engine_sglang);
}

/* A session that its caller never finished: the next one ends it. */
static void test_session_left_open(void **state)
{
    struct engine e;
    struct ws_http_reply reply;
    (void)state;
    start(&e, &ws_engine_vllm, (struct ws_reference_options){.draft_path = draft, .transfers = true});
    json_t *body = json_object();
    struct ws_http_request open = {
        .url = e.url, .path = "/start_weight_update", .body = body, .timeout_ms = 5000};
    assert_int_equal(ws_http_call(engine_http, &open, &reply, &err), 0);
    assert_int_equal(reply.status, 200);
    ws_http_reply_release(&reply);
    json_decref(body);
    assert_int_equal(ws_engine_vllm.load_draft(&e.target, other_draft, "9", &err), 0);
    engine_stop(&e);
}

/* The refusal has left several workers out of step: what they answer from now on is of other calls. */
static void test_session_left_open_by_workers(void **state)
{
    static const struct bad_step steps[] = {
        IS_PAUSED,
        {"POST /start_draft_weight_update", BAD_JSON, 500, "{\"error\":{\"message\":\"is already active\"}}"},
        {"get_supported_tasks", BAD_JSON, 200, "{\"results\":[[\"generate\"],null]}"},
        {"POST /finish_weight_update", BAD_JSON, 200, "{}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct engine e;
    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_vllm.load_draft(&e.target, "/x", "9", &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "restart it"));
    assert_int_equal(bad_server_hits(s, 3), 0);
    bad_server_stop(s);
}

static void test_draft_started_without(void **state)
{
    struct ws_engine_facts facts;
    struct ws_engine_serving now;
    const struct ws_reference_options without[] = {{.transfers = true}, {.draft_path = draft}, {0}};
    struct engine e;
    (void)state;
    for (size_t i = 0; i < LENGTH(without); i++) {
        start(&e, &ws_engine_vllm, without[i]);
        assert_int_equal(ws_engine_vllm.probe(&e.target, &facts, &now, &err), 0);
        assert_false(facts.loads_draft);
        assert_int_equal(ws_engine_vllm.load_draft(&e.target, draft, "9", &err), -EPROTO);
        assert_non_null(strstr(err.text, "--weight-transfer-config"));
        engine_stop(&e);
    }
}

/* SGLang's load would overwrite it: the engine is refused before it gets one. */
static void test_sglang_with_a_draft_of_its_own(void **state)
{
    struct ws_engine_facts facts;
    struct ws_engine_serving now;
    struct engine e;
    (void)state;
    start(&e, &ws_engine_sglang, (struct ws_reference_options){.draft_path = draft});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), -EPROTO);
    assert_non_null(strstr(err.text, draft));
    assert_non_null(strstr(err.text, "feed the target's files"));
    char *before = holds(&e, &ws_engine_sglang, "draft_checksum");
    assert_int_equal(ws_engine_sglang.load(&e.target, engine_two, "2", &err), 0); /* why */
    char *after = holds(&e, &ws_engine_sglang, "draft_checksum");
    assert_string_not_equal(before, after);
    free(before);
    free(after);
    engine_stop(&e);
    start(&e, &ws_engine_sglang, (struct ws_reference_options){.draft_path = engine_one});
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(facts.draft, "loaded");
    assert_false(facts.loads_draft);
    assert_int_equal(ws_engine_sglang.load_draft(&e.target, draft, "9", &err), -EPROTO);
    assert_non_null(strstr(err.text, "the Python package wsync beside it"));
    char process[WS_ENGINE_PROCESS_CHARS + 1];
    assert_int_equal(ws_engine_sglang.process(&e.target, process, &err), -EPROTO);
    engine_stop(&e);
}

/* Our plug-in keeps the target's files from it. */
static void test_sglang_with_the_plug_in(void **state)
{
    static const struct bad_step steps[] = {
        {"GET /model_info", BAD_JSON, 200, INFO_OF("/wsync/actor/1", "default")},
        {"GET /ready", BAD_JSON, 200, "{}"},
        {"GET /update_weight", BAD_JSON, 405, "{}"},
        {"GET /server_info", BAD_JSON, 200,
         "{\"model_path\":\"/wsync/actor/1\",\"speculative_algorithm\":\"EAGLE\","
         "\"speculative_draft_model_path\":\"/wsync/draft/1\",\"enable_lora\":true,\"max_lora_rank\":32,"
         "\"internal_states\":[{\"wsync\":{\"forgets_embeddings\":true,\"freezes_draft\":true}}]}"}};
    struct bad_server *s = bad_server_start(steps, LENGTH(steps));
    struct ws_engine_facts facts;
    struct ws_engine_serving now;
    struct engine e;
    (void)state;
    engine_at(&e, bad_server_port(s));
    assert_int_equal(ws_engine_sglang.probe(&e.target, &facts, &now, &err), 0);
    assert_string_equal(facts.draft, "unchanged");
    assert_int_equal(facts.max_adapter_rank, 32);
    bad_server_stop(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, engine_setup, engine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_load_list_unload),
        TEST(test_refused),
        TEST(test_started_without),
        TEST(test_vllm_without_enable_lora),
        TEST(test_lists),
        TEST(test_base_load_drops_vllms),
        TEST(test_requests_under_way),
        TEST(test_draft),
        TEST(test_session_left_open),
        TEST(test_session_left_open_by_workers),
        TEST(test_draft_started_without),
        TEST(test_sglang_with_a_draft_of_its_own),
        TEST(test_sglang_with_the_plug_in),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("engine_adapters", tests, make_folders, remove_folders);
}
