/* The reference engine's SGLang routes: field names, defaults and status codes as of 0.5.23, `in_place` with
 * flush_cache answered as a failure although the weights are new. A load feeds its files to a draft model, too,
 * whatever that was started with: names that it has, of the same shape, are overwritten. */
#include "backends/engine/reference/reference_state.h"
#include "transports/base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATCH "wsync_patch:"

static void answer_success(struct ws_http_answer *a, bool success, const char *message)
{
    a->status = success ? 200 : 400;
    a->json = json_pack("{s:b, s:s, s:i}", "success", success, "message", message, "num_paused_requests", 0);
}

static void answer_ok(struct ws_http_answer *a, const char *message)
{
    a->json = json_pack("{s:s, s:s}", "message", message, "status", "ok");
}

/* With wsync's plug-in a draft model of its own is not fed the target's files. */
static bool feeds_draft(const struct ws_reference *r)
{
    return r->draft_start_path && !(r->transfers && strcmp(r->draft_start_path, r->start_path) != 0);
}

/* The plug-in's: the draft model alone. */
static void load_draft(struct ws_reference *r, const char *path, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    const int rc = r->draft_start_path ? ws_reference_load_draft(r, path, true, &err)
                                       : ws_error_set(&err, ENOENT, "There is no draft model.");
    answer_success(a, rc == 0, rc ? err.text : "Succeeded to update model weights.");
}

static void load(struct ws_reference *r, const char *path, const char *version, bool flush,
                 struct ws_http_answer *a)
{
    struct ws_error err = {0};
    char message[WS_ERROR_TEXT + 64];
    bool in_place;
    pthread_mutex_lock(&r->pause_lock);
    const bool gone = r->weights_asleep;
    pthread_mutex_unlock(&r->pause_lock);
    if (gone) {
        ws_log(WS_LOG_WARN, "engine", "dies of a load into memory that it has released");
        _exit(1);
    }
    int rc = ws_reference_load(r, path, version, &err);

    if (rc && rc != -ENOENT && r->realistic) {
        ws_log(WS_LOG_WARN, "engine", "dies of the file, as the real server does");
        _exit(1);
    }
    if (!rc && feeds_draft(r))
        rc = ws_reference_load_draft(r, path, false, &err);
    if (rc) {
        snprintf(message, sizeof(message), "Failed to get weights iterator: %s", err.text);
        answer_success(a, false, message);
    } else if (flush &&
               ((ws_reference_is_paused(r, &in_place) && in_place) || !ws_reference_flush(r, true, false))) {
        answer_success(a, false, "Weights were updated, but the cache was not flushed");
    } else {
        answer_success(a, true, "Succeeded to update model weights.");
    }
}

static bool is_dummy(const struct ws_reference *r, const char *format)
{
    format = format ? format : r->load_format ? r->load_format : "auto";
    return strcmp(format, "dummy") == 0;
}

static void take_note(struct ws_reference *r, const char *plan, const char *path, const char *version,
                      struct ws_http_answer *a)
{
    if (ws_reference_patch_note(r, plan, path, version))
        answer_success(a, true, "A note of what was patched.");
    else
        answer_success(a, false, "no worker holds this plan, so nothing was noted, and nothing loaded");
}

static void update_from_disk(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const char *path = json_string_value(json_object_get(in->json, "model_path"));
    const json_t *version = json_object_get(in->json, "weight_version");
    const json_t *flush = json_object_get(in->json, "flush_cache");
    const char *text = json_string_value(version);
    const json_t *manifest = json_object_get(in->json, "manifest");
    const char *draft = json_string_value(json_object_get(manifest, "wsync_draft"));
    const json_t *note = r->patches.workers ? json_object_get(manifest, "wsync_patch") : NULL;

    if (!path)
        ws_answer_bad(a, "model_path: a string is needed");
    else if (version && !json_is_null(version) && !text)
        ws_answer_bad(a, "weight_version: not a string");
    else if (is_dummy(r, json_string_value(json_object_get(in->json, "load_format"))))
        answer_success(a, false, "Failed to get model loader: DummyModelLoader.");
    else if (note)
        take_note(r, json_string_value(json_object_get(note, "plan")), path, text, a);
    else if (draft && r->transfers)
        load_draft(r, draft, a);
    else if (text && r->refuse && strcspn(text, "@") == strlen(r->refuse) &&
             strncmp(text, r->refuse, strlen(r->refuse)) == 0)
        answer_success(a, r->lie,
                       r->lie ? "Succeeded to update model weights."
                              : "Refused: this reference engine was started with --refuse");
    else
        load(r, path, text, !json_is_false(flush), a);
}

