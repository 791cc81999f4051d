/* The agent's listeners for AstraFlow's receivers (astraflow/listener.h), one a model. */
#include "backends/trainer/agent/core/features.h"
#include <errno.h>
#include <stdlib.h>

static int serve(struct ws_agent *a, struct ws_error *err)
{
    int rc = 0;
    a->astraflow = calloc(a->options.n_astraflow + 1, sizeof(struct ws_astraflow *));
    if (!a->astraflow)
        return ws_error_set(err, ENOMEM, "no memory for AstraFlow's endpoints");
    for (size_t i = 0; rc == 0 && i < a->options.n_astraflow; i++) {
        rc = ws_astraflow_new(&a->astraflow[i], &a->catalog, &a->options.astraflow[i], err);
        pthread_mutex_lock(&a->lock);
        a->n_astraflow += rc == 0; /* the status shows it */
        pthread_mutex_unlock(&a->lock);
    }
    return rc;
}

static void stop(struct ws_agent *a)
{
    pthread_mutex_lock(&a->lock);
    size_t n = a->n_astraflow;
    a->n_astraflow = 0;
    pthread_mutex_unlock(&a->lock);
    while (n > 0)
        ws_astraflow_free(a->astraflow[--n]);
    free(a->astraflow);
    a->astraflow = NULL;
}

static void wake(struct ws_agent *a)
{
    for (size_t i = 0; i < a->n_astraflow; i++)
        ws_astraflow_wake(a->astraflow[i]);
}

static void put_status(const struct ws_agent *a, json_t *out)
{
    json_t *all = json_array();
    for (size_t i = 0; i < a->n_astraflow; i++)
        json_array_append_new(all, ws_astraflow_status(a->astraflow[i]));
    json_object_set_new(out, "astraflow", all);
}

const struct ws_agent_feature ws_feature_astraflow = {
    .serve = serve,
    .stop = stop,
    .announced = wake,
    .status = put_status,
};
