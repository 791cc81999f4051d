/* Switch: all engines of one or several models from what they serve to other versions, all or none. */
#ifndef WS_FS_SWITCH_H
#define WS_FS_SWITCH_H
#include "fs/desk.h"

struct ws_switch_part {
    struct ws_desk *desk;
    struct ws_model *model;     /* borrowed */
    struct ws_version *version; /* borrowed; where to */
};
/* Runs it to its end. 0: every engine of every part serves its version and `current` of every model moved.
 * Otherwise every engine that could be brought back serves what it did before, no `current` moved, and err
 * says why: EBUSY a switch is running, EPROTO the layout differs (force lifts it), EREMOTEIO an engine
 * refused, or what the pull ended with. cancel is looked at until the first engine is paused. */
WS_MUST_USE int ws_switch_run(struct ws_control *c, struct ws_switch_part *parts, size_t n, bool force_layout,
                              const atomic_bool *cancel, struct ws_error *err);
/* Waits for a pull in short steps, so that both the writer's cancel and the end of the mount are seen. */
WS_MUST_USE int ws_pull_and_wait(struct ws_control *c, struct ws_version *v, enum ws_priority priority,
                                 const atomic_bool *cancel, struct ws_error *err);

#endif
