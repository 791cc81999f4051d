/* The reference engine's vLLM routes, as of 0.32 with VLLM_SERVER_DEV_MODE=1. What it imitates:
 * - A reload does not change the recorded version. A failed one (with `realistic`) leaves no weights behind.
 * - These requests end the server: one after a failed reload, one for an image that the scheduler has seen
 * and
 *   whose embeddings a reload has removed from the workers only, and one while the cache's memory sleeps.
 * - After a wrong shape it takes two good reloads.
 * - Its core does one thing after the other.
 * - A sleeping server reports that it is paused, a paused one that it sleeps.
 * - A pause empties the caches in no mode, because newer releases do not promise it.
 * - Adapters: a name that is loaded is refused; their routes are there only with adapters on (reference_adapters.h has more).
 * - A transfer session is of the target or of the draft model, and one is open at a time. A load that fails ends it.
 *   The back end is wsync's: it takes whole versions only. reload_weights leaves the draft model as it is. */
#include "backends/engine/reference/reference_state.h"
#include "transports/base/log.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As the real server says it. */
static void answer_error(struct ws_http_answer *a, unsigned status, const char *type, const char *message)
{
    a->status = status;
    a->json =
        json_pack("{s:{s:s, s:s, s:i}}", "error", "message", message, "type", type, "code", (int)status);
}

static void answer_failure(struct ws_http_answer *a, const char *message)
{
    answer_error(a, 500, "InternalServerError", message);
}

static void version(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->json = json_pack("{s:s}", "version", "0.32.0");
}

static void health(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->text = strdup("");
}

static void models(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    json_t *cards = json_pack("[{s:s, s:s, s:s, s:n}]", "id", r->start_path, "object", "model", "root",
                              r->start_path, "parent");
    ws_reference_adapters_list(r, cards);
    a->json = json_pack("{s:s, s:o}", "object", "list", "data", cards);
}

static void answer_adapter(struct ws_http_answer *a, int rc, const struct ws_error *err, const char *done)
{
    if (rc == -ENOENT)
        answer_error(a, 404, "NotFoundError", err->text);
    else if (rc == -EEXIST)
        answer_error(a, 400, "InvalidUserInput", err->text);
    else if (rc)
        answer_error(a, 500, "InternalServerError", err->text);
    else
        a->text = strdup(done);
}

static void load_lora_adapter(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    struct ws_error err = {0};
    const char *name = json_string_value(json_object_get(in->json, "lora_name"));
    const char *path = json_string_value(json_object_get(in->json, "lora_path"));
    if (!name || !name[0] || !path || !path[0])
        answer_error(a, 400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.");
    else if (strcmp(name, r->start_path) == 0)
        answer_error(a, 400, "InvalidUserInput", "The lora adapter conflicts with a served base model.");
    else
        answer_adapter(a, ws_reference_adapter_load(r, name, path, &err), &err,
                       "Success: LoRA adapter added.");
}

static void unload_lora_adapter(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    const char *name = json_string_value(json_object_get(in->json, "lora_name"));
    if (!name)
        answer_error(a, 400, "InvalidUserInput", "'lora_name' needs to be provided.");
    else
        answer_adapter(a, ws_reference_adapter_unload(self, name, &err), &err,
                       "Success: LoRA adapter removed.");
}

/* Query arguments are members of the body. */
static void pause_requests(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    const char *mode = json_string_value(json_object_get(in->json, "mode"));
    ws_reference_die_if(self, "pause");
    if (mode && strcmp(mode, "abort") != 0 && strcmp(mode, "wait") != 0 && strcmp(mode, "keep") != 0) {
        ws_answer_bad(a, "mode: abort, wait or keep");
        return;
    }
    ws_reference_pause(self, mode && strcmp(mode, "keep") == 0);
    a->json = json_pack("{s:s}", "status", "paused");
}

static void resume_requests(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    ws_reference_die_if(self, "continue");
    ws_reference_wait_load(self);
    if (atomic_load(&r->refuse_resumes) > 0) {
        atomic_fetch_sub(&r->refuse_resumes, 1);
        answer_failure(a, "Failed to resume generation: pause is still in flight");
        return;
    }
    ws_reference_resume(self);
    a->json = json_pack("{s:s}", "status", "resumed");
}

static void is_paused(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)in;
    ws_reference_wait_load(self);
    a->json = json_pack("{s:b}", "is_paused", ws_reference_is_paused(self, NULL));
}

