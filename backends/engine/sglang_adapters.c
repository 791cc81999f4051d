/* SGLang's adapters (read from 0.5.23 and tried against it).
 *
 * What shapes this file:
 * - A name that is loaded already is refused (400); the list says which path it has.
 * - An unload stops new requests and waits for those under way before it answers; until then no other adapter is loaded
 *   or unloaded. While requests are held by a pause in place that lasts as long as the pause. So it has the time of
 *   a load, and a deadline (t->end_ns) ends the wait; the engine goes on with it.
 * - A request that names an unloaded adapter has it loaded again, silently, from the path that it had. So a name is
 *   given to one path for ever.
 * - A load of the base leaves adapters as they are.
 * - Without --enable-lora it refuses with that reason, and lists nothing: then it is asked what it was started with.
 * - Which keys of an adapter's file it ignores: adapter_config.c. */
#include "backends/engine/sglang_adapters.h"
#include "backends/engine/adapters.h"
#include "backends/engine/sglang_info.h"
#include <errno.h>
#include <string.h>

static int not_enabled(const struct ws_engine_target *t, struct ws_error *err)
{
    return ws_error_set(
        err, EPROTO,
        "%s takes no adapters: start it with --enable-lora --max-lora-rank N --lora-target-modules all",
        t->url);
}

/* 200, or 400 with a reason: both are confirmed by the list. */
static int change(const struct ws_engine_target *t, const char *route, json_t *body,
                  struct ws_http_reply *reply, const char **said, struct ws_error *err)
{
    int rc = ws_call_post_once(t, route, body, t->timeout_ms, reply, err);
    if (rc)
        return rc;
    const char *reason = ws_call_text(reply, "error_message");
    *said = reason[0] ? reason : reply->text;
    if (strstr(*said, "LoRA is not enabled"))
        rc = not_enabled(t, err);
    else if (reply->status != 200 && reply->status != 400)
        rc = ws_error_set(err, EREMOTEIO, "%s refused %s: %ld %.600s", t->url, route, reply->status, *said);
    if (rc)
        ws_http_reply_release(reply);
    return rc;
}

int ws_sglang_adapter_load(const struct ws_engine_target *t, const char *name, const char *path,
                           struct ws_error *err)
{
    struct ws_http_reply reply;
    const char *said;
    int rc = change(t, "/load_lora_adapter", json_pack("{s:s, s:s}", "lora_name", name, "lora_path", path),
                    &reply, &said, err);
    if (rc)
        return rc;
    rc = ws_adapters_confirm_loaded(t, name, path, said, err);
    ws_http_reply_release(&reply);
    return rc;
}

int ws_sglang_adapter_unload(const struct ws_engine_target *t, const char *name, struct ws_error *err)
{
    struct ws_http_reply reply;
    const char *said;
    int rc = change(t, "/unload_lora_adapter", json_pack("{s:s}", "lora_name", name), &reply, &said, err);
    if (rc == -ETIMEDOUT)
        return ws_error_set(
            err, ETIMEDOUT,
            "%s did not finish unloading adapter %s: it waits for requests that use it, and takes no "
            "other adapter meanwhile",
            t->url, name);
    if (rc)
        return rc;
    rc = ws_adapters_confirm_unloaded(t, name, said, err);
    ws_http_reply_release(&reply);
    return rc;
}

/* One without adapters and one without --enable-lora list the same. Older releases do not say which. */
static int check_enabled(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_sglang_info(t, &reply, err);
    if (rc)
        return rc;
    if (json_is_false(json_object_get(reply.json, "enable_lora")) ||
        json_is_null(json_object_get(reply.json, "enable_lora")))
        rc = not_enabled(t, err);
    ws_http_reply_release(&reply);
    return rc;
}

int ws_sglang_adapters(const struct ws_engine_target *t, struct ws_engine_adapters *out, struct ws_error *err)
{
    int rc = ws_adapters_list(t, out, err);
    return rc || out->n > 0 || out->more ? rc : check_enabled(t, err);
}
