/* Patch steps: an engine goes to its target by a patch where it can (update=, backends/engine/patch.h): its workers prepare it
 * while they serve, put it in the pause instead of a load, undo it on the way back, and forget it when the switch is over.
 * The way back of a patch costs as little as the patch. Where any of it cannot be, the whole version is loaded, as by update=whole. */
#ifndef WS_FS_SWITCH_PATCH_STEPS_H
#define WS_FS_SWITCH_PATCH_STEPS_H
#include "fs/switch/engine_steps.h"

/* May it be tried? */
bool ws_patch_step_is_due(const struct ws_switch_engine *se);
/* Before the pause, once it was asked what it serves. Always 0: else patch.why says why all is loaded. */
int ws_patch_step_prepare(struct ws_switch_engine *se);
/* In the pause, in place of a load. False: nothing was written, and it is to load the whole version. *rc: as of a load. */
bool ws_patch_step_put(struct ws_switch_engine *se, int *rc);
/* The whole version was loaded, with that result: what is to be said of it. */
void ws_patch_step_whole(struct ws_switch_engine *se, int rc);
/* In the pause: it holds again what it did before. False: there is nothing to undo, or it is not known that it was. */
bool ws_patch_step_undo(struct ws_switch_engine *se);
/* Without a switch: drops a plan whose drop at the end of its switch was not answered. The engine answers, as t says. */
void ws_patch_step_drop_left(struct ws_control *c, struct ws_engine *e, const struct ws_engine_target *t);
/* At the end, however it ended: plans are dropped, and what they were made from is held no more. */
void ws_patch_steps_end(struct ws_switch_run *r);

#endif
