#include "fs/switch/adapter_steps.h"
#include "fs/switch/settings.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- one engine, one adapter --- */

/* Where the engine sees this mount. */
static const char *mountpoint_of(const struct ws_control *c, const struct ws_engine *e)
{
    return e->prefix ? e->prefix : c->options.mountpoint;
}

bool ws_adapter_is_own(const struct ws_control *c, const struct ws_controller *of, const struct ws_engine *e,
                       const struct ws_engine_adapter *listed, struct ws_version_id *id)
{
    return ws_adapters_is_name_of(listed->name, of->name) &&
           ws_adapters_path_is_own(listed->path, mountpoint_of(c, e), of->name, id);
}

/* Names that are no version's any more, since somebody else has loaded other files under them: the settings keep them before
 * a version gets its name. */
static void record_strays(struct ws_control *c, const struct ws_engine *e,
                          const struct ws_engine_adapters *all)
{
    bool changed = false;
    for (size_t k = 0; k < e->members.n; k++) {
        const struct ws_member *m = &e->members.items[k];
        struct ws_controller *of = m->role == WS_MEMBER_ADAPTER ? ws_controller_get(c, m->model) : NULL;
        for (size_t i = 0; of && i < all->n; i++) {
            char path[WS_ERROR_TEXT];
            struct ws_version_id from = {0};
            const bool may_be_own =
                ws_adapter_is_own(c, of, e, &all->items[i], &from) || !all->items[i].path[0];
            pthread_mutex_lock(&c->lock);
            const bool is_new =
                ws_adapters_saw(&of->adapters, m->model, all->items[i].name, may_be_own ? &from : NULL);
            pthread_mutex_unlock(&c->lock);
            changed = changed || is_new;
            if (is_new)
                ws_controller_event(c, of, "adapter-stray model=%s engine=%s adapter=%s path=\"%.300s\"",
                                    m->model, e->name, all->items[i].name,
                                    ws_controller_quotable(all->items[i].path, path));
        }
    }
    if (changed)
        ws_settings_save(c);
}

/* Adds it to what the engine lists of its members, or of names like theirs. -ENOMEM. */
static int classify(const struct ws_control *c, const struct ws_engine *e,
                    const struct ws_engine_adapter *item, char **listed, char **strays)
{
    for (size_t k = 0; k < e->members.n; k++) {
        const struct ws_member *m = &e->members.items[k];
        struct ws_version_id id;
        if (m->role != WS_MEMBER_ADAPTER || !ws_adapters_is_name_of(item->name, m->model))
            continue;
        const bool is_own =
            !item->path[0] || ws_adapters_path_is_own(item->path, mountpoint_of(c, e), m->model, &id);
        return ws_adapter_list_add(is_own ? listed : strays, item->name);
    }
    return 0;
}

/* -ENOMEM: what was known stays. */
static int record(struct ws_control *c, struct ws_engine *e, const struct ws_engine_adapters *all)
{
    char *listed = NULL, *strays = NULL;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < all->n; i++)
        rc = classify(c, e, &all->items[i], &listed, &strays);
    if (rc == 0) {
        record_strays(c, e, all);
        pthread_mutex_lock(&c->lock);
        char *const before[] = {e->listed, e->strays};
        e->listed = listed;
        e->strays = strays;
        pthread_mutex_unlock(&c->lock);
        listed = before[0];
        strays = before[1];
    }
    free(listed);
    free(strays);
    return rc;
}

