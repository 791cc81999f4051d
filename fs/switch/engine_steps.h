/* Engine steps: what a switch does with one engine, step by step, and the same step over many at once. What
 * follows from a step that fails is decided by the switch (switch.c). */
#ifndef WS_FS_SWITCH_ENGINE_STEPS_H
#define WS_FS_SWITCH_ENGINE_STEPS_H
#include "fs/switch/switch.h"
#include <limits.h>

/* One engine in a switch. */
struct ws_switch_engine {
    struct ws_switch_run *run;
    struct ws_controller *controller;
    struct ws_engine *engine;
    unsigned batch;
    char to_path[PATH_MAX], to_version[32]; /* its number, for people */
    char to_version_id[WS_VERSION_ID_TEXT]; /* what the engine is told that it is */
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
    const struct ws_switch_item *items; /* whose `cancel` ends it, once it is claimed */
    size_t n_items;
    uint64_t deadline_ns;
    bool going_back;
    struct ws_switch_engine *engines, **selected; /* selected: room for those that take part in a step */
    size_t n;
};

/* The path at which the engine sees a version. */
void ws_engine_step_path(const struct ws_switch_engine *se, struct ws_model *m, struct ws_version *v,
                         char out[PATH_MAX]);
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
int ws_engine_step_query(struct ws_switch_engine *se); /* what it serves now: that is the way back */
int ws_engine_step_pause(struct ws_switch_engine *se);
int ws_engine_step_load(struct ws_switch_engine *se);   /* and confirms; without an answer it is asked */
int ws_engine_step_flush(struct ws_switch_engine *se);  /* its caches of what old weights computed */
int ws_engine_step_resume(struct ws_switch_engine *se); /* on the new version */
int ws_engine_step_pause_again(struct ws_switch_engine *se);
/* Brings it back to what it served before: loaded where its weights may have changed, and resumed. Without good
 * weights it stays paused and is called broken; without an answer it is called unknown. */
int ws_engine_step_bring_back(struct ws_switch_engine *se);
/* Resumes an engine that ran, was paused and was never told to load. */
void ws_engine_step_run_on(struct ws_switch_engine *se);
/* It failed and is not brought back now: it stays as it is, paused or not, and is called broken where its weights
 * are uncertain, unknown where it was never told to load. */
void ws_engine_step_give_up(struct ws_switch_engine *se, const char *why);

#endif
