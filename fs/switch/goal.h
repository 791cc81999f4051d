/* Goal: what the settings call current of the models that a switch moves, so that a daemon that is killed in it leaves the next
 * one a whole set. That is the old one, to which engines are brought back; or the new one, where a model of it has no version
 * yet to go back to, and once all engines have loaded it. Each change is seen by a writer of the settings as a whole. */
#ifndef WS_FS_SWITCH_GOAL_H
#define WS_FS_SWITCH_GOAL_H
#include "fs/switch/engine_steps.h"

/* Before an engine is told; the settings are written with the begin of its steps. */
void ws_goal_begin(struct ws_switch_run *r);
/* All engines have it: from now on the new one. Written here where there are several models: they become current one after
 * the other. Claim's end forgets it. */
void ws_goal_commit(struct ws_switch_run *r);
/* It failed. Where the mount's end left an engine that has nothing to go back to, the new one stays, as where a daemon is killed,
 * and all of its engines are brought there. */
void ws_goal_drop(struct ws_switch_run *r);

#endif
