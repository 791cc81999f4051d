#include "fs/pull/cuda_ipc_file.h"
#include "fs/store/content.h"
#include "fs/store/poller.h"
#include "fs/store/state.h"
#include <errno.h>
#include <inttypes.h>

/* The poller of a source that shares it, counted; or NULL. */
static struct ws_poller *find_sharer(struct ws_version *v)
{
    struct ws_store *s = v->store;
    struct ws_poller *p = NULL;

    if (ws_version_must_be_signed(v)) /* what an engine takes from a GPU this mount cannot check */
        return NULL;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; !p && i < WS_MAX_SOURCES; i++)
        if (s->pollers[i] && s->pollers[i]->up && (v->on_gpus & ws_bit(i)))
            p = ws_poller_get(s->pollers[i]);
    pthread_mutex_unlock(&s->lock);
    return p;
}

bool ws_cuda_ipc_file_exists(struct ws_version *v)
{
    struct ws_poller *p = find_sharer(v);

    if (p)
        ws_poller_put(p);
    return p != NULL;
}

int ws_cuda_ipc_file_query(struct ws_version *v, json_t **reply, struct ws_error *err)
{
    struct ws_poller *p = find_sharer(v);

    *reply = NULL;
    if (!p)
        return ws_error_set(err, ENOENT, "version %" PRIu64 " of %s is not shared on GPUs", v->number,
                            v->model->name);
    json_t *body = json_pack("{s:s,s:I,s:s}", "model", v->model->name, "version", (json_int_t)v->number,
                             "run", v->lineage);
    int rc = body ? ws_source_call(p->source, "POST", "/v1/local/gpu/look", body, reply, err)
                  : ws_error_set(err, ENOMEM, "no memory for a request");
    json_decref(body);
    ws_poller_put(p);
    return rc == -ESTALE ? -ENOENT : rc;
}

int ws_cuda_ipc_file_print(struct ws_version *v, FILE *f, struct ws_error *err)
{
    json_t *reply;
    int rc = ws_cuda_ipc_file_query(v, &reply, err);

    if (rc == 0) {
        if (json_dumpf(reply, f, JSON_COMPACT) < 0)
            rc = ws_error_set(err, ENOMEM, "no memory for a list of tensors on GPUs");
        fputc('\n', f);
    }
    json_decref(reply);
    return rc;
}
