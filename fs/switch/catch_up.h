/* Catching up: engines that are brought along outside of a switch, and those that are held until they may be. */
#ifndef WS_FS_SWITCH_CATCH_UP_H
#define WS_FS_SWITCH_CATCH_UP_H
#include "fs/switch/switch.h"

/* Brings engines to their model's current version and those of their draft models, all at once: those that were retired,
 * restarted or added late. What fails is left as it is and holds up no other. results: a number for each name, 0 or -errno; may
 * be NULL. wakes: also one that another program has put to sleep; else that is left, with -EAGAIN. Returns the first error:
 * what an engine failed with, -EBUSY, -EAGAIN (a draft's version is on its way),
 * -ENOENT (no such engine, or nothing is current). */
WS_MUST_USE int ws_switch_catch_up(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                                   const char *const *names, size_t n, bool wakes, int *results,
                                   struct ws_error *err);
/* Pauses all engines of the model and leaves them so: they serve what a release left behind. The next switch to
 * succeed, or the reconciler once it may, has them run again. An engine that is paused stays as it is. Returns the
 * first error; -EBUSY: a switch is running; -ENOENT: nothing is current, or there is no engine. */
WS_MUST_USE int ws_switch_hold(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                               const char *why, struct ws_error *err);

#endif
