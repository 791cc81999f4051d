/* The public functions for engines: paths are the caller's, and so is the version. */
#include "backends/engine/update.h"
#include "backends/trainer/api/engine_options.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include "transports/base/workers.h"
#include "transports/http/client.h"
#include "transports/http/url.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 300000

static int update(struct ws_http_client *http, const wsync_engine *e, const char *path, double *pause_seconds,
                  struct ws_error *err)
{
    const struct ws_engine_ops *ops;
    struct ws_engine_target t;
    int rc = ws_engine_options_read(e, &ops, &t, err);
    if (rc == 0 && (!path || path[0] != '/'))
        rc = ws_error_set(err, EINVAL, "'%.200s' is no absolute path", path ? path : "");
    if (rc == 0)
        rc = e->url ? ws_http_check_url("an engine", e->url, err)
                    : ws_error_set(err, EINVAL, "an engine has no url");
    t.http = http;
    t.timeout_ms = e->timeout_ms ? e->timeout_ms : DEFAULT_TIMEOUT_MS;
    return rc < 0 ? rc
                  : ws_engine_update(ops, &t, path, e->version ? e->version : "default", pause_seconds, err);
}

static int update_one(const char *kind, const char *url, const char *path, const wsync_engine *options)
{
    wsync_engine e = options ? *options : (wsync_engine){0};
    struct ws_http_client *http;
    int rc = ws_http_client_new(&http, ws_last_error());
    if (rc < 0)
        return rc;
    e.kind = kind;
    e.url = url;
    rc = update(http, &e, path, NULL, ws_last_error());
    ws_http_client_free(http);
    return rc;
}

int wsync_update_sglang_weights_from_disk(const char *url, const char *path, const wsync_engine *options)
{
    return update_one("sglang", url, path, options);
}

int wsync_update_vllm_weights_from_disk(const char *url, const char *path, const wsync_engine *options)
{
    return update_one("vllm", url, path, options);
}

struct fleet {
    struct ws_http_client *http;
    const wsync_engine *engines;
    const char *path;
    wsync_engine_result *results;
};

static void update_of_fleet(void *arg, size_t i)
{
    const struct fleet *f = arg;
    struct ws_error err = {0};
    wsync_engine_result *result = &f->results[i];
    *result = (wsync_engine_result){0};
    result->rc = update(f->http, &f->engines[i], f->path, &result->pause_seconds, &err);
    if (result->rc < 0)
        snprintf(result->error, sizeof(result->error), "%s", err.text);
}

int wsync_sync_weights_to_engines(const wsync_engine *engines, size_t n, const char *path,
                                  wsync_engine_result *results)
{
    if (!n)
        return ws_error_set(ws_last_error(), EINVAL,
                            "syncing weights to engines: none is given; pass at least one");
    struct fleet fleet = {.engines = engines, .path = path, .results = results};
    int failed = 0, rc = ws_http_client_new(&fleet.http, ws_last_error());
    if (rc < 0)
        return rc;
    ws_workers_run_at_once(update_of_fleet, &fleet, n);
    for (size_t i = 0; i < n; i++)
        if (results[i].rc < 0 && failed++ == 0)
            ws_error_set(ws_last_error(), -results[i].rc, "%s", results[i].error);
    ws_http_client_free(fleet.http);
    return failed;
}