static void pause_generation(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const json_t *word = json_object_get(in->json, "mode");
    const char *mode = word ? json_string_value(word) : "abort";

    ws_reference_die_if(r, "pause");
    if (!mode || (strcmp(mode, "abort") && strcmp(mode, "retract") && strcmp(mode, "in_place"))) {
        ws_answer_bad(a, "mode: abort, retract or in_place");
        return;
    }
    ws_reference_pause(r, !strcmp(mode, "in_place"));
    answer_ok(a, "Generation paused successfully.");
}

static void continue_generation(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    ws_reference_die_if(r, "continue");
    if (!in->json) {
        ws_answer_bad(a, "a body is needed");
        return;
    }
    ws_reference_resume(r);
    answer_ok(a, "Generation continued successfully.");
}

static void update_weight_version(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const char *version = json_string_value(json_object_get(in->json, "new_version"));
    char *own = version ? strdup(version) : NULL;

    if (!own) {
        ws_answer_bad(a, "new_version: a string is needed");
        return;
    }
    a->json = json_pack("{s:b, s:s, s:s}", "success", true, "message", "Weight version updated",
                        "new_version", own);
    ws_reference_set_version(r, own);
}

static void model_info(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;

    (void)in;
    pthread_rwlock_rdlock(&r->weights_lock);
    const char *path = r->workers > 1 ? r->start_path : r->path;
    a->json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b}", "model_path", path, "served_model_name", path,
                        "weight_version", r->workers > 1 ? "default" : r->version, "load_format", "auto",
                        "model_type", "reference", "is_generation", true);
    pthread_rwlock_unlock(&r->weights_lock);
}

/* Each worker's answer as text in its checksums, as the plug-in's is. */
static bool patches(struct ws_reference *r, const char *text, struct ws_http_answer *a)
{
    json_t *arguments = r->patches.workers ? json_loads(text, 0, NULL) : NULL, *ranks = json_array(), *one;
    json_t *all = arguments ? ws_reference_patch(r, arguments) : NULL;
    size_t i;
    json_array_foreach(all, i, one)
    {
        char *said = json_dumps(one, JSON_COMPACT);
        json_array_append_new(ranks, json_pack("{s:{s:s?}, s:s, s:[]}", "checksums", "wsync_patch", said,
                                               "per_gpu_checksum", "", "parallelism_info"));
        free(said);
    }
    if (all)
        a->json = json_pack("{s:b, s:s, s:O, s:s}", "success", true, "message", "wsync_patch", "ranks", ranks,
                            "per_engine_checksum", "");
    json_decref(ranks);
    json_decref(arguments);
    json_decref(all);
    return all;
}

static void weights_checker(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    const char *action = json_string_value(json_object_get(in->json, "action"));
    char combined[33];

    if (action && strncmp(action, PATCH, strlen(PATCH)) == 0 && patches(self, action + strlen(PATCH), a))
        return;
    if (!action || strcmp(action, "checksum") != 0) {
        ws_answer_bad(a, "action: checksum is the only one that is known");
        return;
    }
    json_t *all = ws_reference_checksums(self, combined);
    a->json = json_pack("{s:b, s:s, s:[{s:o, s:s}], s:s}", "success", true, "message", "", "ranks",
                        "checksums", all, "per_gpu_checksum", combined, "per_engine_checksum", combined);
    ws_reference_add_checksums(self, a->json);
}

static void ready(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    bool in_place;
    (void)in;
    a->status = ws_reference_is_paused(self, &in_place) ? 503 : 200;
    a->text = strdup("");
}

/* --- memory that it has released --- */

/* What the parts are called, and where each is kept. */
#define N_PARTS 3
static bool *part(struct ws_reference *r, size_t i, const char **name)
{
    static const char *const names[N_PARTS] = {"cuda_graph", "weights", "kv_cache"};
    bool *const asleep[N_PARTS] = {&r->graphs_asleep, &r->weights_asleep, &r->cache_asleep};
    *name = names[i];
    return asleep[i];
}