/* Level 0 pauses only. Level 1 keeps a copy of the weights. After level 2 they are undefined until a load. */
static void go_to_sleep(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const char *word = json_string_value(json_object_get(in->json, "level"));
    const int level = !word ? 1 : word[0] >= '0' && word[0] <= '2' && !word[1] ? word[0] - '0' : -1;
    if (level < 0) {
        ws_answer_bad(a, "level: 0, 1 or 2");
        return;
    }
    pthread_mutex_lock(&r->pause_lock);
    r->paused = true;
    r->weights_asleep = r->weights_asleep || level > 0;
    r->cache_asleep = r->cache_asleep || level > 0;
    pthread_mutex_unlock(&r->pause_lock);
    if (level == 2)
        ws_reference_lose_weights(r);
    a->json = json_pack("{s:s, s:i}", "status", "sleeping", "level", level);
}

/* Once all of it is awake it ends a pause, too: as the real server does. */
static void wake_up(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const char *tag = json_string_value(json_object_get(in->json, "tags"));
    pthread_mutex_lock(&r->pause_lock);
    r->weights_asleep = r->weights_asleep && tag && strcmp(tag, "weights") != 0;
    r->cache_asleep = r->cache_asleep && tag && strcmp(tag, "kv_cache") != 0;
    bool asleep = r->weights_asleep || r->cache_asleep;
    pthread_mutex_unlock(&r->pause_lock);
    if (!asleep)
        ws_reference_resume(r);
    a->json = json_pack("{s:s}", "status", asleep ? "sleeping" : "awake");
}

static void is_sleeping(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    pthread_mutex_lock(&r->pause_lock);
    bool yes = r->weights_asleep || r->cache_asleep || r->paused; /* so says the real server */
    pthread_mutex_unlock(&r->pause_lock);
    a->json = json_pack("{s:b}", "is_sleeping", yes);
}

static void metrics(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    char *text = NULL;
    (void)in;
    pthread_mutex_lock(&r->pause_lock);
    const int awake = !(r->weights_asleep || r->cache_asleep);
    pthread_mutex_unlock(&r->pause_lock);
    char started[64] = "";
    if (r->started_ns)
        snprintf(started, sizeof(started), "process_start_time_seconds %.9f\n", (double)r->started_ns * 1e-9);
    if (asprintf(
            &text,
            "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} %d.0\n"
            "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"} %d.0\n%s%s",
            awake, !awake, started,
            r->draft_start_path ? "vllm:spec_decode_num_drafts_total{engine=\"0\"} 0.0\n" : "") < 0)
        text = NULL;
    a->text = text;
}

/* quant_method of the config.json that it was started with; null: none. */
static json_t *quantization(const struct ws_reference *r)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/config.json", r->start_path);
    json_t *config = json_load_file(path, 0, NULL);
    json_t *method = json_object_get(json_object_get(config, "quantization_config"), "quant_method");
    json_t *found = json_is_string(method) ? json_incref(method) : json_null();
    json_decref(config);
    return found;
}

static void server_info(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    json_t *adapters =
        r->adapters.max_rank ? json_pack("{s:i}", "max_lora_rank", (int)r->adapters.max_rank) : json_null();
    json_t *draft = r->draft_start_path
                        ? json_pack("{s:s, s:s}", "method", "eagle", "model", r->draft_start_path)
                        : json_null();
    json_t *transfer = r->transfers ? json_pack("{s:s}", "backend", "wsync") : json_null();
    a->json = json_pack("{s:{s:o, s:o, s:o, s:{s:s}, s:{s:o}}}", "vllm_config", "lora_config", adapters,
                        "speculative_config", draft, "weight_transfer_config", transfer, "device_config",
                        "device", "cpu", "model_config", "quantization", quantization(r));
    if (r->patches.workers)
        json_object_set_new(json_object_get(a->json, "vllm_config"), "parallel_config",
                            json_pack("{s:s}", "worker_extension_cls", "wsync.vllm.Extension"));
}

static void reset_encoder_cache(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    pthread_mutex_lock(&r->pause_lock);
    r->images_known = r->images_held = false;
    pthread_mutex_unlock(&r->pause_lock);
    a->text = strdup("");
}

static const char *last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void note_load(struct ws_reference *r, int rc, const struct ws_error *err)
{
    pthread_rwlock_wrlock(&r->weights_lock);
    if (rc && r->realistic)
        r->good_loads_needed = strstr(err->text, "shape") ? 2 : 1;
    else if (!rc && r->good_loads_needed > 0)
        r->good_loads_needed--;
    pthread_rwlock_unlock(&r->weights_lock);
}

