/* vLLM, by the development routes of its HTTP server (VLLM_SERVER_DEV_MODE=1; tried against 0.32).
 *
 * What shapes this file:
 * - A reload that fails answers 500 and leaves no weights behind: a request after a /resume would kill the
 *   server. So it is never resumed before a reload has answered 200. A good reload, sometimes two, repairs
 *   it.
 * - A reload does not change the recorded version. /update_weight_version is called afterwards, so that a
 *   recorded version is also loaded. vLLM does not report which path it loaded last; at its start it is the
 *   model's.
 * - A folder that does not exist is taken for the name of a model on a hub, and a missing tensor answers 200.
 *   So the folder is checked before the load (the gate of a switch).
 * - A pause empties the prefix cache (clear_cache), but newer releases do not promise it for `keep`. So it is
 *   emptied again after the load, by a call that reports whether it was.
 * - Newer releases have start, update and finish routes for weight transfers (vllm_transfer.c). They are used
 *   where collective_rpc is not offered, and for a draft model.
 * - A sleeping engine has no weights to reload, so its weights are woken first. Once all of it is awake its
 *   pause is over. So the resume wakes the rest, and a load begins by asking whether the engine is paused.
 *   /is_paused and /is_sleeping are both true for a sleeping engine and for a paused one. The metrics
 *   distinguish them; where they cannot be read, the state is unknown.
 * - Its core does one call after the other, and each worker answers them in turn. With a `timeout` in
 *   /collective_rpc a late reply stays in the queue and becomes the reply of the next call. So no timeout is
 *   sent, and before another load the engine has to answer a call that its core answers.
 * - Embeddings of images are kept by the scheduler and by the workers, and a reload empties the workers'
 *   only: a request for a kept image ends the engine. Both are emptied after each load, whatever cache= says.
 *   What /reset_mm_cache empties stays: it holds processed inputs, which no weights have computed, and its two
 *   halves, in the server and in the engine, differ for a moment when they are emptied beside requests.
 * - Nothing names the process. Its metrics say when it was started, in one with several API servers not even they.
 * - With data-parallel experts a resume is refused while a pause is under way, even if its caller has given
 *   up. */
#include "backends/engine/load.h"
#include "backends/engine/patch.h"
#include "backends/engine/pause.h"
#include "backends/engine/vllm_adapters.h"
#include "backends/engine/vllm_config.h"
#include "backends/engine/vllm_transfer.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HAS_RPC = 1, HAS_VERSION = 2, HAS_TRANSFER = 4, HAS_SLEEP = 8, HAS_RESET = 16, HAS_ENCODER = 32 };
#define SLEEP_GAUGE "vllm:engine_sleep_state{"
#define START_GAUGE "process_start_time_seconds "

static const char *const pause_modes[] = {"keep", "wait", "abort", NULL};

static bool has(const struct ws_engine_target *t, unsigned route)
{
    return !t->facts || !t->facts->known || t->facts->routes & route;
}

/* {"KEY": bool} of a GET. */
static int query_bool(const struct ws_engine_target *t, const char *path, const char *key, bool *out,
                      struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_get(t, path, &reply, err);
    if (rc)
        return rc;
    const json_t *value = json_object_get(reply.json, key);
    if (reply.status != 200 || !json_is_boolean(value))
        rc = ws_error_set(err, EPROTO, "%s%s answered %ld without %s", t->url, path, reply.status, key);
    *out = json_is_true(value);
    ws_http_reply_release(&reply);
    return rc;
}

static int query_paused(const struct ws_engine_target *t, bool *paused, struct ws_error *err)
{
    return query_bool(t, "/is_paused", "is_paused", paused, err);
}

