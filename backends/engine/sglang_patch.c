/* What shapes this file: of SGLang's routes only /weights_checker reaches every scheduler with a text, between two steps of
 * it, whether the server is paused or not, and brings an object of each back. Its word for what is to be done is any text:
 * the plug-in of our Python package takes those that begin with "wsync_patch:", and SGLang refuses what it does not know
 * before a scheduler has done anything. */
#include "backends/engine/sglang_patch.h"
#include <errno.h>
#include <stdlib.h>

#define WORD "wsync_patch"

/* NULL: no memory, or no UTF-8. */
static json_t *make_body(const struct ws_engine_patch *ask)
{
    json_t *arguments = ws_engine_patch_arguments(ask), *body = NULL;
    char *text = arguments ? json_dumps(arguments, JSON_COMPACT) : NULL;
    if (text)
        body = json_pack("{s:s+}", "action", WORD ":", text);
    free(text);
    json_decref(arguments);
    return body;
}

/* What the schedulers say, each as text in its checksums. NULL: one says nothing of the kind. */
static json_t *find_results(const struct ws_http_reply *reply)
{
    const json_t *ranks = json_object_get(reply->json, "ranks"), *one;
    json_t *all = json_array();
    size_t i;
    json_array_foreach(ranks, i, one)
    {
        const char *text = json_string_value(json_object_get(json_object_get(one, "checksums"), WORD));
        json_t *said = text ? json_loads(text, 0, NULL) : NULL;
        if (!said || json_array_append_new(all, said) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

int ws_sglang_patch(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                    struct ws_engine_patch_reply *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/weights_checker", make_body(ask),
                               ws_engine_patch_within_ms(t, ask->stage), &reply, err);
    if (rc)
        return rc;
    json_t *results = reply.status == 200 && json_is_true(json_object_get(reply.json, "success"))
                          ? find_results(&reply)
                          : NULL;
    rc = results ? ws_engine_patch_read(t, ask, results, 0, out, err)
                 : ws_engine_patch_not_offered(t, &reply, err);
    json_decref(results);
    ws_http_reply_release(&reply);
    return rc;
}
