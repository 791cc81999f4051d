/* The reference engine's vLLM routes, as of 0.32 with VLLM_SERVER_DEV_MODE=1. What it imitates:
 * - A reload does not change the recorded version. A failed one (with `realistic`) leaves no weights behind.
 * - These requests end the server: one after a failed reload, one for an image that the scheduler has seen
 * and
 *   whose embeddings a reload has removed from the workers only, and one while the cache's memory sleeps.
 * - After a wrong shape it takes two good reloads.
 * - Its core does one thing after the other.
 * - A sleeping server reports that it is paused, a paused one that it sleeps.
 * - A pause empties the caches in no mode, because newer releases do not promise it. */
#include "backends/engine/reference/reference_state.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void answer_failure(struct ws_http_answer *a, const char *message)
{
    a->status = 500;
    a->json = json_pack("{s:{s:s, s:s, s:i}}", "error", "message", message, "type", "InternalServerError",
                        "code", 500);
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
    const struct ws_reference *r = self;
    (void)in;
    a->json = json_pack("{s:s, s:[{s:s, s:s, s:s}]}", "object", "list", "data", "id", r->start_path, "object",
                        "model", "root", r->start_path);
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

static void go_to_sleep(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
    (void)in;
    pthread_mutex_lock(&r->pause_lock);
    r->weights_asleep = r->cache_asleep = r->paused = true;
    pthread_mutex_unlock(&r->pause_lock);
    a->json = json_pack("{s:s, s:i}", "status", "sleeping", "level", 1);
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
    (void)in;
    pthread_mutex_lock(&r->pause_lock);
    const char *text =
        r->weights_asleep || r->cache_asleep
            ? "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} 0.0\n"
              "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"} 1.0\n"
            : "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} 1.0\n"
              "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"} 0.0\n";
    a->text = strdup(text);
    pthread_mutex_unlock(&r->pause_lock);
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
    if (rc)
        answer_failure(a, err.text);
    else
        a->json = json_pack("{s:[n]}", "results");
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
    a->json = json_pack("{s:o, s:s}", "checksums", ws_reference_checksums(self, combined),
                        "per_engine_checksum", combined);
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

static void completions(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    struct ws_reference *r = self;
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
}

const struct ws_http_route ws_reference_vllm_routes[] = {
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
    WS_HTTP_ROUTE(WS_HTTP_POST, "/update_weight_version", OPEN, update_weight_version),
    WS_HTTP_ROUTE(WS_HTTP_GET, "/weight_info", OPEN, weight_info),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/weight_checker", OPEN, weight_checker),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/reset_prefix_cache", OPEN, reset_prefix_cache),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/reset_encoder_cache", OPEN, reset_encoder_cache),
    {0},
};
