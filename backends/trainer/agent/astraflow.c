/* The agent's listeners for AstraFlow's receivers (astraflow/listener.h), one a model. */
#include "backends/trainer/agent/core/features.h"
#include <errno.h>
#include <stdlib.h>

/* The agent's. n is guarded by its lock; the list is longer only while `serve` runs. */
struct listeners {
    struct ws_astraflow **list;
    size_t n;
};

static struct listeners *listeners_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_astraflow];
}

static int serve(struct ws_agent *a, struct ws_error *err)
{
    struct listeners *l = listeners_of(a);
    int rc = 0;
    l->list = calloc(a->options.n_astraflow + 1, sizeof(*l->list));
    if (!l->list)
        return ws_error_set(err, ENOMEM, "no memory for AstraFlow's listeners");
    for (size_t i = 0; rc == 0 && i < a->options.n_astraflow; i++) {
        rc = ws_astraflow_new(&l->list[i], &a->catalog, &a->options.astraflow[i], err);
        pthread_mutex_lock(&a->lock);
        l->n += rc == 0; /* the status shows it */
        pthread_mutex_unlock(&a->lock);
    }
    return rc;
}

static void stop(struct ws_agent *a)
{
    struct listeners *l = listeners_of(a);
    pthread_mutex_lock(&a->lock);
    size_t n = l->n;
    l->n = 0;
    pthread_mutex_unlock(&a->lock);
    while (n > 0)
        ws_astraflow_free(l->list[--n]);
    free(l->list);
    l->list = NULL;
}

static void wake(struct ws_agent *a)
{
    const struct listeners *l = listeners_of(a);
    for (size_t i = 0; i < l->n; i++)
        ws_astraflow_wake(l->list[i]);
}

static void put_status(const struct ws_agent *a, json_t *out)
{
    const struct listeners *l = listeners_of(a);
    json_t *all = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(all, ws_astraflow_status(l->list[i]));
    json_object_set_new(out, "astraflow", all);
}

const struct ws_agent_feature ws_feature_astraflow = {
    .agent_bytes = sizeof(struct listeners),
    .serve = serve,
    .stop = stop,
    .announced = wake,
    .status = put_status,
};
