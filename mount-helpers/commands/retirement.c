#include "mount-helpers/commands/retirement.h"
#include "mount-helpers/cli/agents.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS    "/v1/status"
#define REPLY_S   10
#define AGAIN_MS  500
#define DOUBLINGS 5                    /* to 16 s */
#define MAX_LEFT  (4 * WS_MAX_RETIRED) /* what waits for an agent that is away; the oldest give way */

WS_VECTOR(ids, struct ws_version_id);

struct retirement {
    const struct cli_args *args;
    const char *model;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ends;       /* guarded by lock */
    struct ids left; /* guarded by lock; the first is being sent */
};

static int ask(const struct retirement *r, const char *method, const char *path, json_t **reply,
               struct ws_error *err)
{
    struct ws_source *agent = agents_open(r->args, REPLY_S);
    json_t *body = *method == 'P' ? json_object() : NULL;
    const int rc = agents_call(agent, method, path, body, reply, err);
    json_decref(body);
    ws_source_close(agent);
    return rc;
}

/* What an agent does not know, or forbids, it will not know later. That it is away is told by no errno: a socket that is
 * not there is ENOENT as well. */
static bool is_there(const struct retirement *r)
{
    struct ws_error err = {0};
    json_t *reply = NULL;
    const int rc = ask(r, "GET", STATUS, &reply, &err);

    json_decref(reply);
    return rc == 0;
}

/* False: it is to be sent again. */
static bool send_one(const struct retirement *r, const struct ws_version_id *id)
{
    char path[WS_API_PATH_BYTES];
    struct ws_error err = {0};
    json_t *reply = NULL;

    ws_api_version_path(path, "retire", r->model, id->version, NULL, id->lineage);
    const int rc = ask(r, "POST", path, &reply, &err);
    json_decref(reply);
    if (rc < 0 && !is_there(r))
        return false;
    if (rc < 0)
        ws_log(WS_LOG_WARN, "share", "%s/%" PRIu64 " was deleted, and mounts elsewhere go on showing it: %s",
               r->model, id->version, err.text);
    return true;
}

static void take_first(struct ids *ids)
{
    memmove(ids->ptr, ids->ptr + 1, (ids->len - 1) * sizeof(*ids->ptr));
    ids->len--;
}

static void *send_all(void *arg)
{
    struct retirement *r = arg;
    unsigned failures = 0;

    pthread_mutex_lock(&r->lock);
    while (r->left.len || !r->ends) {
        if (!r->left.len) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        const struct ws_version_id id = r->left.ptr[0];
        pthread_mutex_unlock(&r->lock);
        const bool done = send_one(r, &id);
        pthread_mutex_lock(&r->lock);
        failures = done ? 0 : failures + (failures < DOUBLINGS);
        if (done && r->left.len && ws_version_id_equal(&r->left.ptr[0], &id))
            take_first(&r->left);
        if (!done && r->ends)
            break;
        const uint64_t until = ws_clock_ns() + ((uint64_t)AGAIN_MS << failures) * WS_MS_NS;
        while (!done && !r->ends && ws_clock_ns() < until)
            (void)ws_cond_wait_until(&r->changed, &r->lock, until);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

void retirement_ask_run(const struct retirement *r, char run[WS_LINEAGE_CHARS + 1])
{
    struct ws_error err = {0};
    json_t *reply = NULL;
    const json_t *model;
    size_t i;

    run[0] = '\0';
    if (ask(r, "GET", STATUS, &reply, &err) < 0)
        ws_log(WS_LOG_WARN, "share", "when this version is deleted, mounts elsewhere will not hear of it: %s",
               err.text);
    json_array_foreach(json_object_get(reply, "models"), i, model)
    {
        const char *name = json_string_value(json_object_get(model, "name"));
        const char *its = json_string_value(json_object_get(model, "run"));
        if (name && its && strcmp(name, r->model) == 0 && strlen(its) <= WS_LINEAGE_CHARS)
            snprintf(run, WS_LINEAGE_CHARS + 1, "%s", its);
    }
    json_decref(reply);
}

void retirement_add(struct retirement *r, const struct ws_version_id *id)
{
    if (!id->lineage[0])
        return;
    pthread_mutex_lock(&r->lock);
    if (r->left.len == MAX_LEFT)
        take_first(&r->left);
    if (ids_append(&r->left, *id) < 0)
        ws_log(WS_LOG_WARN, "share",
               "%s/%" PRIu64 " was deleted, and mounts elsewhere go on showing it: no memory", r->model,
               id->version);
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int retirement_new(struct retirement **out, const struct cli_args *args, const char *model,
                   struct ws_error *err)
{
    struct retirement *r = calloc(1, sizeof(*r));
    int rc;

    if (!r)
        return ws_error_set(err, ENOMEM, "no memory to tell the agent what is deleted");
    ws_source_close(agents_open(args, REPLY_S)); /* an address that is none ends us now, and not later */
    r->args = args;
    r->model = model;
    pthread_mutex_init(&r->lock, NULL);
    ws_cond_init(&r->changed);
    rc = ws_thread_start(&r->thread, send_all, r);
    if (rc < 0) {
        free(r);
        return ws_error_set(err, -rc, "cannot start the thread that tells the agent what is deleted: %s",
                            strerror(-rc));
    }
    *out = r;
    return 0;
}

void retirement_free(struct retirement *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->ends = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    ids_reset(&r->left);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