static int process(const struct ws_engine_target *t, char out[WS_ENGINE_PROCESS_CHARS + 1],
                   struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_page(t, "/metrics", &reply, err);
    if (rc)
        return rc;
    const char *at = reply.text;
    while (at && strncmp(at, START_GAUGE, strlen(START_GAUGE)) != 0)
        at = (at = strchr(at, '\n')) ? at + 1 : NULL;
    at = at ? at + strlen(START_GAUGE) : "";
    const size_t n = strspn(at, "0123456789.e+");
    if (n > 0 && n <= WS_ENGINE_PROCESS_CHARS)
        snprintf(out, WS_ENGINE_PROCESS_CHARS + 1, "%.*s", (int)n, at);
    else
        rc = ws_error_set(err, EPROTO, "%s/metrics do not say when it was started", t->url);
    ws_http_reply_release(&reply);
    return rc;
}

/* Of the lines SLEEP_GAUGE...sleep_state="awake"...} 1.0, one a data parallel engine. */
static int read_gauge(const char *page, bool *asleep)
{
    int rc = -ENOENT;
    *asleep = false;
    for (const char *line = strstr(page, SLEEP_GAUGE); line; line = strstr(line + 1, SLEEP_GAUGE)) {
        const char *labels = line + strlen(SLEEP_GAUGE), *end = labels + strcspn(labels, "\n");
        const char *awake = strstr(labels, "sleep_state=\"awake\""), *value = strstr(labels, "} ");
        if (!awake || awake > end || !value || value > end)
            continue;
        *asleep = *asleep || strtod(value + 2, NULL) == 0;
        rc = 0;
    }
    return rc;
}

/* One that is neither paused nor asleep says so. */
static int find_sleep(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    bool can = has(t, HAS_SLEEP);
    int rc = can && !(t->facts && t->facts->known) ? ws_call_has_post(t, "/wake_up", &can, err) : 0;
    if (rc || !can)
        return rc;
    rc = query_bool(t, "/is_sleeping", "is_sleeping", &out->sleeping, err);
    if (rc || !out->paused || !out->sleeping)
        return rc;
    out->sleeping = false;
    rc = ws_call_page(t, "/metrics", &reply, NULL);
    out->sleep_unknown = rc || read_gauge(reply.text, &out->sleeping) < 0;
    if (!rc)
        ws_http_reply_release(&reply);
    return 0;
}

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    *out = (struct ws_engine_serving){.reports_paused = !t->only_named};
    int rc = t->only_named ? 0 : query_paused(t, &out->paused, err);
    if (!rc && !t->only_named)
        rc = find_sleep(t, out, err);
    if (rc || !has(t, HAS_VERSION))
        return rc;
    rc = ws_call_get(t, "/weight_info", &reply, err);
    if (rc == -EPROTO && !(t->facts && t->facts->known))
        return 0; /* a release that keeps none */
    if (rc)
        return rc;
    rc = ws_call_copy(t, out->version, sizeof(out->version), ws_call_text(&reply, "weight_version"),
                      "weight_version", err);
    ws_http_reply_release(&reply);
    return rc;
}

/* The folder that it was started with, where it serves what it was started with. */
static int start_path(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_get(t, "/v1/models", &reply, err);
    if (rc)
        return rc;
    const json_t *first = json_array_get(json_object_get(reply.json, "data"), 0);
    const char *root = json_string_value(json_object_get(first, "root"));
    if (root && root[0] == '/')
        rc = ws_call_copy(t, out->path, sizeof(out->path), root, "model path", err);
    ws_http_reply_release(&reply);
    return rc;
}

static int find_routes(const struct ws_engine_target *t, struct ws_engine_facts *facts, struct ws_error *err)
{
    static const struct {
        unsigned bit;
        const char *path;
    } routes[] = {{HAS_RPC, "/collective_rpc"},
                  {HAS_VERSION, "/update_weight_version"},
                  {HAS_TRANSFER, "/finish_weight_update"},
                  {HAS_SLEEP, "/wake_up"},
                  {HAS_RESET, "/reset_prefix_cache"},
                  {HAS_ENCODER, "/reset_encoder_cache"}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        bool there;
        int rc = ws_call_has_post(t, routes[i].path, &there, err);
        if (rc)
            return rc;
        facts->routes |= there ? routes[i].bit : 0;
        if (!there)
            n += (size_t)snprintf(facts->missing + n, sizeof(facts->missing) - n, "%s%s", n ? " " : "",
                                  routes[i].path);
    }
    return 0;
}

