#include "fs/switch/presence.h"
#include "fs/switch/machine.h"
#include "transports/base/json_text.h"
#include "transports/ways.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define LEAVE_MS 1000

/* The engines of a model, those of others included that it is a draft or an adapter of; and how many of them serve
 * its current version. */
struct engine_counts {
    unsigned engines, serving;
};

/* current NULL: there is none. Under the lock. */
static struct engine_counts count(struct ws_control *c, const struct ws_controller *ctl,
                                  const struct ws_version_id *current)
{
    struct engine_counts n = {0};
    ws_adapter_name name = "";
    if (current)
        ws_adapters_name(&ctl->adapters, ctl->name, current, name);
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, ctl->name, &at);) {
        const bool is_adapter = at.member && at.member->role == WS_MEMBER_ADAPTER;
        n.engines++;
        n.serving += is_adapter ? ws_adapter_list_has(at.engine->listed, name)
                                : at.engine->condition.state == WS_ENGINE_SERVING;
    }
    return n;
}

/* How the version came; NULL: it is not known any more, or did not come yet. */
static json_t *came_json(struct ws_model *m, const struct ws_version_id *id)
{
    struct ws_arrival *a = malloc(sizeof(*a));
    json_t *out = NULL;
    if (a && ws_model_arrival(m, id, a) && !a->error[0])
        out = json_pack("{s:o,s:s,s:o,s:I,s:I,s:I}", "how", ws_json_text(a->how), "strategy",
                        ws_way_name(a->strategy), "why_not", ws_json_text(a->why_not), "bytes",
                        (json_int_t)a->bytes, "moved", (json_int_t)a->moved_bytes, "took_us",
                        (json_int_t)(a->seconds * 1e6));
    if (out && a->loaded_seconds >= 0)
        json_object_set_new(out, "loaded_us", json_integer((json_int_t)(a->loaded_seconds * 1e6)));
    free(a);
    return out;
}

static void put_came(json_t *body, struct ws_model *m, const struct ws_version_id *id)
{
    json_t *came = came_json(m, id);
    if (body && came)
        json_object_set(body, "came", came);
    json_decref(came);
}

/* Under the lock. */
static uint64_t hash_error(const struct ws_last_error *e)
{
    return e->real_ns ? XXH3_64bits(e->text, strlen(e->text)) | 1 : 0;
}

/* Under the lock. NULL: there is none. */
static json_t *error_json(const struct ws_last_error *e)
{
    return e->real_ns ? json_pack("{s:o,s:s,s:o,s:I}", "command", ws_json_text(e->command), "errno",
                                  ws_errno_name(e->code), "message", ws_json_text(e->text), "at_us",
                                  (json_int_t)(e->real_ns / 1000))
                      : NULL;
}

void ws_presence_post(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    pthread_mutex_lock(&c->lock);
    bool follows = ws_policy_follows_releases(ctl->policy);
    uint64_t release = ctl->answered_release;
    pthread_mutex_unlock(&c->lock);
    struct ws_version *v = ws_model_current(m); /* after it: never older than the release */
    const struct ws_version_id id = v ? ws_version_id(v) : (struct ws_version_id){0};
    pthread_mutex_lock(&c->lock);
    const struct engine_counts n = count(c, ctl, v ? &id : NULL);
    json_t *error = error_json(&ctl->last_error);
    ctl->posted_error = hash_error(&ctl->last_error);
    pthread_mutex_unlock(&c->lock);
    json_t *body =
        json_pack("{s:s,s:b,s:i,s:i,s:I}", "mount", c->mount_id, "follows", (int)follows, "engines",
                  (int)n.engines, "serving", (int)n.serving, "release", (json_int_t)release);
    if (body)
        json_object_set_new(body, "machine", ws_machine_json(c->store));
    if (body && error)
        json_object_set(body, "last_error", error);
    json_decref(error);
    if (body && v) {
        json_object_set_new(body, "version", json_integer((json_int_t)ws_version_number(v)));
        json_object_set_new(body, "run", json_string(ws_version_lineage(v)));
        put_came(body, m, &id);
    }
    if (v)
        ws_version_put(v);
    ws_model_report(m, NULL, "mounts", body);
}

void ws_presence_post_error(struct ws_control *c, struct ws_controller *ctl)
{
    pthread_mutex_lock(&c->lock);
    const bool is_posted = ctl->posted_error == hash_error(&ctl->last_error);
    pthread_mutex_unlock(&c->lock);
    struct ws_model *m = is_posted || !ctl->name ? NULL : ws_store_find(c->store, ctl->name);
    if (!m)
        return;
    ws_presence_post(c, ctl, m);
    ws_model_put(m);
}

void ws_presence_post_answered(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                               uint64_t release)
{
    pthread_mutex_lock(&c->lock);
    ctl->answered_release = release;
    pthread_mutex_unlock(&c->lock);
    ws_presence_post(c, ctl, m);
}

void ws_presence_report(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                        const struct ws_version_id *version, const char *verb, uint64_t release,
                        const char *why)
{
    pthread_mutex_lock(&c->lock);
    const struct engine_counts n = count(c, ctl, version);
    pthread_mutex_unlock(&c->lock);
    json_t *body = json_pack("{s:s,s:i,s:i}", "mount", c->mount_id, "engines", (int)n.engines, "serving",
                             (int)n.serving);
    if (body && release)
        json_object_set_new(body, "release", json_integer((json_int_t)release));
    if (body && why)
        json_object_set_new(body, "error", json_string(why));
    put_came(body, m, version);
    ws_model_report(m, version, verb, body);
}

static void leave(void *arg, struct ws_model *m)
{
    const struct ws_control *c = arg;
    ws_model_report(m, NULL, "mounts", json_pack("{s:s,s:b}", "mount", c->mount_id, "gone", 1));
    if (ws_store_asks_parents(c->store))
        ws_model_report(m, NULL, "topology", json_pack("{s:s,s:b}", "mount", c->mount_id, "gone", 1));
}

void ws_presence_leave(struct ws_control *c)
{
    ws_store_each(c->store, leave, c);
    ws_store_drain(c->store, LEAVE_MS);
}
