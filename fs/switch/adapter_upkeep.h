/* Adapter upkeep: a look at the adapters of engines, as the reconciler takes it. An engine lists what it should, and no more
 * of those models: what it lost in a restart is loaded again, after its target; what fell out of the K that it keeps, or was
 * left by a daemon that was killed in a switch, is unloaded. So is what has lost its files with the memory of a daemon before,
 * and requests to which fail. What this mount did not have it load is never unloaded. Requests under way are waited for, but not
 * for long: the look holds up all others. So an engine that is paused or asleep is left alone, in which they would not end. */
#ifndef WS_FS_SWITCH_ADAPTER_UPKEEP_H
#define WS_FS_SWITCH_ADAPTER_UPKEEP_H
#include "fs/engines/controller.h"

/* engines: of the controller's model, held; runs: those that answered just now, and do not say that they are paused or asleep.
 * Nothing where a switch has them. */
void ws_adapter_upkeep(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                       struct ws_engine *const *engines, const bool *runs, size_t n);

#endif
