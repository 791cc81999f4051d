/* Follow: carries out a model's policy when a version appears, and what agents want of this mount
 * (store/desired.h): prepares a release, switches to it together with all models that it names, and fetches
 * versions that other mounts' engines need. Any thread may call; the work runs as a job. */
#ifndef WS_FS_SWITCH_FOLLOW_H
#define WS_FS_SWITCH_FOLLOW_H
#include "fs/engines/controller.h"

/* Checks whether there is something to do for the model, and starts it. Returns soon. */
void ws_follow_check(struct ws_control *c, struct ws_model *m);
/* May an operator switch to v? Not where following would undo it at once: -EPERM with what to do. */
WS_MUST_USE int ws_follow_allows(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                                 struct ws_version *v, struct ws_error *err);
/* An agent may have missed the reports on what it desires: that is carried out again, which is soon done where it
 * was before. */
void ws_follow_resume(struct ws_control *c, struct ws_model *m);
/* Forgets what agents that have ended had released. */
void ws_follow_forget(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m);
/* What agents desire of the model has changed. */
void ws_follow_desired(struct ws_control *c, struct ws_model *m);
#endif
