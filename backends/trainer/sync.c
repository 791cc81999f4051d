/* The public functions for engines: paths are the caller's, and so is the version. */
#include "backends/engine/http.h"
#include "backends/engine/update.h"
#include "backends/trainer/last_error.h"
#include "backends/trainer/wsync.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 300000
#define STACK_BYTES        (256UL << 10)

static int update(const wsync_engine *e, const char *path, double *pause_seconds, struct ws_error *err)
{
    const struct ws_engine_ops *ops = e->kind ? ws_engine_find(e->kind) : NULL;
    struct ws_engine_target t = {.url = e->url,
                                 .token = e->token,
                                 .pause_mode = e->pause_mode,
                                 .timeout_ms = e->timeout_ms ? e->timeout_ms : DEFAULT_TIMEOUT_MS};
    bool known = !e->pause_mode;
    if (!ops || ops == &ws_engine_remote)
        return ws_error_set(err, EINVAL, "there is no kind of engine '%.50s' here; it is sglang or vllm",
                            e->kind ? e->kind : "");
    for (const char *const *m = ops->pause_modes; !known && *m; m++)
        known = strcmp(*m, e->pause_mode) == 0;
    if (!known)
        return ws_error_set(err, EINVAL, "'%.50s' is no pause mode of %s", e->pause_mode, ops->kind);
    if (!path || path[0] != '/')
        return ws_error_set(err, EINVAL, "'%.200s' is no absolute path", path ? path : "");
    int rc = e->url ? ws_http_check_url(e->url, err) : ws_error_set(err, EINVAL, "an engine has no url");
    return rc < 0 ? rc
                  : ws_engine_update(ops, &t, path, e->version ? e->version : "default", pause_seconds, err);
}

int wsync_update_sglang_weights_from_disk(const char *url, const char *path, const wsync_engine *options)
{
    wsync_engine e = options ? *options : (wsync_engine){0};
    e.kind = "sglang";
    e.url = url;
    return update(&e, path, NULL, ws_last_error());
}

int wsync_update_vllm_weights_from_disk(const char *url, const char *path, const wsync_engine *options)
{
    wsync_engine e = options ? *options : (wsync_engine){0};
    e.kind = "vllm";
    e.url = url;
    return update(&e, path, NULL, ws_last_error());
}

struct one {
    const wsync_engine *engine;
    const char *path;
    wsync_engine_result *result;
};

static void *run_one(void *arg)
{
    const struct one *o = arg;
    struct ws_error err = {0};
    *o->result = (wsync_engine_result){0};
    o->result->rc = update(o->engine, o->path, &o->result->pause_seconds, &err);
    if (o->result->rc < 0)
        snprintf(o->result->error, sizeof(o->result->error), "%s", err.text);
    return NULL;
}

int wsync_sync_weights_to_engines(const wsync_engine *engines, size_t n, const char *path,
                                  wsync_engine_result *results)
{
    struct one *all = calloc(n + 1, sizeof(*all));
    pthread_t *threads = calloc(n + 1, sizeof(*threads));
    bool *started = calloc(n + 1, sizeof(*started));
    pthread_attr_t attr;
    int failed = 0;
    if (!all || !threads || !started) {
        free(all);
        free(threads);
        free(started);
        return ws_error_set(ws_last_error(), ENOMEM, "no memory for %zu engines", n);
    }
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (size_t i = 0; i < n; i++) {
        all[i] = (struct one){&engines[i], path, &results[i]};
        started[i] = pthread_create(&threads[i], &attr, run_one, &all[i]) == 0;
        if (!started[i])
            (void)run_one(&all[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (started[i])
            pthread_join(threads[i], NULL);
        if (results[i].rc < 0 && failed++ == 0)
            ws_error_set(ws_last_error(), -results[i].rc, "%s", results[i].error);
    }
    pthread_attr_destroy(&attr);
    free(all);
    free(threads);
    free(started);
    return failed;
}
