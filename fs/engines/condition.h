/* clang-format off */
/* Condition: what is known of an engine, as one state machine. What people and programs read of it (the file `engines`,
 * metrics, probes) and what the state file keeps are views; only the events below change it.
 *
 * What is seen (`state`), while no switch has the engine:
 *
 *     init                                                               -> UNKNOWN
 *     answered   its weights are LOST                                    -> BROKEN
 *                it names the current version (or none is), and runs     -> SERVING
 *                it names another one                                    -> STALE
 *                it is paused, or was left so and cannot say             -> PAUSED
 *     silent                                                             -> UNKNOWN
 *     reported   by the framework that drives it                         -> SERVING
 *     drifted    (where it is SERVING or STALE)                          -> BROKEN
 *
 * ... and while one has it, from begin to over, where those three are refused:
 *
 *     begin -> queried -> pause_sent --> paused -> load_begins -> load_ended -> runs -> serves ---------------> over
 *                |            |          PAUSED      LOADING          |           |     SERVING                  ^
 *                |            |                         ^             |           |        | another one fails   |
 *                +------------'                         |             +-----------'        v                     |
 *                | failed                               |             | resume_failed   pause_sent               |
 *                v UNKNOWN                              |             v PAUSED, UNKNOWN    |                     |
 *                +--------------------------------------|-------------+                    |                     |
 *                |                                      |             |                    |                     |
 *                | it alone                             '-- the way --+--------------------'                     |
 *                v                                          back                                                 |
 *            given_up   BROKEN after half a load, PAUSED after a whole one, else UNKNOWN ------------------------+
 *            not_back   UNKNOWN where it does not answer, or did not hear of the way back;                       |
 *                       else PAUSED; BROKEN after half a load ---------------------------------------------------+
 *            brought_back   SERVING, STALE; PAUSED where a switch before has left it so -------------------------'
 *
 * What it holds (`weights`), which alone decides whether it may be resumed:
 *
 *     SOUND, LOST --- a load is heard ---> LOADING --- and confirmed ---> LOADED --- the next is heard ---> LOADING
 *     at over: LOADED -> SOUND; LOADING, and every engine that is BROKEN -> LOST
 * An abandoned engine that says that it runs is not left paused by a switch that fails before the load; it stays
 * abandoned.
 * An engine whose weights are LOST and that reports that it runs was restarted, resumed by another program, or never
 * paused: it is reconciled, and shown as BROKEN until then.
 *
 * A pause without an answer (`unanswered`) may take effect at any time, even after a resume that was answered. It has
 * taken effect, or never will, once a later pause is answered. Until then an engine that cannot report that it runs is
 * shown as PAUSED, and is reconciled, which begins with a pause. A proxy between mount and engine may still reorder the
 * two: an engine that reports later that it is paused is reconciled again (`stray_pause`).
 *
 * A load that the engine never received changes none of this: it continues with its former version.
 *
 * A patch (backends/engine/patch.h) takes the way of a load: one that is put is LOADED, one that was sent and is not
 * known to be put is LOADING, one of which no worker wrote anything was never received. Its undo is the load of what it
 * held: done, it is LOADED with that, else LOADING, and the whole load back follows.
 *
 * An engine that loses its weights asleep, and is awake under the same version without a switch, has undefined ones: they
 * are LOST, and it is reconciled.
 *
 * Weights that are found to differ from their file (`drifted`) are LOST, and the engine is reconciled.
 *
 * What outlives a daemon: `broken` (LOST, LOADING, BROKEN), `asleep` (of one that loses them asleep) and `uncertain`, in the settings `doubted` (`abandoned`,
 * `unanswered` or `in_switch`: also an engine that serves already has to go back while others can fail, so that it is
 * uncertain until the switch is over). */
/* clang-format on */
#ifndef WS_FS_ENGINES_CONDITION_H
#define WS_FS_ENGINES_CONDITION_H
#include "backends/engine/engine.h"

enum ws_engine_state {
    WS_ENGINE_SERVING,
    WS_ENGINE_PAUSED,
    WS_ENGINE_LOADING,
    WS_ENGINE_UNKNOWN,
    WS_ENGINE_BROKEN,
    WS_ENGINE_STALE, /* answers, and serves something else than the current version */
    WS_ENGINE_STATES
};
const char *ws_engine_state_name(enum ws_engine_state s);

enum ws_engine_weights {
    WS_WEIGHTS_SOUND,
    WS_WEIGHTS_LOADING, /* the engine received this switch's load, and has not confirmed it */
    WS_WEIGHTS_LOADED,  /* ... and is confirmed */
    WS_WEIGHTS_LOST     /* a load failed, and none was confirmed since: it must not be resumed */
};

/* What an engine of its kind says of itself when the mount asks what it serves. */
struct ws_condition_reports {
    bool version, path;
    bool loses_asleep; /* its sleep costs it its weights (sleep=2) */
};
/* Guarded by the control's lock; written by condition.c alone. */
struct ws_condition {
    struct ws_condition_reports reports;
    enum ws_engine_state state;
    enum ws_engine_weights weights;
    char version[64]; /* what it serves, in its own words or in ours */
    char path[4096];  /* what it loaded last; empty: not known */
    char error[WS_ERROR_TEXT];
    char reason
        [WS_ERROR_TEXT]; /* the error without what is only silence, which is none any more once it answers */
    bool unanswered;     /* a pause that was sent may reach it yet, whatever it says: until it has answered
                        another one */
    bool
        stray_pause; /* ... and one that never did: should it say that it is paused, that pause has come after all */
    bool abandoned; /* left in the middle of a switch, by a daemon that ended or because it did not answer: it
                       may be paused or hold an old cache, and is reconciled without a command */
    bool sleeping, sleep_known; /* as in its last report; sleep_known: it has reported it */
    /* of the switch that has it */
    bool in_switch;   /* one does */
    bool was_running; /* it answered requests when it was asked */
    bool said_to_run; /* ... and it was the engine that said so then */
    bool paused;      /* by us, and not resumed */
    char loading[64], back_version[64], back_path[4096];
};

