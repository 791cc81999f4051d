#include "fs/switch/presence.h"

#define LEAVE_MS 1000

void ws_presence_post(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m)
{
    pthread_mutex_lock(&c->lock);
    bool follows = ctl->policy == WS_POLICY_FOLLOW;
    unsigned engines = ctl->n_engines;
    uint64_t release = ctl->answered_release;
    pthread_mutex_unlock(&c->lock);
    struct ws_version *v = ws_model_current(m); /* after it: never older than the release */
    json_t *body = json_pack("{s:s,s:b,s:i,s:I}", "mount", c->mount_id, "follows", (int)follows, "engines",
                             (int)engines, "release", (json_int_t)release);
    if (body && v) {
        json_object_set_new(body, "version", json_integer((json_int_t)ws_version_number(v)));
        json_object_set_new(body, "run", json_string(ws_version_lineage(v)));
    }
    if (v)
        ws_version_put(v);
    ws_model_report(m, NULL, "mounts", body);
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
                        const struct ws_version_id *version, const char *verb, const char *why)
{
    pthread_mutex_lock(&c->lock);
    unsigned engines = ctl->n_engines;
    pthread_mutex_unlock(&c->lock);
    json_t *body = json_pack("{s:s,s:i}", "mount", c->mount_id, "engines", (int)engines);
    if (body && why)
        json_object_set_new(body, "error", json_string(why));
    ws_model_report(m, version, verb, body);
}

static void leave(void *arg, struct ws_model *m)
{
    const struct ws_control *c = arg;
    ws_model_report(m, NULL, "mounts", json_pack("{s:s,s:b}", "mount", c->mount_id, "gone", 1));
}

void ws_presence_leave(struct ws_control *c)
{
    ws_store_each(c->store, leave, c);
    ws_store_drain(c->store, LEAVE_MS);
}
