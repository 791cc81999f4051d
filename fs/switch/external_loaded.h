/* External, loaded: the command by which a framework says what its engines (external.h) serve. */
#ifndef WS_FS_SWITCH_EXTERNAL_LOADED_H
#define WS_FS_SWITCH_EXTERNAL_LOADED_H
#include "fs/engines/controller.h"

/* One of the engines (engine NULL: all) serves v now. Once all do, v becomes current and agents are told.
 * -ENOENT: no such engine; -ENODATA: v is not here, complete; -EBUSY: a switch is running. */
WS_MUST_USE int ws_external_loaded(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m,
                                   struct ws_version *v, const char *engine, struct ws_error *err);

#endif