static void collective_rpc(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    struct ws_error err = {0};
    const char *method = json_string_value(json_object_get(in->json, "method"));
    const char *path =
        json_string_value(json_object_get(json_object_get(in->json, "kwargs"), "weights_path"));
    bool sleeping;
    int rc;
    if (method && strcmp(method, "get_supported_tasks") == 0) {
        a->json = json_pack("{s:[[s]]}", "results", "generate");
        return;
    }
    if (method && strcmp(method, "wsync_patch") == 0 && r->patches.workers) {
        a->json = json_pack("{s:o}", "results", ws_reference_patch(r, json_object_get(in->json, "kwargs")));
        return;
    }
    if (method && strcmp(method, "wsync_serving") == 0 && r->patches.workers) {
        json_t *results = json_array();
        for (size_t i = 0; i < r->patches.workers; i++)
            json_array_append_new(results, json_pack("{s:i, s:b}", "rank", (int)i, "patches", 1));
        a->json = json_pack("{s:o}", "results", results);
        return;
    }
    if (!method || strcmp(method, "reload_weights") != 0) {
        answer_failure(a, "the worker has no such method");
        return;
    }
    pthread_mutex_lock(&r->pause_lock);
    sleeping = r->weights_asleep;
    r->images_held = false;
    pthread_mutex_unlock(&r->pause_lock);
    if (sleeping)
        rc = ws_error_set(&err, EAGAIN, "the weights are asleep");
    else if (path && r->refuse && strcmp(last_component(path), r->refuse) == 0)
        rc = r->lie ? 0
                    : ws_error_set(&err, EINVAL, "Refused: this reference engine was started with --refuse");
    else
        rc = ws_reference_load(r, path ? path : r->path, NULL, &err);
    note_load(r, rc, &err);
    if (rc) {
        answer_failure(a, err.text);
        return;
    }
    ws_reference_adapters_forget(r);
    a->json = json_pack("{s:[n]}", "results");
}

/* --- transfer sessions --- */

static void start_session(struct ws_reference *r, bool draft, struct ws_http_answer *a)
{
    const char *refusal = !r->transfers ? "Weight transfer not configured. Please set weight_transfer_config."
                          : draft && !r->draft_start_path
                              ? "Draft model weight update requested, but no draft model is configured."
                              : NULL;
    pthread_mutex_lock(&r->load_lock);
    if (!refusal && r->session)
        refusal = "start_weight_update called while a weight update is already active. Call "
                  "finish_weight_update first.";
    if (!refusal)
        r->session = draft ? WS_DRAFT_SESSION : WS_TARGET_SESSION;
    pthread_mutex_unlock(&r->load_lock);
    if (refusal)
        answer_failure(a, refusal);
    else
        a->json =
            json_pack("{s:s}", "message", draft ? "Draft weight update started" : "Weight update started");
}

static void start_weight_update(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)in;
    start_session(self, false, a);
}

static void start_draft_weight_update(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)in;
    start_session(self, true, a);
}

static void end_session(struct ws_reference *r)
{
    pthread_mutex_lock(&r->load_lock);
    r->session = WS_NO_SESSION;
    pthread_mutex_unlock(&r->load_lock);
}

static void update_weights(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    struct ws_error err = {0};
    const json_t *info = json_object_get(in->json, "update_info");
    const char *path = json_string_value(json_object_get(info, "weights_path"));
    pthread_mutex_lock(&r->load_lock);
    const bool active = r->session != WS_NO_SESSION, draft = r->session == WS_DRAFT_SESSION;
    pthread_mutex_unlock(&r->load_lock);
    int rc = 0;
    if (!active || !path)
        rc = ws_error_set(&err, EINVAL,
                          active ? "Invalid update_info" : "start_weight_update must be called before.");
    else if (r->refuse && strcmp(last_component(path), r->refuse) == 0)
        rc = ws_error_set(&err, EINVAL, "Refused: this reference engine was started with --refuse");
    else
        rc = draft ? ws_reference_load_draft(r, path, true, &err) : ws_reference_load(r, path, NULL, &err);
    if (rc) {
        end_session(r);
        answer_failure(a, err.text);
        return;
    }
    a->json = json_pack("{s:s}", "message", "Weights updated");
}

static void finish_weight_update(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const char *text = json_string_value(json_object_get(in->json, "weight_version"));
    pthread_mutex_lock(&r->load_lock);
    const bool active = r->session != WS_NO_SESSION, target = r->session == WS_TARGET_SESSION;
    r->session = WS_NO_SESSION;
    pthread_mutex_unlock(&r->load_lock);
    if (!active) {
        answer_failure(a, "finish_weight_update called without a matching start_weight_update.");
        return;
    }
    if (target)
        ws_reference_adapters_forget(r);
    char *own = text ? strdup(text) : NULL;
    if (own)
        ws_reference_set_version(r, own);
    a->json = json_pack("{s:s}", "message", "Weight update finished");
}