static int probe(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    struct ws_engine_target with = *t;
    *facts = (struct ws_engine_facts){0};
    int rc = ws_call_get(t, "/version", &reply, err);
    if (rc)
        return rc;
    rc = ws_call_copy(t, facts->release, sizeof(facts->release), ws_call_text(&reply, "version"), "version",
                      err);
    ws_http_reply_release(&reply);
    if (!rc)
        rc = find_routes(t, facts, err);
    if (rc)
        return rc;
    if (!(facts->routes & (HAS_RPC | HAS_TRANSFER)))
        return ws_error_set(
            err, EPROTO,
            "%s is a vLLM %s without its development routes: start it with VLLM_SERVER_DEV_MODE=1", t->url,
            facts->release);
    facts->known = true;
    if (t->sleep && !(facts->routes & HAS_SLEEP))
        return ws_error_set(
            err, EPROTO,
            "%s is a vLLM %s without /wake_up, which sleep= needs: start it as a newer release "
            "with --enable-sleep-mode",
            t->url, facts->release);
    facts->labels = facts->routes & HAS_VERSION;
    with.facts = facts;
    rc = serving(&with, out, err);
    if (!rc && (!out->version[0] || strcmp(ws_engine_labelled_version(out->version), "default") == 0))
        rc = start_path(t, out, err);
    if (!rc)
        ws_vllm_config_read(t, facts);
    if (!rc && t->sleep && facts->stays_awake)
        rc = ws_error_set(err, EPROTO,
                          "%s was started without --enable-sleep-mode: it answers a sleep and does nothing. "
                          "Start it with that, or leave sleep= out (a vLLM on a CPU has no such mode)",
                          t->url);
    return rc;
}

static int wake(const struct ws_engine_target *t, const char *route, struct ws_error *err)
{
    struct ws_error why = {0};
    int rc = ws_call_plain(t, route, 0, NULL, &why);
    if (rc == -EREMOTEIO || rc == -EPROTO)
        return ws_error_set(err, EAGAIN, "%s sleeps and could not be woken: %.700s; wake it and try again",
                            t->url, why.text);
    if (rc && err)
        *err = why;
    return rc;
}

static int pause_engine(const struct ws_engine_target *t, struct ws_error *err)
{
    char path[96];
    snprintf(path, sizeof(path), "/pause?mode=%s&clear_cache=%s",
             t->pause_mode ? t->pause_mode : pause_modes[0], t->cache == WS_CACHE_KEEP ? "false" : "true");
    return ws_pause_post(t, path, json_object(), "paused", ws_call_pause_ms(t), err);
}

/* A call of its core, which is busy as long as a reload lasts. */
static int drain(const struct ws_engine_target *target, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    bool paused;
    t.short_ms = t.timeout_ms;
    return query_paused(&t, &paused, err);
}

static int stay_paused(const struct ws_engine_target *t, struct ws_error *err)
{
    bool paused;
    int rc = query_paused(t, &paused, err);
    return rc || paused ? rc : pause_engine(t, err);
}

static int resume_once(const struct ws_engine_target *t, struct ws_error *err)
{
    return ws_pause_resume_once(t, "/resume", "resumed", query_paused, err);
}

static int resume(const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = t->sleeping ? wake(t, "/wake_up?tags=kv_cache", err) : 0;
    return rc ? rc : ws_call_while_busy(t, ws_call_pause_ms(t), resume_once, err);
}

