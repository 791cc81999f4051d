/* Drive: the engines of a switch from step to step, one batch after the other, and back. */
#ifndef WS_FS_SWITCH_DRIVE_H
#define WS_FS_SWITCH_DRIVE_H
#include "fs/switch/engine_steps.h"

/* Until when a switch with these options may take, from now. */
uint64_t ws_switch_deadline(const struct ws_switch_options *o);
/* Is it to end, from outside: by a cancel, its deadline, the mount's end? EINTR is only for a writer that got a signal:
 * Python writes the command again after an EINTR. */
WS_MUST_USE int ws_switch_check_end(struct ws_switch_run *r, struct ws_error *err);
/* Waits for a pull in short steps, in which ws_switch_check_end is asked. */
WS_MUST_USE int ws_switch_run_pull(struct ws_switch_run *r, struct ws_version *v, enum ws_priority priority,
                                   struct ws_error *err);
/* All engines of the run to their versions, or as many as the commit setting asks for, the others retired; else back
 * to what they served, and err says why. */
WS_MUST_USE int ws_switch_drive(struct ws_switch_run *r, struct ws_error *err);
/* One engine that is brought along, through all steps. It is left as it is where one fails. */
WS_MUST_USE int ws_switch_drive_one(struct ws_switch_engine *se);
/* Of ws_engine_step_each: has it not failed yet? */
bool ws_switch_is_going(const struct ws_switch_engine *se);
const struct ws_switch_engine *ws_switch_first_lost(const struct ws_switch_run *r);

#endif