/* --- views --- */

/* What it serves, or is loading. */
const char *ws_condition_version(const struct ws_condition *c);
bool ws_condition_is_broken(const struct ws_condition *c); /* for the state file, and probes */
/* For the state file; outside of a switch: it is reconciled without a command. */
bool ws_condition_is_uncertain(const struct ws_condition *c);
/* It answers requests, or may. */
bool ws_condition_answers(const struct ws_condition *c);
/* A version is current, and the engine is not in the state that it should be in. */
bool ws_condition_is_behind(const struct ws_condition *c);
/* Is it open where its weights are from, as after a load that failed, though a probe may tell? */
bool ws_condition_lacks_path(const struct ws_condition *c);
/* Did another program, as the framework that trains on its GPU, put it to sleep? No switch has left it so, and only a
 * command wakes it. */
bool ws_condition_is_asleep(const struct ws_condition *c);
/* For the state file: does it sleep so that it has lost its weights? */
bool ws_condition_loses_asleep(const struct ws_condition *c);
/* Does it name another version than the one that it was left with? */
bool ws_condition_names_another(const struct ws_condition *c, const struct ws_engine_serving *now);
/* May a patch begin from what it holds? Its weights are good, and nothing of an earlier switch is open. */
bool ws_condition_may_be_patched(const struct ws_condition *c);
/* Of the switch that has it: was it told to load? */
bool ws_condition_was_told_to_load(const struct ws_condition *c);
/* ... was it paused or sent a load, so that it has to be rolled back? */
bool ws_condition_has_changed(const struct ws_condition *c);
/* ... does it run on the load that it was sent, so that it must be paused before another one? */
bool ws_condition_was_resumed(const struct ws_condition *c);
/* ... may it be resumed? Not before a load that it confirmed, unless it was sent none, and was not abandoned or said
 * that it ran: it goes on as it did. */
bool ws_condition_may_run(const struct ws_condition *c);
/* ... and can a pause without an answer still undo that? */
bool ws_condition_may_be_paused_yet(const struct ws_condition *c);
/* ... it ran, was paused and got no load: may it simply be resumed? */
bool ws_condition_may_run_on(const struct ws_condition *c);

/* --- events without a switch: refused (false, and nothing changes) while one has it --- */

void ws_condition_init(struct ws_condition *c, struct ws_condition_reports reports); /* UNKNOWN, SOUND */
void ws_condition_restore_broken(struct ws_condition *c);                            /* from the state file */
void ws_condition_restore_uncertain(struct ws_condition *c);
void ws_condition_restore_asleep(struct ws_condition *c);
void ws_condition_added(struct ws_condition *c, bool paused); /* it answered the probe */
/* The result of the reconciler's query. current NULL: the model has no current version. *restarted: the engine
 * reports another version than before, so it must be probed again. */
bool ws_condition_answered(struct ws_condition *c, const struct ws_engine_serving *now, const char *current,
                           bool *restarted);
bool ws_condition_silent(struct ws_condition *c, const char *why,
                         bool *lost); /* *lost: it had answered before */
bool ws_condition_reported(struct ws_condition *c, const char *version);
/* It serves, and holds something else than the file has. */
bool ws_condition_drifted(struct ws_condition *c, const char *why);
/* It was probed: what it serves and where that is from. Also at the begin of a switch. */
void ws_condition_probed(struct ws_condition *c, const struct ws_engine_serving *now);

/* --- events of a switch, between begin and over --- */

bool ws_condition_begin(struct ws_condition *c); /* false: another switch has it */
/* The way back is what it serves now, and is kept until the switch is over; that of an engine without good weights
 * is what it served before it lost them. */
void ws_condition_queried(struct ws_condition *c, const struct ws_engine_serving *now);
/* It names the current version and not where that is from: it is at this path. */
void ws_condition_path_found(struct ws_condition *c, const char *path);
void ws_condition_failed(struct ws_condition *c, const char *why); /* it could not be asked or paused */
/* A pause was sent, and may have been received: from now on the engine must be resumed, or is abandoned. */
void ws_condition_pause_sent(struct ws_condition *c);
void ws_condition_paused(struct ws_condition *c); /* confirmed; no earlier pause can follow */
/* Refused where it is not paused. */
bool ws_condition_load_begins(struct ws_condition *c, const char *version);
void ws_condition_load_ended(struct ws_condition *c, const char *path, bool heard, bool confirmed);
/* It was resumed. Refused where it must not be (ws_condition_may_run). */
bool ws_condition_runs(struct ws_condition *c);
/* ... on its load, and reports so; else why not. Refused if it was not resumed, or not loaded. */
bool ws_condition_serves(struct ws_condition *c);
void ws_condition_resume_failed(struct ws_condition *c, const char *why);
/* This switch does not bring it back: it stays as it is, paused or not. version: what it says now; NULL: it does
 * not say. */
void ws_condition_given_up(struct ws_condition *c, const char *version, const char *why);
/* It serves what it did before, and no pause can come any more; one that was left paused before stays so. */
void ws_condition_brought_back(struct ws_condition *c, const char *current);
void ws_condition_not_back(struct ws_condition *c, bool answers, const char *why); /* paused, or unknown */
/* ending: the daemon ends, so that only the next daemon sees how it was left. */
void ws_condition_over(struct ws_condition *c, bool ending);

#endif