static void update_weight_version(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const char *text = json_string_value(json_object_get(in->json, "new_version"));
    char *own = text ? strdup(text) : NULL;
    if (!own) {
        ws_answer_bad(a, "new_version: a string is needed");
        return;
    }
    a->json = json_pack("{s:b, s:s}", "success", true, "new_version", own);
    if (r->lie && r->refuse && strcspn(own, "@") == strlen(r->refuse) &&
        strncmp(own, r->refuse, strlen(r->refuse)) == 0)
        free(own);
    else
        ws_reference_set_version(r, own);
}

static void weight_info(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    pthread_rwlock_rdlock(&r->weights_lock);
    a->json = json_pack("{s:s}", "weight_version", r->version);
    pthread_rwlock_unlock(&r->weights_lock);
}

static void weight_checker(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    char combined[33];
    (void)in;
    json_t *all = ws_reference_checksums(self, combined);
    a->json = json_pack("{s:o, s:s}", "checksums", all, "per_engine_checksum", combined);
    ws_reference_add_checksums(self, a->json);
}

static bool is_true(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, "true") == 0;
}

static void reset_prefix_cache(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    bool done = ws_reference_flush(self, true, is_true(in->json, "reset_external"));
    a->json = json_pack("{s:b}", "success", done);
}

/* Which adapter the request names; *adapter stays NULL where it names the model, or nothing. */
static int find_adapter(struct ws_reference *r, const struct ws_http_incoming *in, json_t **adapter,
                        struct ws_error *err)
{
    const char *model = json_string_value(json_object_get(in->json, "model"));
    return !model || strcmp(model, r->start_path) == 0 ? 0 : ws_reference_adapter_use(r, model, adapter, err);
}

static void completions(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    struct ws_error err = {0};
    json_t *adapter = NULL;
    int rc = find_adapter(r, in, &adapter, &err);
    if (rc) {
        answer_adapter(a, rc, &err, "");
        return;
    }
    bool served = ws_reference_wait(r);
    pthread_rwlock_rdlock(&r->weights_lock);
    bool gone = r->good_loads_needed > 0;
    pthread_rwlock_unlock(&r->weights_lock);
    pthread_mutex_lock(&r->pause_lock);
    gone = gone || r->weights_asleep || r->cache_asleep;
    if (json_is_string(json_object_get(in->json, "image"))) {
        gone = gone || (r->images_known && !r->images_held);
        r->images_known = r->images_held = true;
    }
    pthread_mutex_unlock(&r->pause_lock);
    if (gone && served) {
        ws_log(WS_LOG_WARN, "engine", "dies of a request without weights, as the real server does");
        _exit(1);
    }
    a->json =
        json_pack("{s:s, s:[{s:s, s:s}], s:o}", "object", "text_completion", "choices", "text",
                  "This is wsync's reference engine: it holds weights and generates no text.",
                  "finish_reason", served ? "stop" : "abort", "stale_cache", ws_reference_use_caches(r));
    if (adapter) {
        ws_reference_adapter_done(r, json_string_value(json_object_get(adapter, "name")));
        json_object_set_new(a->json, "adapter", adapter);
    }
}

const struct ws_http_route ws_reference_vllm_routes[] = {
    /* WS_REFERENCE_ADAPTER_ROUTES of them are there only with adapters on */
    WS_HTTP_ROUTE(WS_HTTP_POST, "/v1/load_lora_adapter", READ, load_lora_adapter),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/v1/unload_lora_adapter", READ, unload_lora_adapter),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/health", OPEN, health),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/version", OPEN, version),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/v1/models", READ, models),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/v1/completions", READ, completions),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/pause", OPEN,
                  pause_requests), /* its development routes are open to anyone, even with a key */
    WS_HTTP_ROUTE(WS_HTTP_POST, "/resume", OPEN, resume_requests),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/is_paused", OPEN, is_paused),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/sleep", OPEN, go_to_sleep),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/wake_up", OPEN, wake_up),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/is_sleeping", OPEN, is_sleeping),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/metrics", OPEN, metrics),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/collective_rpc", OPEN, collective_rpc),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/start_weight_update", OPEN, start_weight_update),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/start_draft_weight_update", OPEN, start_draft_weight_update),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/update_weights", OPEN, update_weights),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/finish_weight_update", OPEN, finish_weight_update),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/server_info", OPEN, server_info),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/update_weight_version", OPEN, update_weight_version),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/weight_info", OPEN, weight_info),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/weight_checker", OPEN, weight_checker),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/reset_prefix_cache", OPEN, reset_prefix_cache),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/reset_encoder_cache", OPEN, reset_encoder_cache),
    {0},
};