/* 200 with one result a worker; each worker's is null where all went well. */
static int reload_by_rpc(const struct ws_engine_target *t, const char *path, struct ws_error *err)
{
    json_t *body = json_pack("{s:s, s:{s:s}}", "method", "reload_weights", "kwargs", "weights_path", path);
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/collective_rpc", body, t->timeout_ms, &reply, err);
    if (rc)
        return rc;
    const json_t *results = json_object_get(reply.json, "results");
    const size_t workers = json_array_size(results);
    bool good = reply.status == 200 && workers > 0;
    for (size_t i = 0; good && i < workers; i++)
        good = json_is_null(json_array_get(results, i));
    if (!good)
        rc = ws_error_set(err, EREMOTEIO, "%s did not reload %s: %ld %.600s", t->url, path, reply.status,
                          reply.text);
    ws_http_reply_release(&reply);
    return !rc && workers > 1 ? ws_vllm_check_step(t, workers, err) : rc;
}

static int record_version(const struct ws_engine_target *t, const char *version, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/update_weight_version", json_pack("{s:s}", "new_version", version),
                               ws_call_short_ms(t), &reply, err);
    if (rc == -EPROTO && !(t->facts && t->facts->known))
        return 0; /* kept by the caller */
    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc =
            ws_error_set(err, EREMOTEIO, "%s did not record version %s: %.300s", t->url, version, reply.text);
    ws_http_reply_release(&reply);
    if (rc)
        return rc;
    rc = ws_call_get(t, "/weight_info", &reply, err);
    if (rc)
        return rc;
    if (strcmp(ws_call_text(&reply, "weight_version"), version) != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s said that it recorded version %s, but names '%.64s'", t->url,
                          version, ws_call_text(&reply, "weight_version"));
    ws_http_reply_release(&reply);
    return rc;
}

/* It has the version's weights: only the mount's end still keeps it from saying so, no cancel and no deadline. */
static int record_loaded(const struct ws_engine_target *target, const char *version, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    memset(t.cancel + 1, 0, sizeof(t.cancel) - sizeof(t.cancel[0]));
    t.end_ns = 0;
    return record_version(&t, version, err);
}

static int label(const struct ws_engine_target *t, const char *version, struct ws_error *err)
{
    return has(t, HAS_VERSION) ? record_version(t, version, err)
                               : ws_error_set(err, EPROTO, "%s keeps no version of its weights", t->url);
}
static int load(const struct ws_engine_target *t, const char *path, const char *version, struct ws_error *err)
{
    int rc = t->sleeping ? wake(t, "/wake_up?tags=weights", err) : 0;
    if (rc)
        return rc;
    rc = stay_paused(t, err);
    if (!rc)
        rc = has(t, HAS_RPC) ? reload_by_rpc(t, path, err) : ws_vllm_transfer(t, path, version, err);
    if (rc)
        return t->sleeping ? ws_call_after_request(rc, err) : rc;
    if (has(t, HAS_VERSION))
        rc = record_loaded(t, version, err);
    return ws_call_after_request(rc, err);
}

/* Nothing of the target changes: what is recorded of it stays. */
static int load_draft(const struct ws_engine_target *t, const char *path, const char *version,
                      struct ws_error *err)
{
    (void)version; /* no route records a draft model's */
    int rc = t->sleeping ? wake(t, "/wake_up?tags=weights", err) : 0;
    if (!rc)
        rc = stay_paused(t, err);
    return rc ? rc : ws_vllm_transfer_draft(t, path, err);
}

/* A failure of a worker, also for want of the method, is a 500. */
static int patch_by_rpc(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                        struct ws_engine_patch_reply *out, struct ws_error *err)
{
    json_t *arguments = ws_engine_patch_arguments(ask);
    json_t *body = arguments ? json_pack("{s:s, s:o}", "method", "wsync_patch", "kwargs", arguments) : NULL;
    struct ws_http_reply reply;
    int rc =
        ws_call_post_once(t, "/collective_rpc", body, ws_engine_patch_within_ms(t, ask->stage), &reply, err);
    if (rc)
        return rc;
    rc = reply.status == 200
             ? ws_engine_patch_read(t, ask, json_object_get(reply.json, "results"), 0, out, err)
             : ws_engine_patch_not_offered(t, &reply, err);
    ws_http_reply_release(&reply);
    return rc;
}

