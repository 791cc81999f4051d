/* Keeper: looks after the engines at a slow pace. One that does not answer is shown as unknown; one that
 * answers again, or was restarted and serves something else, is shown, and brought to the current version
 * where the model's policy is follow, its commit setting lets engines be left out, or a daemon's end
 * interrupted a switch. */
#ifndef WS_FS_SWITCH_RECONCILE_H
#define WS_FS_SWITCH_RECONCILE_H
#include "fs/engines/controller.h"

struct ws_keeper;
WS_MUST_USE int ws_keeper_start(struct ws_control *c, struct ws_keeper **out);
void ws_keeper_wake(struct ws_keeper *k); /* something changed: looks at once */
void ws_keeper_stop(struct ws_keeper *k); /* NULL is fine */

#endif
