#include "fs/switch/engine_query.h"
#include "backends/engine/load.h"
#include "fs/switch/gate.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <string.h>

/* Is there more to ask than what it serves: does it name another version than the one it was left with, was it not
 * asked yet what it is, or is it open where its weights are from, after a load that failed? Without that there is no
 * way back from a load that succeeds, and it would stay paused where another engine fails. */
static bool is_probed_anew(struct ws_switch_engine *se, const struct ws_engine_serving *now)
{
    const struct ws_condition *c = ws_engine_step_lock(se);
    const bool anew =
        ws_condition_names_another(c, now) || !se->engine->facts.known || ws_condition_lacks_path(c);
    ws_engine_step_unlock(se);
    return anew;
}

/* What it serves now is the way back. Where it names the current version but not its path, and this daemon did
 * not see it load (the engine was added, or the daemon started, later), the path is the current version's. */
static void record_way_back(struct ws_switch_engine *se, const struct ws_engine_serving *now)
{
    char current[WS_VERSION_ID_TEXT], path[PATH_MAX];
    ws_engine_step_current(se, current, path);
    struct ws_condition *c = ws_engine_step_lock(se);
    ws_condition_queried(c, now);
    if (!c->back_path[0] && current[0] && strcmp(c->back_version, current) == 0)
        ws_condition_path_found(c, path);
    ws_engine_step_unlock(se);
}

/* A draft model that is loaded alone: does the engine say that it was started without what that needs? */
static int check_loads_draft(struct ws_switch_engine *se)
{
    (void)ws_engine_step_lock(se);
    const struct ws_engine_facts *f = &se->engine->facts;
    const bool cannot = f->known && strcmp(f->draft, "unchanged") == 0 && !f->loads_draft;
    const bool comes_along = f->known && strcmp(f->draft, "loaded") == 0;
    ws_engine_step_unlock(se);
    if (comes_along)
        return ws_error_set(
            &se->err, EPROTO,
            "its draft model is in the target's checkpoint (MTP) and is loaded with it: add it "
            "without draft=");
    return cannot ? ws_error_set(
                        &se->err, EPROTO,
                        "it was started without what loads a draft model: wsync-engines(7) says how (vLLM: "
                        "--weight-transfer-config; SGLang: the Python package beside it)")
                  : 0;
}

/* What the gate asked of engines that were known is asked again: this one may be of another release or start now. */
static int check_reload(struct ws_switch_engine *se)
{
    (void)ws_engine_step_lock(se);
    const struct ws_engine_facts facts = se->engine->facts;
    ws_engine_step_unlock(se);
    return ws_gate_check_reload(se->target->version, &facts, se->engine->name, &se->err);
}

/* One whose target stays is resumed on what it has: that has to be whole, and it has to be known that it ran. */
static int check_target_stays(struct ws_switch_engine *se)
{
    const struct ws_condition *c = ws_engine_step_lock(se);
    const bool sleeps = c->sleeping, may = ws_condition_may_run(c);
    ws_engine_step_unlock(se);
    if (sleeps)
        return ws_error_set(&se->err, EAGAIN,
                            "it sleeps: its draft model is loaded once it is awake, or with its target");
    return may ? 0
               : ws_error_set(&se->err, EAGAIN,
                              "a switch before has left it as `engines` says: it is brought along first "
                              "(engine sync %s)",
                              se->engine->name);
}

/* One whose draft stays has it still: it may have been started anew since it was looked at last. */
static int check_draft_stays(struct ws_switch_engine *se, const struct ws_engine_target *t, bool restarted)
{
    struct ws_engine *e = se->engine;
    const struct ws_member *draft = ws_members_draft(&e->members);
    char process[WS_ENGINE_PROCESS_CHARS + 1], current[WS_VERSION_ID_TEXT];
    if (!draft || se->draft)
        return 0;
    if (!e->ops->process || e->ops->process(t, process, NULL) < 0)
        process[0] = 0;
    ws_engine_step_current(se, current, NULL);
    const struct ws_condition *c = ws_engine_step_lock(se);
    const bool had = e->draft.id.lineage[0];
    ws_draft_seen(&e->draft, process, restarted, current[0] && strcmp(c->version, current) == 0);
    const bool has = e->draft.id.lineage[0];
    ws_engine_step_unlock(se);
    return had && !has ? ws_error_set(&se->err, EAGAIN,
                                      "it was started anew, and has lost its draft model: name a version of "
                                      "%.100s, too, or bring it along first (engine sync %s)",
                                      draft->model, e->name)
                       : 0;
}

/* It may have been put to sleep since it was looked at. */
static int check_wakes(struct ws_switch_engine *se)
{
    const bool asleep = ws_condition_is_asleep(ws_engine_step_lock(se));
    ws_engine_step_unlock(se);
    return asleep && se->run->leaves_asleep
               ? ws_error_set(&se->err, EAGAIN, "it sleeps: it is brought along once it is awake")
               : 0;
}

int ws_engine_step_query(struct ws_switch_engine *se)
{
    struct ws_engine_call call;
    struct ws_engine_facts facts;
    struct ws_engine_serving now = {0};
    uint64_t start = ws_clock_ns();
    bool restarted = false;
    int rc = ws_engine_ready(se->engine, se->run->control, &se->err);
    ws_engine_step_call(se, false, &call);
    if (rc == 0) /* one that is stopped is not waited for as long as a load may take */
        rc = se->engine->ops->serving(&call.target, &now, &se->err);
    if (rc == 0)
        rc = ws_engine_settle(se->engine->ops, &call.target, &now, &se->err);
    if (rc == 0) {
        restarted = ws_condition_names_another(ws_engine_step_lock(se), &now);
        ws_engine_step_unlock(se);
    }
    if (rc == 0 && is_probed_anew(se, &now)) { /* restarted since: it may be of another release, too */
        rc = ws_engine_query(se->engine, &call.target, &facts, &now, &se->err);
        if (rc == 0) {
            (void)ws_engine_step_lock(se);
            ws_engine_record(se->engine, &facts, &now);
            ws_engine_step_unlock(se);
        }
    }
    if (rc == 0 && now.sleep_unknown && !se->engine->condition.sleep_known)
        rc = ws_error_set(&se->err, EAGAIN,
                          "it does not say whether it sleeps (vLLM: its /metrics; SGLang: the Python package "
                          "wsync beside it): "
                          "resume it where it was paused on purpose, else restart it");
    if (rc < 0)
        return ws_engine_step_fail(se, start, rc);
    record_way_back(se, &now);
    snprintf(se->settled, sizeof(se->settled), "%s", now.version);
    rc = check_wakes(se);
    if (rc == 0)
        rc = se->target ? check_reload(se) : check_target_stays(se);
    if (rc == 0 && se->target)
        rc = check_draft_stays(se, &call.target, restarted);
    if (rc == 0 && se->draft)
        rc = check_loads_draft(se);
    se->lost = rc < 0;
    return rc;
}
