/* vLLM, by the development routes of its HTTP server (VLLM_SERVER_DEV_MODE=1; tried against 0.32).
 *
 * What shapes this file:
 * - A reload that fails answers 500 and leaves no weights behind: a request after a /resume would kill the
 * server. So it is never resumed before a reload that answered 200; a good reload, sometimes two, makes it
 * whole again.
 * - A reload does not touch the recorded version: /update_weight_version is told afterwards, so that a
 * version which is recorded is also loaded. vLLM does not say which path it loaded last; at its start it is
 * the model's.
 * - A folder that is not there is taken for the name of a model on a hub, and a missing tensor answers 200:
 * what is to be loaded is checked before (the gate of a switch).
 * - A pause empties the prefix cache (clear_cache), but newer releases do not promise it of `keep`: so it is
 * emptied again after the load, by a call that says whether it was.
 * - Newer releases have start, update and finish routes for weight transfers; they are used where
 * collective_rpc is not offered.
 * - A sleeping engine has no weights to reload: they are woken first, the cache after the load. /is_sleeping
 * says true of a paused one too, and /wake_up would end the pause: so it is asked before the pause, and
 * believed only then. */
#include "backends/engine/call.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HAS_RPC = 1, HAS_VERSION = 2, HAS_TRANSFER = 4, HAS_SLEEP = 8, HAS_RESET = 16 };

static const char *const pause_modes[] = {"keep", "wait", "abort", NULL};

static bool has(const struct ws_engine_target *t, unsigned route)
{
    return !t->facts || !t->facts->known || t->facts->routes & route;
}

