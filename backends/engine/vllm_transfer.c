/* What shapes this file:
 * - The back end has to be wsync's, which takes a path. It loads a whole version or, with an error, none; vLLM's own
 *   ones wait for a trainer.
 * - A draft session is the only way to a draft model: reload_weights is the target's alone. No route tells which
 *   weights a draft model has. That all three steps answered is all there is, and the back end answers the second
 *   only when every parameter was filled.
 * - Finishing a draft's session names no version: vLLM would record it as the target's.
 * - A session that nobody finished (its caller was killed) refuses all later ones. wsync's back end does nothing at a
 *   finish, so it is finished and the new one started, where the refusal has left the workers in step. */
#include "backends/engine/vllm_transfer.h"
#include "backends/engine/call.h"
#include <errno.h>
#include <string.h>

#define START_DRAFT "/start_draft_weight_update"
#define NEEDED                                                                                               \
    "start it as vLLM 0.32 or newer with --speculative-config, --weight-transfer-config '{\"backend\": "     \
    "\"wsync\"}' and "                                                                                       \
    "the Python package wsync beside it"

static int step(const struct ws_engine_target *t, const char *route, json_t *body, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_explained(t, route, body, t->timeout_ms, &reply, err);
    if (rc)
        return rc;
    if (reply.status != 200)
        rc = ws_error_set(err, EREMOTEIO, "%s refused %s: %ld %.600s", t->url, route, reply.status,
                          reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

/* So several are asked what is never answered by null, as a reload is; the executor asks it at each start. */
int ws_vllm_check_step(const struct ws_engine_target *t, size_t workers, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/collective_rpc", json_pack("{s:s}", "method", "get_supported_tasks"),
                               ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    const json_t *results = json_object_get(reply.json, "results");
    const size_t n = json_array_size(results);
    bool good = reply.status == 200 && n > 0 && (!workers || n == workers);
    for (size_t i = 0; good && i < n; i++)
        good = !json_is_null(json_array_get(results, i));
    if (!good)
        rc = ws_error_set(
            err, EREMOTEIO,
            "%s: since an earlier call failed, its workers answer the call before; it is not known "
            "whether they loaded: restart it",
            t->url);
    ws_http_reply_release(&reply);
    return rc;
}

static int start_once(const struct ws_engine_target *t, const char *route, struct ws_error *err)
{
    return step(t, route, json_pack("{s:b}", "is_checkpoint_format", 1), err);
}

static int start(const struct ws_engine_target *t, const char *route, struct ws_error *err)
{
    struct ws_error why = {0};
    int rc = start_once(t, route, &why);
    if (rc == -EREMOTEIO && strstr(why.text, "already active")) {
        rc = ws_vllm_check_step(t, 0, &why);
        if (!rc)
            rc = step(t, "/finish_weight_update", json_object(), &why);
        if (!rc)
            rc = start_once(t, route, &why);
    }
    if (rc && err)
        *err = why;
    return rc;
}

static int update(const struct ws_engine_target *t, const char *path, struct ws_error *err)
{
    return step(t, "/update_weights", json_pack("{s:{s:s}}", "update_info", "weights_path", path), err);
}

int ws_vllm_transfer(const struct ws_engine_target *t, const char *path, const char *version,
                     struct ws_error *err)
{
    int rc = start(t, "/start_weight_update", err);
    if (rc)
        return rc;
    rc = update(t, path, err);
    if (!rc)
        rc = step(t, "/finish_weight_update", json_pack("{s:s}", "weight_version", version), err);
    return ws_call_after_request(rc, err);
}

/* Is the refusal one of how it was started? Another back end answers only when it gets what it does not know. */
static bool cannot(const char *text)
{
    static const char *const reasons[] = {"not configured", "does not support draft", "no draft model",
                                          "Invalid update_info"};
    bool found = false;
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        found = found || strstr(text, reasons[i]);
    return found;
}

int ws_vllm_transfer_draft(const struct ws_engine_target *t, const char *path, struct ws_error *err)
{
    struct ws_error why = {0};
    int rc = start(t, START_DRAFT, &why);
    bool started = rc == 0;
    if (started)
        rc = update(t, path, &why);
    if (rc == -EPROTO || (rc == -EREMOTEIO && cannot(why.text)))
        return ws_error_set(err, EPROTO, "%s cannot load a draft model: " NEEDED " (%.400s)", t->url,
                            why.text);
    if (!rc)
        rc = step(t, "/finish_weight_update", json_object(), &why);
    if (started)
        rc = ws_call_after_request(rc, &why);
    if (rc && err)
        *err = why;
    return rc;
}
