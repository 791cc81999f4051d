/* Needed: of a model of which this mount has only some tensors (store/needs.h), whether a version has all those that its
 * engines were loaded with. Versions of one daemon have the same patterns, and the gate compares them. But engines outlive a
 * daemon, and the next may be started with other patterns: what they were loaded with is kept in the settings, as it was
 * when a switch by this mount succeeded last. Without it they would be left with tensors of two versions. */
#ifndef WS_FS_SWITCH_NEEDED_H
#define WS_FS_SWITCH_NEEDED_H
#include "fs/engines/controller.h"

/* -EPROTO: a tensor is left out that engines of a daemon before have, which is named; or that cannot be told. The version is
 * complete. */
WS_MUST_USE int ws_needed_check(struct ws_control *c, const struct ws_controller *ctl, struct ws_model *m,
                                struct ws_version *v, struct ws_error *err);
/* All engines were switched by this mount. */
void ws_needed_loaded(struct ws_control *c, struct ws_controller *ctl);
/* What the settings keep of it, a line without its end; under the control's lock. NULL: nothing, or no memory. The
 * caller frees it. model: the controller's; NULL: it is not known. */
char *ws_needed_line(const struct ws_controller *ctl, const struct ws_model *model);
#define WS_NEEDED_WORD "needed "

#endif
