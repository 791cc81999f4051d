#include "fs/engines/condition.h"
#include "backends/engine/load.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

const char *ws_engine_state_name(enum ws_engine_state s)
{
    static const char *const names[] = {"serving", "paused", "loading", "unknown", "broken", "stale"};
    return names[s];
}

#define KEEP(to, from) snprintf((to), sizeof(to), "%s", (from))

static void see(struct ws_condition *c, enum ws_engine_state state, const char *error)
{
    c->state = state;
    KEEP(c->error, error ? error : "");
    KEEP(c->reason, c->error);
}

/* --- views --- */

const char *ws_condition_version(const struct ws_condition *c)
{
    return c->state == WS_ENGINE_LOADING ? c->loading : c->version;
}

bool ws_condition_is_broken(const struct ws_condition *c)
{
    return c->state == WS_ENGINE_BROKEN || c->weights == WS_WEIGHTS_LOST || c->weights == WS_WEIGHTS_LOADING;
}

bool ws_condition_is_uncertain(const struct ws_condition *c)
{
    return c->abandoned || c->unanswered || c->in_switch;
}

bool ws_condition_answers(const struct ws_condition *c)
{
    return c->state == WS_ENGINE_SERVING || c->state == WS_ENGINE_STALE;
}

bool ws_condition_is_behind(const struct ws_condition *c)
{
    return c->state != WS_ENGINE_SERVING || c->abandoned || c->unanswered;
}

bool ws_condition_lacks_path(const struct ws_condition *c)
{
    return c->reports.version && !c->reports.path && !c->path[0];
}

bool ws_condition_is_asleep(const struct ws_condition *c)
{
    return c->sleeping && !c->abandoned && !c->unanswered && !ws_condition_is_broken(c);
}

bool ws_condition_loses_asleep(const struct ws_condition *c)
{
    return c->sleeping && c->reports.loses_asleep;
}

bool ws_condition_names_another(const struct ws_condition *c, const struct ws_engine_serving *now)
{
    return c->reports.version && strcmp(now->version, c->version) != 0;
}

bool ws_condition_may_be_patched(const struct ws_condition *c)
{
    return c->weights == WS_WEIGHTS_SOUND && c->state != WS_ENGINE_BROKEN && !c->abandoned && !c->sleeping;
}

bool ws_condition_was_told_to_load(const struct ws_condition *c)
{
    return c->weights == WS_WEIGHTS_LOADING || c->weights == WS_WEIGHTS_LOADED;
}

bool ws_condition_has_changed(const struct ws_condition *c)
{
    return c->paused || ws_condition_was_told_to_load(c);
}

bool ws_condition_was_resumed(const struct ws_condition *c)
{
    return ws_condition_was_told_to_load(c) && !c->paused;
}

bool ws_condition_may_run(const struct ws_condition *c)
{
    return c->weights == WS_WEIGHTS_LOADED ||
           (c->weights == WS_WEIGHTS_SOUND && (!c->abandoned || c->said_to_run));
}

bool ws_condition_may_be_paused_yet(const struct ws_condition *c)
{
    return c->unanswered && ws_condition_may_run(c);
}

bool ws_condition_may_run_on(const struct ws_condition *c)
{
    return c->was_running && c->paused && c->weights == WS_WEIGHTS_SOUND && !c->sleeping;
}

/* --- without a switch --- */

static void see_sleep(struct ws_condition *c, const struct ws_engine_serving *now)
{
    if (now->sleep_unknown)
        return;
    const bool same =
        !c->version[0] || !ws_condition_names_another(c, now); /* another one: somebody loaded it */
    if (ws_condition_loses_asleep(c) && !now->sleeping && same) {
        c->weights = WS_WEIGHTS_LOST;
        c->abandoned = true; /* it is reconciled without a command */
        see(c, WS_ENGINE_BROKEN,
            "it was woken without a load after a sleep in which it lost its weights (sleep=2): they are "
            "undefined until it loads a version");
    }
    c->sleeping = now->sleeping;
    c->sleep_known = true;
}

void ws_condition_init(struct ws_condition *c, struct ws_condition_reports reports)
{
    memset(c, 0, sizeof(*c));
    c->reports = reports;
    c->state = WS_ENGINE_UNKNOWN;
}

void ws_condition_restore_broken(struct ws_condition *c)
{
    c->weights = WS_WEIGHTS_LOST;
}

