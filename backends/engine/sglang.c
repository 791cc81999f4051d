/* SGLang, by the routes of its HTTP server (read from 0.5.23 and tried against it).
 *
 * What shapes this file:
 * - SGLang checks nothing and cannot roll back: a truncated file kills it without a reply. So a load
 *   that gave no reply says nothing, and a load that said "success" is believed only after
 *   /model_info names the new path and version.
 * - Pausing by `retract` puts running requests back into the queue and frees their KV cache, so that
 *   after the load no token is computed from old keys; `abort` is what older servers know; `in_place`
 *   keeps the cache, and then the load must not flush it: the server would answer success false
 *   although the weights are new.
 * - /health runs a request and takes a second, so it is not used: /model_info answers at once. */
#include "backends/engine/engine.h"
#include "backends/engine/http.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_MS 5000U

static const char *const pause_modes[] = {"retract", "abort", "in_place", NULL};

/* What a reply means before its body is looked at. */
static int check_status(const struct ws_engine_target *t, const char *path, long status, struct ws_error *err)
{
    if (status == 401 || status == 403)
        return ws_error_set(err, EACCES,
                            "%s%s answered %ld: it wants a key; name the file that holds "
                            "its admin or API key with token-file=",
                            t->url, path, status);
    if (status == 404 || status == 405)
        return ws_error_set(err, EPROTO,
                            "%s answered %ld to %s: this is no SGLang, or one that is too "
                            "old to switch weights",
                            t->url, status, path);
    if (status >= 300 && status < 400)
        return ws_error_set(err, EPROTO,
                            "%s%s answered with a redirect, which is not followed; use the "
                            "engine's own address",
                            t->url, path);
    if (status >= 500)
        return ws_error_set(err, EREMOTEIO, "%s%s failed with status %ld; look into the engine's log", t->url,
                            path, status);
    return 0;
}

/* One call whose reply holds a JSON object. body NULL: GET. */
static int call(const struct ws_engine_target *t, const char *path, const json_t *body, unsigned timeout_ms,
                struct ws_http_reply *reply, struct ws_error *err)
{
    struct ws_http_request request = {
        .url = t->url,
        .path = path,
        .body = body,
        .token = t->token,
        .timeout_ms = timeout_ms,
        .cancel = t->cancel,
    };
    int rc = ws_http_call(&request, reply, err);

    if (rc)
        return rc;
    rc = check_status(t, path, reply->status, err);
    if (!rc && !json_is_object(reply->json))
        rc = ws_error_set(err, EPROTO, "%s%s answered %ld and no JSON object: this is no SGLang", t->url,
                          path, reply->status);
    if (rc)
        ws_http_reply_release(reply);
    return rc;
}

/* body is stolen. */
static int post(const struct ws_engine_target *t, const char *path, json_t *body, unsigned timeout_ms,
                struct ws_http_reply *reply, struct ws_error *err)
{
    int rc;

    if (!body)
        return ws_error_set(err, EINVAL, "what %s%s is to be told is no UTF-8", t->url, path);
    rc = call(t, path, body, timeout_ms, reply, err);
    json_decref(body);
    return rc;
}

static unsigned short_ms(const struct ws_engine_target *t)
{
    unsigned part = t->timeout_ms / 10;

    return part > LEAST_MS ? part : LEAST_MS;
}

static const char *text_of(const struct ws_http_reply *reply, const char *key)
{
    const char *text = json_string_value(json_object_get(reply->json, key));

    return text ? text : "";
}

/* Copies what the engine says of itself; what does not fit is no version and no path of ours. */
static int copy_text(const struct ws_engine_target *t, char *out, size_t room, const char *text,
                     const char *what, struct ws_error *err)
{
    size_t n = strlen(text);

    if (n >= room)
        return ws_error_set(err, EPROTO, "%s reports a %s of %zu bytes", t->url, what, n);
    memcpy(out, text, n + 1);
    return 0;
}

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = call(t, "/model_info", NULL, short_ms(t), &reply, err);

    if (rc == -EPROTO && !call(t, "/get_model_info", NULL, short_ms(t), &reply, NULL))
        rc = 0; /* its name in older versions */
    if (rc)
        return rc;
    *out = (struct ws_engine_serving){0};
    if (reply.status != 200 || !json_is_string(json_object_get(reply.json, "model_path")))
        rc = ws_error_set(err, EPROTO, "%s answered %ld without a model_path: this is no SGLang", t->url,
                          reply.status);
    if (!rc)
        rc = copy_text(t, out->path, sizeof(out->path), text_of(&reply, "model_path"), "model_path", err);
    if (!rc)
        rc = copy_text(t, out->version, sizeof(out->version), text_of(&reply, "weight_version"),
                       "weight_version", err);
    ws_http_reply_release(&reply);
    return rc;
}

