#include "fs/switch/external_loaded.h"
#include "fs/switch/presence.h"
#include "fs/switch/settings.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

int ws_external_loaded(struct ws_control *c, struct ws_desk *d, struct ws_model *m, struct ws_version *v,
                       const char *engine, struct ws_error *err)
{
    const struct ws_mark mark = ws_version_mark(v);
    char text[WS_MARK_TEXT];
    unsigned named = 0;
    bool all = true;
    if (!ws_version_is_complete(v) || !ws_version_is_named(v))
        return ws_error_set(err, ENODATA,
                            "%s/%" PRIu64 " is %s here: no engine can have loaded it; stage it first",
                            d->name, mark.version, ws_state_name(ws_version_state(v)));
    ws_mark_text(&mark, text);
    pthread_mutex_lock(&c->lock);
    bool busy = d->switching;
    for (struct ws_engine *e = d->engines; e && !busy; e = e->next) {
        if (e->ops->external && (!engine || strcmp(e->name, engine) == 0)) {
            named++;
            busy = !ws_condition_reported(&e->condition, text);
        }
        all = all && strcmp(e->condition.version, text) == 0;
    }
    pthread_mutex_unlock(&c->lock);
    if (busy)
        return ws_error_set(err, EBUSY, "a switch of %s is running", d->name);
    if (named == 0)
        return ws_error_set(err, ENOENT, "%s has no engine %s%s of kind external", d->name,
                            engine ? engine : "at all", engine ? "" : ",");
    ws_desk_event(c, d, "loaded model=%s version=%" PRIu64 " engine=%s external", d->name, mark.version,
                  engine ? engine : "all");
    if (all) {
        ws_model_set_current(m, v);
        ws_desk_event(c, d, "switched model=%s version=%" PRIu64 " external", d->name, mark.version);
        ws_standing_report(c, d, m, &mark, "loaded", NULL);
        ws_settings_save(c);
    }
    return 0;
}
