/* Gate: may a version take the place of the one that a model's engines serve? Asked before any engine is
 * told, because none of them checks that a checkpoint is complete: a missing tensor is answered 200 and
 * leaves a mix. */
#ifndef WS_FS_SWITCH_GATE_H
#define WS_FS_SWITCH_GATE_H
#include "fs/engines/controller.h"

struct ws_gate {
    struct ws_model *model;
    struct ws_version *version;
    /* Fetches what is served where it is not here; -ESTALE: gone at the source. NULL: only what is here
     * counts. */
    int (*fetch)(void *arg, struct ws_version *served, struct ws_error *err);
    void *arg;
};

/* First whether the version leaves out a tensor that engines of a daemon before have (needed.h). Then
 * compares names, dtypes and shapes with those of what is served; frozen tensors are in the files and count.
 * That is the current version; before a first switch what each engine was started on (a version of this
 * mount, or a folder that can be read here), else the newest version below that is here. 0 too where there is
 * nothing to compare with. -EPROTO with the list of what is missing, extra or different; any other error
 * where a layout that there is cannot be told. */
WS_MUST_USE int ws_gate_check(const struct ws_gate *g, struct ws_control *c, const struct ws_controller *ctl,
                              struct ws_error *err);
/* May an engine be told to load the version (backends/engine/cpu_reload.h)? Asked whatever the layouts say. facts: what a probe
 * of it found. -EPROTO: it would answer wrong from then on. */
WS_MUST_USE int ws_gate_check_reload(struct ws_version *version, const struct ws_engine_facts *facts,
                                     const char *name, struct ws_error *err);
/* As that, for all engines of the model. One that was not asked yet what it is passes: it is asked before it is paused
 * (engine_query.h). */
WS_MUST_USE int ws_gate_check_reloads(struct ws_version *version, struct ws_control *c,
                                      const struct ws_controller *ctl, struct ws_error *err);

#endif