struct ws_engine_adapters *ws_adapters_ask(struct ws_control *c, struct ws_engine *e,
                                           const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_engine_adapters *all = malloc(sizeof(*all));
    int rc =
        all ? e->ops->adapters(t, all, err) : ws_error_set(err, ENOMEM, "no memory for a list of adapters");
    if (rc == 0 && all->more)
        rc = ws_error_set(err, E2BIG, "it lists more than %d adapters, and the mount looks at no more",
                          WS_MAX_ENGINE_ADAPTERS);
    if (rc == 0 && record(c, e, all) < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for a list of adapters");
    if (rc < 0) {
        free(all);
        return NULL;
    }
    return all;
}

/* Where the engine reads a version of the model. */
static void path_of(const struct ws_control *c, const struct ws_controller *of, const struct ws_engine *e,
                    const struct ws_version_id *id, char out[PATH_MAX])
{
    char version[WS_VERSION_ID_TEXT];
    ws_version_id_text(id, version);
    snprintf(out, PATH_MAX, "%s/%s/%s", mountpoint_of(c, e), of->name, version);
}

bool ws_adapter_is_listed(const struct ws_control *c, const struct ws_controller *of,
                          const struct ws_engine *e, const struct ws_engine_adapters *listed,
                          const char *name, const struct ws_version_id *id)
{
    char path[PATH_MAX];
    path_of(c, of, e, id, path);
    for (size_t i = 0; i < listed->n; i++)
        if (strcmp(listed->items[i].name, name) == 0)
            return !listed->items[i].path[0] || strcmp(listed->items[i].path, path) == 0;
    return false;
}

static void post_event(struct ws_control *c, struct ws_controller *of, const struct ws_engine *e,
                       const char *what, const char *name, uint64_t start_ns, int rc,
                       const struct ws_error *err)
{
    char why[WS_ERROR_TEXT];
    ws_controller_event(c, of, "%s model=%s engine=%s adapter=%s seconds=%.3f result=%s%s%.300s%s", what,
                        of->name, e->name, name, (double)(ws_clock_ns() - start_ns) * 1e-9,
                        rc < 0 ? ws_errno_name(-rc) : "ok", rc < 0 ? " why=\"" : "",
                        rc < 0 ? ws_controller_quotable(err->text, why) : "", rc < 0 ? "\"" : "");
}

int ws_adapter_load(struct ws_control *c, struct ws_controller *of, struct ws_engine *e,
                    const struct ws_engine_target *t, const struct ws_version_id *id, const char *name,
                    struct ws_error *err)
{
    char path[PATH_MAX];
    const uint64_t start = ws_clock_ns();
    path_of(c, of, e, id, path);
    int rc = e->ops->adapter_load(t, name, path, err);
    pthread_mutex_lock(&c->lock);
    const bool forgot = rc == 0 && ws_adapter_list_add(&e->listed, name) < 0; /* the next look sees it */
    pthread_mutex_unlock(&c->lock);
    if (forgot)
        ws_log(WS_LOG_WARN, "control", "no memory to note the adapter %s of engine %s", name, e->name);
    post_event(c, of, e, "adapter-loaded", name, start, rc, err);
    return rc < 0 ? ws_error_prefix(err, "adapter %s", name) : 0;
}

int ws_adapter_unload(struct ws_control *c, struct ws_controller *of, struct ws_engine *e,
                      const struct ws_engine_target *t, const char *name, struct ws_error *err)
{
    const uint64_t start = ws_clock_ns();
    int rc = e->ops->adapter_unload(t, name, err);
    pthread_mutex_lock(&c->lock);
    if (rc == 0 && e->listed)
        ws_adapter_list_remove(e->listed, name);
    pthread_mutex_unlock(&c->lock);
    post_event(c, of, e, "adapter-unloaded", name, start, rc, err);
    return rc < 0 ? ws_error_prefix(err, "adapter %s", name) : 0;
}

int ws_adapter_load_missing(struct ws_control *c, struct ws_controller *of, struct ws_engine *e,
                            const struct ws_engine_target *t, const struct ws_engine_adapters *listed,
                            const struct ws_wanted_adapters *wanted, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = wanted->n; rc == 0 && i-- > 0;) { /* the oldest first: engines let go of those */
        const struct ws_wanted_adapter *w = &wanted->items[i];
        if (w->is_here && !ws_adapter_is_listed(c, of, e, listed, w->name, &w->id))
            rc = ws_adapter_load(c, of, e, t, &w->id, w->name, err);
    }
    return rc;
}

/* --- in a switch --- */

bool ws_adapter_step_moves(const struct ws_switch_engine *se)
{
    for (size_t i = 0; i < se->n_adapters; i++)
        if (se->adapters[i].item)
            return true;
    return false;
}

bool ws_adapter_step_is_due(const struct ws_switch_engine *se)
{
    return ws_adapter_step_moves(se) ||
           (se->n_adapters > 0 && se->target && se->engine->ops->load_drops_adapters &&
            !se->patch.put); /* a patch leaves them */
}

bool ws_adapter_step_has_changed(const struct ws_switch_engine *se)
{
    for (size_t i = 0; i < se->n_adapters; i++)
        if (se->adapters[i].told[0])
            return true;
    return false;
}

int ws_adapter_step_ask(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    int rc = ws_engine_ready(se->engine, se->run->control, &se->err);
    ws_engine_step_call(se, false, &call);
    struct ws_engine_adapters *listed =
        rc == 0 ? ws_adapters_ask(se->run->control, se->engine, &call.target, &se->err) : NULL;
    se->lost = !listed;
    free(listed);
    return se->lost ? -(se->err.code ? se->err.code : EIO) : 0;
}

static void name_of(const struct ws_switch_engine *se, const struct ws_switch_adapter *a, ws_adapter_name out)
{
    const struct ws_version_id id = ws_version_id(a->item->version);
    pthread_mutex_lock(&se->run->control->lock);
    ws_adapters_name(&a->controller->adapters, a->controller->name, &id, out);
    pthread_mutex_unlock(&se->run->control->lock);
}

void ws_adapter_steps_name(struct ws_switch_run *r)
{
    struct ws_control *c = r->control;
    for (size_t i = 0; i < r->n_items; i++) {
        struct ws_controller *of = r->items[i].controller;
        if (!r->items[i].version || !ws_engine_has_role(c, of->name, WS_MEMBER_ADAPTER))
            continue;
        const struct ws_version_id id = ws_version_id(r->items[i].version);
        pthread_mutex_lock(&c->lock);
        (void)ws_adapters_own(&of->adapters, &id);
        pthread_mutex_unlock(&c->lock);
    }
}

