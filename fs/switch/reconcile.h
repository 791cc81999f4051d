/* Reconciler: a thread that looks at the engines every few seconds. One that does not answer is shown as
 * unknown. One that answers again, or was restarted and serves something else, is shown; it is brought to the
 * current version where the model's policy is follow, its commit setting lets engines be left out, or the end
 * of a daemon interrupted a switch. */
#ifndef WS_FS_SWITCH_RECONCILE_H
#define WS_FS_SWITCH_RECONCILE_H
#include "fs/engines/controller.h"

struct ws_reconciler;
WS_MUST_USE int ws_reconciler_start(struct ws_control *c, struct ws_reconciler **out);
void ws_reconciler_wake(struct ws_reconciler *k); /* something changed: looks at once */
void ws_reconciler_stop(struct ws_reconciler *k); /* NULL is fine */

#endif