static bool is_asleep(struct ws_reference *r)
{
    pthread_mutex_lock(&r->pause_lock);
    const bool asleep = r->graphs_asleep || r->weights_asleep || r->cache_asleep;
    pthread_mutex_unlock(&r->pause_lock);
    return asleep;
}

static json_t *released(struct ws_reference *r)
{
    json_t *tags = json_array();
    const char *name;
    pthread_mutex_lock(&r->pause_lock);
    for (size_t i = 0; i < N_PARTS; i++)
        if (*part(r, i, &name))
            json_array_append_new(tags, json_string(name));
    pthread_mutex_unlock(&r->pause_lock);
    return tags;
}

/* No tags: all. */
static bool has_tag(const json_t *tags, const char *name)
{
    const json_t *one;
    size_t i;
    json_array_foreach(tags, i, one)
    {
        if (json_is_string(one) && strcmp(json_string_value(one), name) == 0)
            return true;
    }
    return json_array_size(tags) == 0;
}

/* Without --enable-weights-cpu-backup, so that its weights are undefined from then on. */
static void release_memory(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const json_t *tags = json_object_get(in->json, "tags");
    const char *name;
    pthread_mutex_lock(&r->pause_lock);
    for (size_t i = 0; i < N_PARTS; i++) {
        bool *asleep = part(r, i, &name);
        *asleep = *asleep || has_tag(tags, name);
    }
    pthread_mutex_unlock(&r->pause_lock);
    if (has_tag(tags, "weights"))
        ws_reference_lose_weights(r);
    a->text = strdup("null");
}

/* A part that it has not released ends its scheduler, and with it the server. */
static void resume_memory(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    const json_t *tags = json_object_get(in->json, "tags");
    const char *name;
    ws_reference_die_if(r, "wake");
    pthread_mutex_lock(&r->pause_lock);
    for (size_t i = 0; i < N_PARTS; i++) {
        bool *asleep = part(r, i, &name);
        if (has_tag(tags, name) && !*asleep) {
            ws_log(WS_LOG_WARN, "engine", "dies of a wake, as the real server does: it has its %s", name);
            _exit(1);
        }
        *asleep = *asleep && !has_tag(tags, name);
    }
    pthread_mutex_unlock(&r->pause_lock);
    a->text = strdup("null");
}

/* Waits while paused, as the real server's requests do; generates nothing and says so. */
static void generate(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    struct ws_error err = {0};
    const char *name = json_string_value(json_object_get(in->json, "lora_path"));
    json_t *adapter = NULL;
    if (name && ws_reference_adapter_use(r, name, &adapter, &err)) {
        ws_answer_bad(a, err.text);
        return;
    }
    bool served = ws_reference_wait(r);
    if (is_asleep(r)) {
        a->status = 500;
        a->json = json_pack("{s:{s:s}}", "error", "message", "the memory that a request needs is released");
        if (adapter)
            ws_reference_adapter_done(r, name);
        json_decref(adapter);
        return;
    }
    json_t *stale = ws_reference_use_caches(r);
    pthread_rwlock_rdlock(&r->weights_lock);
    a->json =
        json_pack("{s:s, s:[], s:{s:{s:s}, s:i, s:i, s:s, s:o}}", "text",
                  "This is wsync's reference engine: it holds weights and generates no text.", "output_ids",
                  "meta_info", "finish_reason", "type", served ? "stop" : "abort", "prompt_tokens", 0,
                  "completion_tokens", 0, "weight_version", r->version, "stale_cache", stale);
    pthread_rwlock_unlock(&r->weights_lock);
    if (adapter) {
        ws_reference_adapter_done(r, name);
        json_object_set_new(a->json, "adapter", adapter);
    }
}

/* --- adapters --- */

static void answer_adapters(struct ws_reference *r, int rc, const struct ws_error *err,
                            struct ws_http_answer *a)
{
    json_t *loaded = json_object(), *all = ws_reference_adapters_checksums(r), *value;
    const char *name;
    json_object_foreach(all, name, value)
    {
        json_object_set(loaded, name, json_object_get(value, "path"));
    }
    json_decref(all);
    a->status = rc ? 400 : 200;
    a->json = json_pack("{s:b, s:s?, s:o}", "success", rc == 0, "error_message", rc ? err->text : NULL,
                        "loaded_adapters", loaded);
}