void ws_condition_restore_uncertain(struct ws_condition *c)
{
    c->abandoned = true;
}

void ws_condition_restore_asleep(struct ws_condition *c)
{
    c->sleeping = true;
}

void ws_condition_added(struct ws_condition *c, bool paused)
{
    see(c, paused ? WS_ENGINE_PAUSED : WS_ENGINE_SERVING, NULL);
}

void ws_condition_probed(struct ws_condition *c, const struct ws_engine_serving *now)
{
    if (now->path[0] || ws_condition_names_another(c, now))
        memcpy(c->path, now->path, sizeof(c->path)); /* what we saw it load is what it serves no more */
    KEEP(c->version, now->version);
}

bool ws_condition_answered(struct ws_condition *c, const struct ws_engine_serving *now, const char *current,
                           bool *restarted)
{
    *restarted = false;
    if (c->in_switch)
        return false;
    see_sleep(c, now);
    const bool tells = c->reports.version;
    const bool same = current && (!tells || strcmp(now->version, current) == 0);
    const bool paused = now->paused || ((c->abandoned || c->unanswered) && !now->reports_paused);
    *restarted = ws_condition_names_another(c, now);
    if (*restarted && !c->reports.path)
        c->path[0] = 0;
    if (tells)
        KEEP(c->version, now->version);
    if (now->paused && c->stray_pause) {
        c->stray_pause = false;
        c->abandoned = true;
    }
    if (c->weights == WS_WEIGHTS_LOST) {
        c->state = WS_ENGINE_BROKEN;
        c->abandoned = c->abandoned || (now->reports_paused && !now->paused);
    } else if (same && !paused && (tells || c->state == WS_ENGINE_SERVING))
        see(c, WS_ENGINE_SERVING, NULL);
    else if (same && tells && paused)
        c->state = WS_ENGINE_PAUSED;
    else if (c->state == WS_ENGINE_SERVING || c->state == WS_ENGINE_UNKNOWN || c->state == WS_ENGINE_BROKEN ||
             (c->state == WS_ENGINE_PAUSED && now->reports_paused && !paused))
        c->state = current ? WS_ENGINE_STALE : paused ? WS_ENGINE_PAUSED : WS_ENGINE_SERVING;
    KEEP(c->error, ws_condition_is_asleep(c)
                       ? "it sleeps: whoever put it to sleep wakes it, or the next switch"
                       : c->reason);
    return true;
}

bool ws_condition_silent(struct ws_condition *c, const char *why, bool *lost)
{
    *lost = false;
    if (c->in_switch)
        return false;
    *lost = c->state != WS_ENGINE_UNKNOWN;
    c->state = WS_ENGINE_UNKNOWN;
    if (*lost || !c->error[0])
        KEEP(c->error, why);
    return true;
}

bool ws_condition_reported(struct ws_condition *c, const char *version)
{
    if (c->in_switch)
        return false;
    KEEP(c->version, version);
    see(c, WS_ENGINE_SERVING, NULL);
    return true;
}

bool ws_condition_drifted(struct ws_condition *c, const char *why)
{
    if (c->in_switch || !ws_condition_answers(c))
        return false;
    c->weights = WS_WEIGHTS_LOST;
    c->abandoned = true; /* it is reconciled without a command */
    see(c, WS_ENGINE_BROKEN, why);
    return true;
}

/* --- of a switch --- */

bool ws_condition_begin(struct ws_condition *c)
{
    if (c->in_switch)
        return false;
    assert(!ws_condition_was_told_to_load(c) && !c->paused);
    c->in_switch = true;
    c->was_running = c->said_to_run = false;
    return true;
}

void ws_condition_queried(struct ws_condition *c, const struct ws_engine_serving *now)
{
    assert(c->in_switch && !ws_condition_has_changed(c));
    see_sleep(c, now);
    c->said_to_run = now->reports_paused && !now->paused;
    c->was_running = !c->abandoned && (c->unanswered || (!now->paused && ws_condition_answers(c)));
    if (c->weights == WS_WEIGHTS_LOST && now->paused && c->back_path[0])
        return; /* as it was left, and not restarted: what it says now are traces of the loads since */
    KEEP(c->back_path, now->path[0] ? now->path : c->path);
    KEEP(c->back_version, c->reports.version ? ws_engine_labelled_version(now->version) : c->version);
}

void ws_condition_path_found(struct ws_condition *c, const char *path)
{
    assert(c->in_switch && !c->back_path[0]);
    KEEP(c->back_path, path);
}

