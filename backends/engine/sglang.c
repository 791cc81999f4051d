/* SGLang, by the routes of its HTTP server (read from 0.5.23 and tried against it).
 *
 * What shapes this file:
 * - SGLang checks nothing and cannot roll back: a truncated file kills it without a reply. So a load
 *   that gave no reply says nothing, and a load that said "success" is believed only after
 *   /model_info names the new path and version.
 * - Pausing by `retract` puts running requests back into the queue and frees their KV cache, so that
 *   after the load no token is computed from old keys; `abort` is what older servers know; `in_place`
 *   keeps the cache.
 * - A load that flushes the cache answers success false where requests are in the way, although the weights
 *   are new, and records no version then. So the load leaves the cache alone, and the flush is a call of its
 *   own, which can be made again.
 * - /health runs a request and takes a second, so it is not used: /model_info answers at once. */
#include "backends/engine/call.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CLEAR_EXTERNAL     "/hicache/storage-backend/clear"
#define CLEAR_EXTERNAL_OLD "/clear_hicache_storage_backend"

static const char *const pause_modes[] = {"retract", "abort", "in_place", NULL};

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_get(t, "/model_info", &reply, err);

    if (rc == -EPROTO && !ws_call_get(t, "/get_model_info", &reply, NULL))
        rc = 0; /* its name in older versions */
    if (rc)
        return rc;
    *out = (struct ws_engine_serving){0};
    if (reply.status != 200 || !json_is_string(json_object_get(reply.json, "model_path")))
        rc = ws_error_set(err, EPROTO, "%s answered %ld without a model_path: this is no SGLang", t->url,
                          reply.status);
    if (!rc)
        rc = ws_call_copy(t, out->path, sizeof(out->path), ws_call_text(&reply, "model_path"), "model_path",
                          err);
    if (!rc)
        rc = ws_call_copy(t, out->version, sizeof(out->version), ws_call_text(&reply, "weight_version"),
                          "weight_version", err);
    ws_http_reply_release(&reply);
    return rc;
}

/* Are its keys ours, too, on the routes that change it? Where it has an admin key they want that one, and all
 * others the API key. This one of them changes nothing. */
static int check_admin(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_engine_target admin = *t;
    struct ws_http_reply reply;
    if (t->admin_token)
        admin.token = t->admin_token;
    int rc = ws_call_get(&admin, "/hicache/storage-backend", &reply, err);
    if (!rc)
        ws_http_reply_release(&reply);
    return rc == -EACCES ? rc : 0; /* older ones have no such route */
}

static int probe(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    bool has;
    int rc = serving(t, out, err);
    if (rc)
        return rc;
    *facts = (struct ws_engine_facts){.known = true};
    rc = ws_call_has_post(t, "/update_weights_from_disk", &has, err);
    if (!rc && !has)
        rc = ws_error_set(err, EPROTO,
                          "%s is an SGLang without /update_weights_from_disk: it is too old to switch",
                          t->url);
    if (!rc)
        rc = check_admin(t, err);
    if (rc)
        return rc;
    if (!ws_call_get(t, "/server_info", &reply,
                     NULL)) { /* may hold keys: nothing but the release is looked at */
        (void)ws_call_copy(t, facts->release, sizeof(facts->release), ws_call_text(&reply, "version"),
                           "version", NULL);
        ws_http_reply_release(&reply);
    }
    return 0;
}

/* {"message", "status": "ok"}: what pausing and resuming answer. */
static int check_ok(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                    struct ws_error *err)
{
    int rc = 0;

    if (reply->status != 200 || strcmp(ws_call_text(reply, "status"), "ok") != 0)
        rc = ws_error_set(err, EREMOTEIO, "%s refused %s: %ld %.300s", t->url, path, reply->status,
                          reply->text);
    ws_http_reply_release(reply);
    return rc;
}

static int pause_with(const struct ws_engine_target *t, const char *mode, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post(t, "/pause_generation", json_pack("{s:s}", "mode", mode), ws_call_short_ms(t),
                          &reply, err);

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
    json_t *body =
        json_pack("{s:s, s:s, s:b}", "model_path", path, "weight_version", version, "flush_cache", 0);
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/update_weights_from_disk", body, t->timeout_ms, &reply, err);

    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc = ws_error_set(err, EREMOTEIO, "%s did not load %s: %.600s", t->url, path,
                          ws_call_text(&reply, "message")[0] ? ws_call_text(&reply, "message") : reply.text);
    ws_http_reply_release(&reply);
    if (!rc)
        rc = confirm(t, path, version, err);
    return ws_call_told(rc, err);
}

/* 400: requests run or wait. While it is paused those that wait do not count. */
static int flush_once(const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = ws_call_plain(t, "/flush_cache", NULL, err);
    if (rc == -EREMOTEIO && err)
        err->code = EBUSY;
    return rc == -EREMOTEIO ? -EBUSY : rc;
}

/* What runs on after `in_place` needs its keys and values: they stay. */
static int flush(const struct ws_engine_target *t, struct ws_error *err)
{
    bool in_place = t->pause_mode && strcmp(t->pause_mode, "in_place") == 0;
    int rc = in_place || t->cache == WS_CACHE_KEEP ? 0 : ws_call_while_busy(t, flush_once, err);
    if (rc || t->cache != WS_CACHE_EXTERNAL)
        return rc;
    rc = ws_call_plain(t, CLEAR_EXTERNAL, NULL, err);
    return rc == -EPROTO ? ws_call_plain(t, CLEAR_EXTERNAL_OLD, NULL, err) : rc;
}

static int resume(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/continue_generation", json_object(), ws_call_short_ms(t), &reply, err);

    return rc ? rc : check_ok(t, "/continue_generation", &reply, err);
}

static int checksum(const struct ws_engine_target *t, char **out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post(t, "/weights_checker", json_pack("{s:s}", "action", "checksum"), t->timeout_ms,
                          &reply, err);

    *out = NULL;
    if (rc == -EPROTO)
        return ws_error_set(err, ENOTSUP, "%s has no /weights_checker", t->url);
    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc = ws_error_set(err, EREMOTEIO, "%s gave no checksum: %.600s", t->url, reply.text);
    else if (json_is_string(json_object_get(reply.json, "per_engine_checksum")))
        *out = strdup(ws_call_text(&reply, "per_engine_checksum"));
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
    .tells_path = true,
    .tells_version = true,
    .probe = probe,
    .pause = pause_engine,
    .load = load,
    .flush = flush,
    .resume = resume,
    .serving = serving,
    .checksum = checksum,
};