/* The adapters of one model: what the engine should list, and then what is new. */
static int load_adapter(struct ws_switch_engine *se, struct ws_switch_adapter *a,
                        const struct ws_engine_target *t, const struct ws_engine_adapters *listed,
                        struct ws_wanted_adapters *wanted)
{
    struct ws_control *c = se->run->control;
    ws_adapter_name name;
    int rc = 0;
    if (se->target && ws_kept_find_wanted(c, a->controller, a->member->keep, wanted))
        rc = ws_adapter_load_missing(c, a->controller, se->engine, t, listed, wanted, &se->err);
    if (rc < 0 || !a->item)
        return rc;
    name_of(se, a, name);
    const struct ws_version_id id = ws_version_id(a->item->version);
    if (ws_adapter_is_listed(c, a->controller, se->engine, listed, name, &id))
        return 0;
    for (size_t i = 0; i < listed->n; i++)
        if (strcmp(listed->items[i].name, name) == 0)
            return ws_error_set(&se->err, EREMOTEIO,
                                "%s lists the adapter %s with another path (%.300s), so that somebody else "
                                "has loaded it: unload "
                                "it there, or start the engine anew",
                                se->engine->url, name, listed->items[i].path);
    memcpy(a->told, name, sizeof(name)); /* whatever it answers: unloading what was not loaded is no error */
    return ws_adapter_load(c, a->controller, se->engine, t, &id, name, &se->err);
}

int ws_adapter_step_load(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    ws_engine_step_call(se, false, &call);
    struct ws_wanted_adapters *wanted = malloc(sizeof(*wanted));
    int rc = wanted ? 0 : ws_error_set(&se->err, ENOMEM, "no memory for a list of adapters");
    struct ws_engine_adapters *listed =
        wanted ? ws_adapters_ask(se->run->control, se->engine, &call.target, &se->err) : NULL;
    if (wanted && !listed)
        rc = -EIO;
    for (size_t i = 0; listed && rc == 0 && i < se->n_adapters; i++)
        rc = load_adapter(se, &se->adapters[i], &call.target, listed, wanted);
    se->lost = rc < 0;
    free(listed);
    free(wanted);
    return rc;
}

/* Does the engine have something else under the name, which somebody loaded in the same moment? */
static bool is_others(const struct ws_switch_engine *se, const struct ws_switch_adapter *a,
                      const struct ws_engine_adapters *listed)
{
    struct ws_version_id id;
    for (size_t i = 0; i < listed->n; i++)
        if (strcmp(listed->items[i].name, a->told) == 0)
            return listed->items[i].path[0] &&
                   !ws_adapter_is_own(se->run->control, a->controller, se->engine, &listed->items[i], &id);
    return false;
}

/* Those that this switch has loaded. */
static int unload_told(struct ws_switch_engine *se, const struct ws_engine_target *t)
{
    struct ws_control *c = se->run->control;
    if (!ws_adapter_step_has_changed(se))
        return 0;
    struct ws_engine_adapters *listed = ws_adapters_ask(c, se->engine, t, &se->err);
    int rc = listed ? 0 : -EIO;
    for (size_t i = 0; listed && i < se->n_adapters; i++) {
        struct ws_switch_adapter *a = &se->adapters[i];
        if (!a->told[0])
            continue;
        const int one = is_others(se, a, listed)
                            ? 0
                            : ws_adapter_unload(c, a->controller, se->engine, t, a->told, &se->err);
        if (one == 0)
            a->told[0] = 0;
        rc = one < 0 ? one : rc;
    }
    free(listed);
    return rc;
}

/* Those that a load of the target made it forget. */
static int load_forgotten(struct ws_switch_engine *se, const struct ws_engine_target *t)
{
    struct ws_control *c = se->run->control;
    if (se->n_adapters == 0 || !se->target || !se->engine->ops->load_drops_adapters)
        return 0;
    struct ws_wanted_adapters *wanted = malloc(sizeof(*wanted));
    struct ws_engine_adapters *listed = wanted ? ws_adapters_ask(c, se->engine, t, &se->err) : NULL;
    int rc = listed ? 0 : -EIO;
    for (size_t i = 0; listed && rc == 0 && i < se->n_adapters; i++)
        if (ws_kept_find_wanted(c, se->adapters[i].controller, se->adapters[i].member->keep, wanted))
            rc = ws_adapter_load_missing(c, se->adapters[i].controller, se->engine, t, listed, wanted,
                                         &se->err);
    free(listed);
    free(wanted);
    return rc;
}

int ws_adapter_step_bring_back(struct ws_switch_engine *se)
{
    const struct ws_error why = se->err;
    struct ws_engine_call call;
    ws_engine_step_call(se, true, &call);
    const int unloaded = unload_told(se, &call.target), loaded = load_forgotten(se, &call.target);
    se->not_back = se->not_back || unloaded < 0 || loaded < 0;
    se->err = why;
    return unloaded < 0 ? unloaded : loaded;
}