/* {"KEY": bool} of a GET. */
static int ask_bool(const struct ws_engine_target *t, const char *path, const char *key, bool *out,
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

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    *out = (struct ws_engine_serving){0};
    int rc = ask_bool(t, "/is_paused", "is_paused", &out->paused, err);
    if (!rc && !out->paused && has(t, HAS_SLEEP) &&
        ask_bool(t, "/is_sleeping", "is_sleeping", &out->sleeping, NULL))
        out->sleeping = false; /* a release that cannot sleep */
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
                  {HAS_RESET, "/reset_prefix_cache"}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        bool there;
        int rc = ws_call_has_post(t, routes[i].path, &there, err);
        if (rc)
            return rc;
        facts->routes |= there ? routes[i].bit : 0;
        if (!there)
            n += (size_t)snprintf(facts->lacks + n, sizeof(facts->lacks) - n, "%s%s", n ? " " : "",
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
    with.facts = facts;
    rc = serving(&with, out, err);
    if (!rc && (!out->version[0] || strcmp(out->version, "default") == 0))
        rc = start_path(t, out, err);
    return rc;
}

static int pause_engine(const struct ws_engine_target *t, struct ws_error *err)
{
    char path[96];
    struct ws_http_reply reply;
    snprintf(path, sizeof(path), "/pause?mode=%s&clear_cache=%s",
             t->pause_mode ? t->pause_mode : pause_modes[0], t->cache == WS_CACHE_KEEP ? "false" : "true");
    int rc = ws_call_post(t, path, json_object(), ws_call_pause_ms(t), &reply, err);
    if (rc)
        return rc;
    if (reply.status != 200 || strcmp(ws_call_text(&reply, "status"), "paused") != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s did not pause: %ld %.300s", t->url, reply.status, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int resume(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/resume", json_object(), ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    if (reply.status != 200 || strcmp(ws_call_text(&reply, "status"), "resumed") != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s did not resume: %ld %.300s", t->url, reply.status, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

/* 200 with one result a worker; each worker's is null where all went well. */
static int reload_by_rpc(const struct ws_engine_target *t, const char *path, struct ws_error *err)
{
    json_t *body = json_pack("{s:s, s:{s:s}, s:i}", "method", "reload_weights", "kwargs", "weights_path",
                             path, "timeout", (int)(t->timeout_ms / 1000 ? t->timeout_ms / 1000 : 1));
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/collective_rpc", body, t->timeout_ms, &reply, err);
    if (rc)
        return rc;
    const json_t *results = json_object_get(reply.json, "results");
    bool good = reply.status == 200 && json_array_size(results) > 0;
    for (size_t i = 0; good && i < json_array_size(results); i++)
        good = json_is_null(json_array_get(results, i));
    if (!good)
        rc = ws_error_set(err, EREMOTEIO, "%s did not reload %s: %ld %.600s", t->url, path, reply.status,
                          reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int transfer_step(const struct ws_engine_target *t, const char *route, json_t *body,
                         struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, route, body, t->timeout_ms, &reply, err);
    if (rc)
        return rc;
    if (reply.status != 200)
        rc = ws_error_set(err, EREMOTEIO, "%s refused %s: %ld %.600s", t->url, route, reply.status,
                          reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int reload_by_transfer(const struct ws_engine_target *t, const char *path, const char *version,
                              struct ws_error *err)
{
    int rc = transfer_step(t, "/start_weight_update", json_pack("{s:b}", "is_checkpoint_format", 1), err);
    if (rc)
        return rc;
    rc =
        transfer_step(t, "/update_weights", json_pack("{s:{s:s}}", "update_info", "weights_path", path), err);
    if (!rc)
        rc = transfer_step(t, "/finish_weight_update", json_pack("{s:s}", "weight_version", version), err);
    return ws_call_told(rc, err);
}

static int record_version(const struct ws_engine_target *t, const char *version, struct ws_error *err)
{
    struct ws_http_reply reply;
    struct ws_engine_serving now;
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
    if (!rc)
        rc = serving(t, &now, err);
    if (!rc && strcmp(now.version, version) != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s said that it recorded version %s, but names '%s'", t->url,
                          version, now.version);
    return rc;
}

static int wake(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_error why = {0};
    int rc = ws_call_plain(t, "/wake_up?tags=weights", NULL, &why);
    if (rc == -EREMOTEIO || rc == -EPROTO)
        return ws_error_set(err, EAGAIN, "%s sleeps and could not be woken: %.700s; wake it and try again",
                            t->url, why.text);
    if (rc && err)
        *err = why;
    return rc;
}

static int load(const struct ws_engine_target *t, const char *path, const char *version, struct ws_error *err)
{
    int rc = t->sleeping ? wake(t, err) : 0;
    if (rc)
        return rc;
    rc = has(t, HAS_RPC) ? reload_by_rpc(t, path, err) : reload_by_transfer(t, path, version, err);
    if (rc)
        return t->sleeping ? ws_call_told(rc, err) : rc;
    if (t->sleeping)
        rc = ws_call_plain(t, "/wake_up?tags=kv_cache", NULL, err);
    if (!rc && has(t, HAS_VERSION))
        rc = record_version(t, version, err);
    return ws_call_told(rc, err);
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
                           &reply, err);
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

static int flush(const struct ws_engine_target *t, struct ws_error *err)
{
    if (t->cache == WS_CACHE_KEEP || (t->cache == WS_CACHE_LOCAL && !has(t, HAS_RESET)))
        return 0; /* without the route the pause has emptied it (clear_cache) */
    return ws_call_while_busy(t, flush_once, err);
}

static int checksum(const struct ws_engine_target *t, char **out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post(t, "/weight_checker", json_pack("{s:s}", "action", "checksum"), t->timeout_ms,
                          &reply, err);
    *out = NULL;
    if (rc == -EPROTO)
        return ws_error_set(err, ENOTSUP, "%s has no /weight_checker", t->url);
    if (rc)
        return rc;
    if (reply.status == 200 && json_is_object(json_object_get(reply.json, "checksums")))
        *out = json_dumps(json_object_get(reply.json, "checksums"), JSON_COMPACT | JSON_SORT_KEYS);
    if (!*out)
        rc = ws_error_set(err, EREMOTEIO, "%s gave no checksum: %.600s", t->url, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

const struct ws_engine_ops ws_engine_vllm = {
    .kind = "vllm",
    .pause_modes = pause_modes,
    .tells_version = true,
    .tells_paused = true,
    .probe = probe,
    .pause = pause_engine,
    .load = load,
    .flush = flush,
    .resume = resume,
    .serving = serving,
    .checksum = checksum,
};
