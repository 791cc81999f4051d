#include "fs/switch/peer_mounts.h"
#include "transports/base/clock.h"
#include "transports/base/jansson_keys.h"
#include "transports/base/name.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_US  100000
#define WAIT_S   600 /* where the switch has no deadline of its own */
#define RENEW_NS 20000000000UL

/* What the engines name, each once. NULL: no memory. */
static json_t *list_named(struct ws_control *c, const struct ws_controller *ctl)
{
    json_t *set = json_object(), *names = json_array();
    pthread_mutex_lock(&c->lock);
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, ctl->name, &at);)
        for (const char *p = at.engine->mounts; p && *p; p += strcspn(p, ","), p += *p == ',')
            json_object_setn_new(set, p, strcspn(p, ","), json_true());
    pthread_mutex_unlock(&c->lock);
    for (void *at = json_object_iter(set); at; at = json_object_iter_next(set, at))
        json_array_append_new(names, json_string(json_object_iter_key(at)));
    json_decref(set);
    return names;
}

static bool is_version_id(const json_t *json, const struct ws_version_id *id)
{
    const char *run = json_string_value(json_object_get(json, "run"));
    return run && strcmp(run, id->lineage) == 0 &&
           (uint64_t)json_integer_value(json_object_get(json, "version")) == id->version;
}

/* 1: it has the version; 0: not yet; -EREMOTEIO: it cannot get it. */
static int check_mount(const json_t *mount, const struct ws_version_id *id, struct ws_error *err)
{
    const json_t *one;
    size_t i;
    if (is_version_id(json_object_get(mount, "failed"), id))
        return ws_error_set(err, EREMOTEIO, "the mount %.300s cannot get version %" PRIu64 ": %.500s",
                            json_string_value(json_object_get(mount, "mount")), id->version,
                            json_string_value(json_object_get(mount, "error")));
    if (is_version_id(json_object_get(mount, "loaded"), id))
        return 1;
    static const char *const states[] = {"prepared", "fetched"};
    for (size_t k = 0; k < 2; k++)
        json_array_foreach(json_object_get(mount, states[k]), i, one)
        {
            if (is_version_id(one, id))
                return 1;
        }
    return 0;
}

/* 1: every mount of that name has it; one at least. */
static int check_named(const json_t *mounts, const char *name, const struct ws_version_id *id,
                       struct ws_error *err)
{
    const json_t *mount;
    size_t i;
    int all = 0;
    json_array_foreach(mounts, i, mount)
    {
        const char *mount_id = json_string_value(json_object_get(mount, "mount"));
        if (!mount_id || !ws_name_matches_mount(name, mount_id) ||
            json_is_true(json_object_get(mount, "silent")))
            continue;
        int rc = check_mount(mount, id, err);
        if (rc <= 0)
            return rc;
        all = 1;
    }
    return all;
}

static int check_all(const struct ws_switch_item *p, const json_t *names, const char **missing,
                     struct ws_error *err)
{
    const struct ws_version_id id = ws_version_id(p->version);
    char path[WS_API_PATH_BYTES];
    json_t *mounts, *name;
    size_t i;
    ws_api_model_path(path, "mounts", ws_model_name(p->model));
    int rc = ws_model_query(p->model, path, NULL, &mounts, err);
    *missing = NULL;
    json_array_foreach(names, i, name)
    {
        int at = rc == 0 ? check_named(mounts, json_string_value(name), &id, err) : 1;
        if (at < 0)
            rc = at;
        else if (at == 0 && !*missing)
            *missing = json_string_value(name);
    }
    json_decref(mounts);
    return rc;
}

static int request_version(const struct ws_switch_item *p, json_t *names, struct ws_error *err)
{
    char path[WS_API_PATH_BYTES];
    json_t *reply, *body = json_pack("{s:O}", "mounts", names);
    ws_api_version_path(path, "wanted", ws_model_name(p->model), ws_version_number(p->version), NULL,
                        ws_version_lineage(p->version));
    int rc =
        body ? ws_model_query(p->model, path, body, &reply, err) : ws_error_set(err, ENOMEM, "no memory");
    if (rc == 0)
        json_decref(reply);
    json_decref(body);
    return rc;
}

int ws_peer_mounts_wait(struct ws_control *c, const struct ws_switch_item *p,
                        const struct ws_switch_options *o, struct ws_error *err)
{
    json_t *names = list_named(c, p->controller);
    const char *missing = NULL;
    bool told = false;
    uint64_t now = ws_clock_ns(), requested_ns = 0;
    uint64_t end = now + (o->deadline_s ? o->deadline_s : WAIT_S) * WS_SECOND_NS;
    int rc = names ? 0 : ws_error_set(err, ENOMEM, "no memory for a switch");
    for (; rc == 0 && json_array_size(names) > 0; now = ws_clock_ns()) {
        if (now - requested_ns > RENEW_NS) {
            rc = request_version(p, names, err);
            requested_ns = now;
        }
        if (rc == 0)
            rc = check_all(p, names, &missing, err);
        if (rc == 0 && missing && !told)
            ws_controller_event(c, p->controller, "waiting model=%s version=%" PRIu64 " for-mount=%s",
                                p->controller->name, ws_version_number(p->version), missing);
        told = true;
        if (rc < 0 || !missing)
            break;
        bool interrupted = o->cancel && atomic_load(o->cancel);
        if (interrupted || atomic_load(&c->stop) || atomic_load(&p->controller->cancel))
            rc = ws_error_set(err, interrupted ? EINTR : ECANCELED,
                              "the switch was cancelled while the mount %s fetched its version", missing);
        else if (now > end)
            rc = ws_error_set(err, ETIMEDOUT,
                              "the mount %s, which an engine reads too, does not have version %" PRIu64
                              "; is it there, and is that its name (HOST or HOST:MOUNTPOINT)?",
                              missing, ws_version_number(p->version));
        else
            usleep(LOOK_US);
    }
    json_decref(names);
    return rc;
}
