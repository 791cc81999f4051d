/* Engine steps: what a switch does with one engine, step by step, and the same step over many at once. What
 * follows from a step that fails is decided by the switch (switch.c). */
#ifndef WS_FS_SWITCH_ENGINE_STEPS_H
#define WS_FS_SWITCH_ENGINE_STEPS_H
#include "backends/engine/patch.h"
#include "fs/switch/switch.h"
#include <limits.h>

/* Adapters of one model that an engine of the switch has. */
struct ws_switch_adapter {
    const struct ws_member *member;
    struct ws_controller *controller;  /* of their model */
    const struct ws_switch_item *item; /* whose version is loaded; NULL: the model stays as it is */
    ws_adapter_name
        told; /* under which it was told to load that, which it did not list before; empty: it was not */
};
/* Of an engine that goes to its target by a patch (patch_steps.h). */
struct ws_switch_patch {
    bool tried;                          /* what follows is to be shown */
    char why[400];                       /* why not by a patch */
    char plan[WS_PATCH_PLAN_DIGITS + 1]; /* its workers may have it; empty: they have none of this switch */
    size_t workers;                      /* that have prepared it; 0: it is not put */
    bool put;                            /* it was sent: undo is the way back */
    struct ws_version *base;             /* what it holds; kept whole until the switch is over */
    char base_path[PATH_MAX];
    struct ws_engine_patch_served base_served; /* what workers that hold it say; no digest: it is not known */
    char reported[64];                         /* the version in the engine's own words, before the switch */
    char how[500];                             /* of the next event: "how=patch" */
};
/* One engine in a switch: its target, its draft and its adapters, each of which may stay as it is. */
struct ws_switch_engine {
    struct ws_switch_run *run;
    struct ws_controller *controller;
    struct ws_engine *engine;
    unsigned batch;
    const struct ws_switch_item *target, *draft; /* what is loaded; NULL: it stays as it is */
    bool draft_told;
    size_t n_adapters;
    struct ws_switch_adapter adapters[WS_MAX_ENGINE_MEMBERS];
    struct ws_switch_patch patch;
    char to_path[PATH_MAX],
        to_version[32]; /* of the target, or the first of the others: its number, for people */
    char to_version_id[WS_VERSION_ID_TEXT]; /* what the engine is told that it is */
    char settled[64];                       /* the version that it reported before its pause, all earlier
                                             * requests finished; empty: to be asked before a load */
    bool not_back;                          /* it was to be brought back, and was not */
    bool lost;                              /* failed; what follows goes on without it, or back */
    uint64_t paused_ns;
    double pause_s; /* from pause to resume, once it was resumed; for events */
    int rc;
    struct ws_error err;
};

struct ws_switch_run {
    struct ws_control *control;
    const struct ws_switch_options *options;
    struct ws_switch_item *items; /* whose `cancel` ends it, once it is claimed */
    size_t n_items;
    uint64_t deadline_ns;
    bool
        own_only; /* engines of the first item's model alone, not those of others that it is a draft or an adapter of */
    bool going_back;
    bool leaves_asleep;                           /* it wakes none that another program has put to sleep */
    bool loads_whole;                             /* no patches: engines are brought along */
    struct ws_switch_engine *engines, **selected; /* selected: room for those that take part in a step */
    size_t n;
};

/* "PHASE model= version= engine= seconds= result=", with the pause, patch.how and the error. */
void ws_engine_step_event(struct ws_switch_engine *se, const char *phase, uint64_t start_ns, int rc);
/* Where the engine sees the mount. */
const char *ws_engine_step_mountpoint(const struct ws_switch_engine *se);
/* The path at which the engine sees a version. */
void ws_engine_step_path(const struct ws_switch_engine *se, struct ws_model *m, struct ws_version *v,
                         char out[PATH_MAX]);
/* The current version of its target's model, as engines are told it; empty: there is none. path: where this engine sees it;
 * may be NULL. */
void ws_engine_step_current(struct ws_switch_engine *se, char text[WS_VERSION_ID_TEXT], char path[PATH_MAX]);
/* Its condition, under the control's lock. */
struct ws_condition *ws_engine_step_lock(const struct ws_switch_engine *se);
void ws_engine_step_unlock(const struct ws_switch_engine *se);
/* It could not be asked or paused, as se->err says: it is lost, and an event says so. Returns rc. */
int ws_engine_step_fail(struct ws_switch_engine *se, uint64_t start_ns, int rc);
/* A call of the engine, with the limits of the switch. patient: no deadline and no cancel leaves it half-way, only the
 * mount's end does; so it is on the way back. */
void ws_engine_step_call(struct ws_switch_engine *se, bool patient, struct ws_engine_call *call);
/* Does the switch load the item's version into it, in whichever part? */
bool ws_engine_step_is_of(const struct ws_switch_engine *se, const struct ws_switch_item *item);
/* Does the switch pause it, for its target or its draft? Adapters want no pause. */
bool ws_engine_step_pauses(const struct ws_switch_engine *se);
/* Runs fn for the engines of a batch for which when is true, each on a thread of its own, and waits for all.
 * Returns how many failed. */
size_t ws_engine_step_each(struct ws_switch_run *r, unsigned batch,
                           bool (*when)(const struct ws_switch_engine *se),
                           int (*fn)(struct ws_switch_engine *se));
/* The switch has the engines, and then it is over. Both are written to the settings, so that the next daemon
 * knows of a switch in which this one was killed. */
void ws_engine_step_begin(struct ws_switch_run *r);
void ws_engine_step_over(struct ws_switch_run *r);
/* Was it paused or told to load; does it run on what it was told? */
bool ws_engine_step_has_changed(const struct ws_switch_engine *se);
bool ws_engine_step_was_resumed(const struct ws_switch_engine *se);
/* The steps. Each updates the engine's condition, posts an event, and marks an engine that failed as lost. 0 or
 * -errno with se->err. */
int ws_engine_step_pause(struct ws_switch_engine *se);
int ws_engine_step_load(
    struct ws_switch_engine *se); /* its target, and confirms; without an answer it is asked */
int ws_engine_step_flush(struct ws_switch_engine *se);  /* its caches of what old weights computed */
int ws_engine_step_resume(struct ws_switch_engine *se); /* on what it has loaded */
int ws_engine_step_pause_again(struct ws_switch_engine *se);
/* Brings it back to what it served before: loaded where its weights may have changed, and resumed, unless the switch
 * holds back. Without good
 * weights it stays paused and is called broken; without an answer it is called unknown. */
int ws_engine_step_bring_back(struct ws_switch_engine *se);
/* Resumes an engine that ran, was paused and was never told to load. */
void ws_engine_step_run_on(struct ws_switch_engine *se);
/* It failed and is not brought back now: it stays as it is, paused or not, and is called broken where its weights
 * are uncertain, unknown where it was never told to load. */
void ws_engine_step_give_up(struct ws_switch_engine *se, const char *why);
/* It was paused, and is left so: in quarantine (switch/quarantine.h). */
void ws_engine_step_held(struct ws_switch_engine *se);

#endif