/* A method that one of several workers does not have leaves the answers of the others in the way of the next call. So an older
 * package, which does not patch, is asked what all have. */
static int check_workers_know(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/collective_rpc", json_pack("{s:s}", "method", "wsync_serving"),
                               ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    const json_t *results = json_object_get(reply.json, "results");
    bool know = reply.status == 200 && json_array_size(results) > 0;
    for (size_t i = 0; know && i < json_array_size(results); i++)
        know = json_is_true(json_object_get(json_array_get(results, i), "patches"));
    if (!know)
        rc = ws_engine_patch_not_offered(t, &reply, err);
    ws_http_reply_release(&reply);
    return rc;
}

/* What else it is asked does not count as the stage. */
static int patch(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                 struct ws_engine_patch_reply *out, struct ws_error *err)
{
    const bool changes = ask->stage == WS_PATCH_PUT || ask->stage == WS_PATCH_UNDO;
    struct ws_engine_target aside = *t;
    aside.acted = NULL;
    if (!has(t, HAS_RPC))
        return ws_error_set(err, EPROTO, "%s offers no /collective_rpc, by which workers patch", t->url);
    int rc = changes                        ? stay_paused(&aside, err)
             : ask->stage == WS_PATCH_STATE ? check_workers_know(&aside, err)
                                            : 0;
    if (rc == 0)
        rc = patch_by_rpc(t, ask, out, err);
    if (rc == 0 && changes && out->ok && has(t, HAS_VERSION))
        rc = record_loaded(&aside, ask->version, err);
    return rc;
}

/* {"success": bool}; older releases answer without a body. Requests that were frozen in the pause hold
 * blocks: they give them up and are computed anew, with the new weights. */
static int flush_once(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_plain(t,
                           t->cache == WS_CACHE_EXTERNAL
                               ? "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
                               : "/reset_prefix_cache?reset_running_requests=true",
                           0, &reply, err);
    if (rc)
        return rc;
    const json_t *success = json_object_get(reply.json, "success");
    if (json_is_false(success))
        rc = ws_error_set(err, EBUSY, "%s did not empty its prefix cache: requests hold parts of it", t->url);
    else if (!json_is_true(success) && reply.text[0] && strcmp(reply.text, "null") != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s does not say whether it emptied its prefix cache: %.300s",
                          t->url, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int reset_encoder(const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = has(t, HAS_ENCODER) ? ws_call_plain(t, "/reset_encoder_cache", 0, NULL, err) : -EPROTO;
    if (rc != -EPROTO)
        return rc;
    ws_log(WS_LOG_WARN, "engine",
           "%s has no /reset_encoder_cache: if its model takes images, those that it has seen keep what old "
           "weights made of them",
           t->url);
    return 0;
}

static int flush(const struct ws_engine_target *t, struct ws_error *err)
{
    const bool known = t->facts && t->facts->known, local = t->cache == WS_CACHE_LOCAL;
    int rc = reset_encoder(t, err);
    if (rc || t->cache == WS_CACHE_KEEP || (local && !has(t, HAS_RESET)))
        return rc; /* without the route the pause has emptied it (clear_cache) */
    rc = ws_call_while_busy(t, ws_call_short_ms(t), flush_once, err);
    return rc == -EPROTO && local && !known ? 0 : rc;
}

const struct ws_engine_ops ws_engine_vllm = {
    .kind = "vllm",
    .pause_modes = pause_modes,
    .reports_version = true,
    .probe = probe,
    .pause = pause_engine,
    .drain = drain,
    .label = label,
    .load = load,
    .flush = flush,
    .resume = resume,
    .serving = serving,
    .start_path = start_path,
    .load_drops_adapters = true,
    .adapter_load = ws_vllm_adapter_load,
    .adapter_unload = ws_vllm_adapter_unload,
    .adapters = ws_vllm_adapters,
    .load_draft = load_draft,
    .process = process,
    .patch = patch,
};
