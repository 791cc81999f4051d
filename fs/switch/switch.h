/* Switch: engines of one or several models from what they serve to other versions, as a transaction. */
#ifndef WS_FS_SWITCH_SWITCH_H
#define WS_FS_SWITCH_SWITCH_H
#include "fs/engines/controller.h"

struct ws_switch_item {
    struct ws_controller *controller;
    struct ws_model *model;      /* borrowed */
    struct ws_version *version;  /* borrowed; where to */
    struct ws_version_id before; /* private to goal.h: the controller's target before */
    bool is_first;               /* likewise: there is no version to go back to */
};
void ws_switch_item_release(struct ws_switch_item *item); /* puts model and version, where they are set */

struct ws_switch_options {
    bool force_layout;     /* the gate is left out */
    bool is_followed;      /* no operator commands it: not to a version that is older (freshness.h) */
    bool holds_back;       /* where it fails, engines go back and stay paused: in quarantine */
    bool wait;             /* for a switch that runs, instead of EBUSY */
    unsigned deadline_s;   /* 0: WS_SWITCH_DEADLINE_S; a rollback has its own time */
    const char *by, *from; /* of the audit log: the writer, or the policy that wants it; NULL: not known */
    const atomic_bool *cancel; /* the writer was interrupted; may be NULL */
};
#define WS_SWITCH_DEADLINE_S 1800

/* Runs it to its end. 0: every engine of every item serves its version (or as many as the model's commit
 * setting asks for, the others retired and named in events) and `current` of every model moved. Otherwise
 * every engine that could be brought back serves what it did before (or is paused on it: holds_back), no `current` moved, and err says why:
 * EBUSY a switch is running, EPROTO the layout differs, EREMOTEIO an engine refused, ECANCELED cancelled,
 * EINTR the writer got a signal, ETIMEDOUT its deadline, or what the pull ended with. */
WS_MUST_USE int ws_switch_run(struct ws_control *c, struct ws_switch_item *items, size_t n,
                              const struct ws_switch_options *options, struct ws_error *err);
/* Pull, verify and gate, and no more: what a switch would begin with. */
WS_MUST_USE int ws_switch_prepare(struct ws_control *c, const struct ws_switch_item *item,
                                  const struct ws_switch_options *options, struct ws_error *err);
/* The version that was current when a daemon before ended, and is here, is current again. It waits for no
 * engine: they are looked at next. -EEXIST: another switch was meanwhile, which stays; -EBUSY: one is
 * running. */
WS_MUST_USE int ws_switch_restore(struct ws_control *c, struct ws_switch_item *item, struct ws_error *err);
/* Waits for a pull in short steps, so that the writer's cancel, a deadline and the end of the mount are seen.
 */
WS_MUST_USE int ws_switch_pull(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                               const struct ws_switch_options *options, struct ws_error *err);

#endif