/* {"message", "status": "ok"}: what pausing and resuming answer. */
static int check_ok(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                    struct ws_error *err)
{
    int rc = 0;

    if (reply->status != 200 || strcmp(text_of(reply, "status"), "ok") != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s refused %s: %ld %.300s", t->url, path, reply->status,
                          reply->text);
    ws_http_reply_release(reply);
    return rc;
}

static int pause_with(const struct ws_engine_target *t, const char *mode, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = post(t, "/pause_generation", json_pack("{s:s}", "mode", mode), short_ms(t), &reply, err);

    return rc ? rc : check_ok(t, "/pause_generation", &reply, err);
}

static int pause_engine(const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = pause_with(t, t->pause_mode ? t->pause_mode : pause_modes[0], err);

    if (rc == -EREMOTEIO && !t->pause_mode) /* a server that does not know retract */
        rc = pause_with(t, "abort", err);
    return rc;
}

/* Success is what the engine serves afterwards. */
static int confirm(const struct ws_engine_target *t, const char *path, const char *version,
                   struct ws_error *err)
{
    struct ws_engine_serving now;
    int rc = serving(t, &now, err);

    if (rc)
        return rc;
    if (strcmp(now.path, path) != 0 || (now.version[0] && strcmp(now.version, version) != 0))
        return ws_error_set(err, EREMOTEIO, "%s said that it loaded %s, but serves version '%s' of %s",
                            t->url, path, now.version, now.path);
    return 0;
}

static int load(const struct ws_engine_target *t, const char *path, const char *version, struct ws_error *err)
{
    bool flush = !t->pause_mode || strcmp(t->pause_mode, "in_place") != 0;
    json_t *body =
        json_pack("{s:s, s:s, s:b}", "model_path", path, "weight_version", version, "flush_cache", flush);
    struct ws_http_reply reply;
    int rc = post(t, "/update_weights_from_disk", body, t->timeout_ms, &reply, err);

    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc = ws_error_set(err, EREMOTEIO, "%s did not load %s: %.600s", t->url, path,
                          text_of(&reply, "message")[0] ? text_of(&reply, "message") : reply.text);
    ws_http_reply_release(&reply);
    return rc ? rc : confirm(t, path, version, err);
}

static int resume(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = post(t, "/continue_generation", json_object(), short_ms(t), &reply, err);

    return rc ? rc : check_ok(t, "/continue_generation", &reply, err);
}

static int checksum(const struct ws_engine_target *t, char **out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc =
        post(t, "/weights_checker", json_pack("{s:s}", "action", "checksum"), t->timeout_ms, &reply, err);

    *out = NULL;
    if (rc == -EPROTO)
        return ws_error_set(err, ENOTSUP, "%s has no /weights_checker", t->url);
    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc = ws_error_set(err, EREMOTEIO, "%s gave no checksum: %.600s", t->url, reply.text);
    else if (json_is_string(json_object_get(reply.json, "per_engine_checksum")))
        *out = strdup(text_of(&reply, "per_engine_checksum"));
    else
        *out = json_dumps(json_object_get(reply.json, "ranks"), JSON_COMPACT | JSON_SORT_KEYS);
    if (!rc && !*out)
        rc = ws_error_set(err, EPROTO, "%s answered a checksum without ranks", t->url);
    ws_http_reply_release(&reply);
    return rc;
}

const struct ws_engine_ops ws_engine_sglang = {
    .kind = "sglang",
    .pause_modes = pause_modes,
    .probe = serving,
    .pause = pause_engine,
    .load = load,
    .resume = resume,
    .serving = serving,
    .checksum = checksum,
};
