/* Work: what a switch does with one engine, step by step, and the same step over many at once. What follows
 * from a step that fails is the switch's to decide (switch.c). */
#ifndef WS_FS_SWITCH_ENGINE_STEPS_H
#define WS_FS_SWITCH_ENGINE_STEPS_H
#include "fs/switch/switch.h"
#include <limits.h>

/* One engine in a switch. */
struct ws_work {
    struct ws_switch_run *run;
    struct ws_desk *desk;
    struct ws_engine *engine;
    unsigned batch;
    char to_path[PATH_MAX], to_version[32]; /* its number, for people */
    char to_mark[WS_MARK_TEXT];             /* what the engine is told that it is */
    bool not_back;                          /* it was to be brought back, and was not */
    bool lost;                              /* failed; what follows goes on without it, or back */
    uint64_t paused_ns;
    double pause_s; /* from pause to resume, once it was resumed; told in events */
    int rc;
    struct ws_error err;
};

struct ws_switch_run {
    struct ws_control *control;
    const struct ws_switch_options *options;
    const struct ws_switch_part *parts; /* whose `cancel` ends it, once it is claimed */
    size_t n_parts;
    uint64_t deadline_ns;
    bool going_back;
    struct ws_work *works, **chosen; /* the latter: room for those that take part in a step */
    size_t n;
};

/* Where its engine sees a version. */
void ws_work_path_of(const struct ws_work *w, struct ws_model *m, struct ws_version *v, char out[PATH_MAX]);
/* Runs fn for those engines of a batch, each on a thread of its own, and waits for all; how many failed. */
size_t ws_work_each(struct ws_switch_run *r, unsigned batch, bool (*when)(const struct ws_work *w),
                    int (*fn)(struct ws_work *w));
/* A switch has them, and then it is over: kept, so that a daemon that is killed in between knows it when it
 * is back. */
void ws_work_begin(struct ws_switch_run *r);
void ws_work_over(struct ws_switch_run *r);
/* Was it paused or told to load; does it run on what it was told? */
bool ws_work_has_changed(const struct ws_work *w);
bool ws_work_was_resumed(const struct ws_work *w);
/* The steps. They tell the engine's condition and an event, and mark what failed as lost; 0 or -errno with
 * w->err. */
int ws_work_ask(struct ws_work *w); /* what it serves: that is the way back */
int ws_work_pause(struct ws_work *w);
int ws_work_load(struct ws_work *w);   /* and confirms; in doubt it is asked */
int ws_work_flush(struct ws_work *w);  /* its caches of what old weights computed */
int ws_work_resume(struct ws_work *w); /* on the new version */
int ws_work_pause_again(struct ws_work *w);
/* To what it served before: loaded where it may have changed, and resumed; without good weights it stays
 * paused and is called broken, without an answer unknown. */
int ws_work_bring_back(struct ws_work *w);
/* It ran, and was paused and never told to load: it goes on as it was. */
void ws_work_run_on(struct ws_work *w);
/* It failed and nobody brings it back now: it stays as it is, paused or not, and is called broken where its
 * weights are in doubt, unknown where it was never told to load. */
void ws_work_give_up(struct ws_work *w, const char *why);

#endif
