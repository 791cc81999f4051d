/* Drift: weights that were patched are compared with the files of what the engine serves, every verify= seconds while no switch
 * has it. One that holds something else is called broken, loads the whole version, and is counted. */
#ifndef WS_FS_SWITCH_DRIFT_H
#define WS_FS_SWITCH_DRIFT_H
#include "fs/engines/controller.h"

/* A look at a model's engines: begins what is due, each on a thread of its own. runs: which answered, and run. */
void ws_drift_look(struct ws_control *c, struct ws_controller *ctl, struct ws_engine *const *engines,
                   const bool *runs, size_t n);

#endif