static void load_lora_adapter(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    const char *name = json_string_value(json_object_get(in->json, "lora_name"));
    const char *path = json_string_value(json_object_get(in->json, "lora_path"));
    if (!name || !path)
        ws_answer_bad(a, "lora_name, lora_path: strings are needed");
    else
        answer_adapters(self, ws_reference_adapter_load(self, name, path, &err), &err, a);
}

static void unload_lora_adapter(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_error err = {0};
    const char *name = json_string_value(json_object_get(in->json, "lora_name"));
    if (!name)
        ws_answer_bad(a, "lora_name: a string is needed");
    else
        answer_adapters(self, ws_reference_adapter_unload(self, name, &err), &err, a);
}

static void models(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    pthread_rwlock_rdlock(&r->weights_lock);
    json_t *cards =
        json_pack("[{s:s, s:s, s:s, s:n}]", "id", r->path, "object", "model", "root", r->path, "parent");
    pthread_rwlock_unlock(&r->weights_lock);
    ws_reference_adapters_list(r, cards);
    a->json = json_pack("{s:s, s:o}", "object", "list", "data", cards);
}

static void flush_cache(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    bool in_place;
    (void)in;
    if ((ws_reference_is_paused(r, &in_place) && in_place) || !ws_reference_flush(r, true, false)) {
        a->status = 400;
        a->text = strdup("Flush cache failed: requests are pending.\n");
    } else {
        a->text = strdup("Cache flushed.\n");
    }
}

static void clear_external(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)in;
    (void)ws_reference_flush(self, false, true);
    a->text = strdup("Hierarchical cache storage backend cleared.\n");
}

static void server_info(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    ws_reference_wait_load(r);
    pthread_rwlock_rdlock(&r->weights_lock);
    json_t *state = json_pack("{s:s}", "weight_version", r->version);
    char process[24];
    snprintf(process, sizeof(process), "%" PRIu64, r->started_ns);
    if (r->transfers || r->patches.workers)
        json_object_set_new(state, "wsync",
                            json_pack("{s:b, s:b, s:b, s:b, s:s, s:o}", "forgets_embeddings", 1,
                                      "freezes_draft", 1, "loads_draft", 1, "patches", r->patches.workers > 0,
                                      "process", process, "released", released(r)));
    a->json = json_pack("{s:s, s:s, s:s, s:s, s:i, s:b, s:i, s:s?, s:s?, s:[o]}", "version", "0.5.23",
                        "model_path", r->start_path, "weight_version", "default", "load_format",
                        r->load_format ? r->load_format : "auto", "tokenizer_worker_num", (int)r->workers,
                        "enable_lora", r->adapters.max_rank > 0, "max_lora_rank", (int)r->adapters.max_rank,
                        "speculative_algorithm", r->draft_start_path ? "EAGLE" : NULL,
                        "speculative_draft_model_path", r->draft_start_path, "internal_states", state);
    pthread_rwlock_unlock(&r->weights_lock);
}

static void health(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->text = strdup("");
}

const struct ws_http_route ws_reference_sglang_routes[] = {
    WS_HTTP_ROUTE(WS_HTTP_GET, "/health", OPEN, health),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/ready", READ, ready),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/model_info", READ, model_info),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/get_model_info", READ, model_info),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/pause_generation", READ, pause_generation),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/continue_generation", READ, continue_generation),
    WS_HTTP_ROUTE(WS_HTTP_GET | WS_HTTP_POST, "/flush_cache", READ, flush_cache),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/update_weights_from_disk", READ, update_from_disk),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/update_weight_version", READ, update_weight_version),
    WS_HTTP_ROUTE(WS_HTTP_GET | WS_HTTP_POST, "/weights_checker", READ, weights_checker),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/server_info", READ, server_info),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/hicache/storage-backend/clear", READ, clear_external),
    WS_HTTP_ROUTE(WS_HTTP_GET | WS_HTTP_POST, "/clear_hicache_storage_backend", READ, clear_external),
    WS_HTTP_ROUTE(WS_HTTP_GET | WS_HTTP_POST, "/release_memory_occupation", READ, release_memory),
    WS_HTTP_ROUTE(WS_HTTP_GET | WS_HTTP_POST, "/resume_memory_occupation", READ, resume_memory),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/generate", READ, generate),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/v1/models", READ, models),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/load_lora_adapter", READ, load_lora_adapter),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/unload_lora_adapter", READ, unload_lora_adapter),
    {0},
};
