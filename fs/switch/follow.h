/* Follow: does by itself what a model's policy says of a version that appears, and what agents ask of this
 * mount (store/desired.h): prepares a release and switches to it with all the models that it names, fetches
 * what is wanted here. */
#ifndef WS_FS_SWITCH_FOLLOW_H
#define WS_FS_SWITCH_FOLLOW_H
#include "fs/engines/controller.h"

/* Looks whether there is something to do for the model, and starts it. Returns soon. */
void ws_follow_look(struct ws_control *c, struct ws_model *m);
/* May a person switch to v? Not where following would undo it at once: -EPERM with what to do. */
WS_MUST_USE int ws_follow_allows(struct ws_control *c, struct ws_desk *d, struct ws_model *m,
                                 struct ws_version *v, struct ws_error *err);
/* An agent may have missed what was said of the orders: they are carried out again, which is soon done where
 * they were. */
void ws_follow_again(struct ws_control *c, struct ws_model *m);
/* What agents that have ended had released counts no more. */
void ws_follow_forget(struct ws_control *c, struct ws_desk *d, struct ws_model *m);
/* The orders for the model have changed. */
void ws_follow_orders(struct ws_control *c, struct ws_model *m);
#endif
