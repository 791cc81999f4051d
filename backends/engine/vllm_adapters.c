/* vLLM's adapters, by routes that its development mode has nothing to do with (tried against 0.32).
 *
 * What shapes this file:
 * - The routes are there only with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; without --enable-lora a load fails inside.
 * - A load has the engine read and check the adapter at once, on all replicas; one that fails on any is not listed.
 * - load_inplace is never sent: the engine keeps it, and reads the files again at every step. Without it a name that is
 *   loaded already is refused (400), also where the first try's answer was lost; the list says which path it has.
 * - Keys and values are kept by name and path, so that both have to be new for new weights.
 * - An unload takes the name from the list; requests under way finish on the adapter. */
#include "backends/engine/vllm_adapters.h"
#include "backends/engine/adapters.h"
#include <errno.h>
#include <string.h>

#define LOAD   "/v1/load_lora_adapter"
#define UNLOAD "/v1/unload_lora_adapter"

static int not_enabled(const struct ws_engine_target *t, struct ws_error *err)
{
    return ws_error_set(err, EPROTO,
                        "%s takes no adapters: start it with --enable-lora, --max-lora-rank and "
                        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
                        t->url);
}

static int check_routes(const struct ws_engine_target *t, struct ws_error *err)
{
    bool has;
    int rc = ws_call_has_post(t, LOAD, &has, err);
    return rc || has ? rc : not_enabled(t, err);
}

int ws_vllm_adapter_load(const struct ws_engine_target *t, const char *name, const char *path,
                         struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = check_routes(t, err);
    if (rc)
        return rc;
    rc = ws_call_explained(t, LOAD, json_pack("{s:s, s:s}", "lora_name", name, "lora_path", path),
                           t->timeout_ms, &reply, err);
    if (rc)
        return rc;
    if (reply.status >= 500 && strstr(reply.text, "LoRA is not enabled"))
        rc = not_enabled(t, err);
    else if (reply.status == 200 || reply.status == 400)
        rc = ws_adapters_confirm_loaded(t, name, path, reply.text, err);
    else
        rc = ws_error_set(err, EREMOTEIO, "%s did not load adapter %s of %s: %ld %.600s", t->url, name, path,
                          reply.status, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

/* 404: it has no such adapter. */
int ws_vllm_adapter_unload(const struct ws_engine_target *t, const char *name, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = check_routes(t, err);
    if (rc)
        return rc;
    rc =
        ws_call_explained(t, UNLOAD, json_pack("{s:s}", "lora_name", name), ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    rc = ws_adapters_confirm_unloaded(t, name, reply.text, err);
    ws_http_reply_release(&reply);
    return rc;
}

int ws_vllm_adapters(const struct ws_engine_target *t, struct ws_engine_adapters *out, struct ws_error *err)
{
    int rc = check_routes(t, err);
    return rc ? rc : ws_adapters_list(t, out, err);
}
