#include "fs/pull/cuda_ipc_file.h"
#include "fs/store/poller.h"
#include "fs/store/state.h"
#include <errno.h>
#include <inttypes.h>

/* Held; NULL: no source shares it. */
static struct ws_watch *sharer(struct ws_version *v)
{
    struct ws_store *s = v->store;
    struct ws_watch *w = NULL;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; !w && i < WS_MAX_SOURCES; i++)
        if (s->watches[i] && s->watches[i]->up && (v->on_gpus & ws_bit(i)))
            w = ws_watch_get(s->watches[i]);
    pthread_mutex_unlock(&s->lock);
    return w;
}

bool ws_version_is_on_gpus(struct ws_version *v)
{
    struct ws_watch *w = sharer(v);

    if (w)
        ws_watch_put(w);
    return w != NULL;
}

int ws_gpu_print(struct ws_version *v, FILE *f, struct ws_error *err)
{
    struct ws_watch *w = sharer(v);
    json_t *reply = NULL, *body;

    if (!w)
        return ws_error_set(err, ENOENT, "version %" PRIu64 " of %s is not shared on GPUs", v->number,
                            v->model->name);
    body =
        json_pack("{s:s,s:I,s:s}", "model", v->model->name, "version", (json_int_t)v->number, "run", v->run);
    int rc = body ? ws_source_call(w->source, "POST", "/v1/local/gpu/look", body, &reply, err)
                  : ws_error_set(err, ENOMEM, "no memory for a request");
    if (rc == 0) {
        if (json_dumpf(reply, f, JSON_COMPACT) < 0)
            rc = ws_error_set(err, ENOMEM, "no memory for a list of tensors on GPUs");
        fputc('\n', f);
    }
    json_decref(body);
    json_decref(reply);
    ws_watch_put(w);
    return rc == -ESTALE ? -ENOENT : rc;
}
