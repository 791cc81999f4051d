#include "fs/switch/external_loaded.h"
#include "fs/switch/freshness.h"
#include "fs/switch/presence.h"
#include "fs/switch/settings.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

int ws_external_loaded(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                       struct ws_version *v, const char *engine, struct ws_error *err)
{
    const struct ws_version_id id = ws_version_id(v);
    char text[WS_VERSION_ID_TEXT];
    unsigned named = 0;
    bool all = true;
    if (!ws_version_is_complete(v) || !ws_version_is_named(v))
        return ws_error_set(err, ENODATA,
                            "%s/%" PRIu64 " is %s here: no engine can have loaded it; stage it first",
                            ctl->name, id.version, ws_version_state_name(ws_version_state(v)));
    ws_version_id_text(&id, text);
    pthread_mutex_lock(&c->lock);
    bool busy = ctl->switching;
    for (struct ws_engine *e = ctl->engines; e && !busy; e = e->next) {
        if (e->ops->external && (!engine || strcmp(e->name, engine) == 0)) {
            named++;
            busy = !ws_condition_reported(&e->condition, text);
        }
        all = all && strcmp(e->condition.version, text) == 0;
    }
    pthread_mutex_unlock(&c->lock);
    if (busy)
        return ws_error_set(err, EBUSY, "a switch of %s is running", ctl->name);
    if (named == 0)
        return ws_error_set(err, ENOENT, "%s has no engine %s%s of kind external", ctl->name,
                            engine ? engine : "at all", engine ? "" : ",");
    ws_controller_event(c, ctl, "loaded model=%s version=%" PRIu64 " engine=%s external", ctl->name,
                        id.version, engine ? engine : "all");
    if (all) {
        ws_model_set_current(m, v);
        ws_freshness_record(c, ctl, v);
        ws_controller_event(c, ctl, "switched model=%s version=%" PRIu64 " external", ctl->name, id.version);
        ws_presence_report(c, ctl, m, &id, "loaded", 0, NULL);
        ws_settings_save(c);
    }
    return 0;
}