void ws_condition_failed(struct ws_condition *c, const char *why)
{
    assert(c->in_switch);
    see(c, WS_ENGINE_UNKNOWN, why);
}

void ws_condition_pause_sent(struct ws_condition *c)
{
    assert(c->in_switch);
    c->stray_pause = c->stray_pause || c->unanswered;
    c->paused = c->unanswered = true;
}

void ws_condition_paused(struct ws_condition *c)
{
    assert(c->in_switch && c->paused);
    c->unanswered = false;
    see(c, WS_ENGINE_PAUSED, NULL);
}

bool ws_condition_load_begins(struct ws_condition *c, const char *version)
{
    if (!c->in_switch || !c->paused)
        return false;
    see(c, WS_ENGINE_LOADING, NULL);
    KEEP(c->loading, version);
    return true;
}

void ws_condition_load_ended(struct ws_condition *c, const char *path, bool heard, bool confirmed)
{
    assert(c->in_switch && c->state == WS_ENGINE_LOADING && (heard || !confirmed));
    if (!heard)
        return; /* it continues as it was */
    c->weights = confirmed ? WS_WEIGHTS_LOADED : WS_WEIGHTS_LOADING;
    KEEP(c->version, c->loading);
    KEEP(c->path, confirmed ? path : "");
}

bool ws_condition_runs(struct ws_condition *c)
{
    if (!c->in_switch || !c->paused || !ws_condition_may_run(c))
        return false;
    c->paused = c->sleeping = false;
    return true;
}

bool ws_condition_serves(struct ws_condition *c)
{
    if (!c->in_switch || c->paused || c->weights != WS_WEIGHTS_LOADED)
        return false;
    c->abandoned = false;
    see(c, WS_ENGINE_SERVING, NULL);
    return true;
}

void ws_condition_resume_failed(struct ws_condition *c, const char *why)
{
    assert(c->in_switch);
    see(c, c->paused ? WS_ENGINE_PAUSED : WS_ENGINE_UNKNOWN, why);
}

/* Not every engine says that it is paused: it must not be taken for one that serves. */
static void leave(struct ws_condition *c)
{
    c->abandoned = c->abandoned || c->paused;
}

void ws_condition_given_up(struct ws_condition *c, const char *version, const char *why)
{
    assert(c->in_switch);
    see(c,
        c->weights == WS_WEIGHTS_LOADING               ? WS_ENGINE_BROKEN
        : c->weights == WS_WEIGHTS_LOADED && c->paused ? WS_ENGINE_PAUSED
                                                       : WS_ENGINE_UNKNOWN,
        why);
    if (version)
        KEEP(c->version, version);
    c->back_version[0] = c->back_path[0] = 0; /* the others have another version now */
    leave(c);
}

void ws_condition_brought_back(struct ws_condition *c, const char *current)
{
    assert(c->in_switch && c->weights != WS_WEIGHTS_LOST && c->weights != WS_WEIGHTS_LOADING);
    if (!ws_condition_may_run(c)) {
        see(c, WS_ENGINE_PAUSED, "it was left in the middle of an earlier switch");
        return;
    }
    assert(!c->unanswered);
    c->abandoned = c->abandoned && c->weights != WS_WEIGHTS_LOADED;
    KEEP(c->version, c->back_version);
    const bool other = c->reports.version && current && strcmp(c->version, current) != 0;
    see(c, other ? WS_ENGINE_STALE : WS_ENGINE_SERVING, NULL);
}

void ws_condition_not_back(struct ws_condition *c, bool answers, const char *why)
{
    assert(c->in_switch);
    const bool whole = c->weights == WS_WEIGHTS_SOUND || c->weights == WS_WEIGHTS_LOADED;
    see(c, !answers ? WS_ENGINE_UNKNOWN : whole ? WS_ENGINE_PAUSED : WS_ENGINE_BROKEN, why);
    if (c->state != WS_ENGINE_BROKEN)
        leave(c);
}

void ws_condition_over(struct ws_condition *c, bool ending)
{
    assert(c->in_switch);
    c->abandoned = c->abandoned || (ending && ws_condition_has_changed(c) && !ws_condition_answers(c));
    c->weights = ws_condition_is_broken(c) ? WS_WEIGHTS_LOST : WS_WEIGHTS_SOUND;
    c->in_switch = c->paused = c->was_running = c->said_to_run = false;
}
