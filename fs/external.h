/* External: engines that a framework of their own pauses, loads and resumes (SkyRL, slime, verl). Nothing is
 * driven for them: the framework stages a version, loads it, and says so. */
#ifndef WS_FS_EXTERNAL_H
#define WS_FS_EXTERNAL_H
#include "fs/desk.h"

extern const struct ws_engine_ops ws_external_ops; /* without functions */
/* One of them (engine NULL: all) serves v now. Once all do, v becomes current and agents are told. -ENOENT:
 * no such engine; -ENODATA: v is not here, complete; -EBUSY: a switch is running. */
WS_MUST_USE int ws_external_loaded(struct ws_control *c, struct ws_desk *d, struct ws_model *m,
                                   struct ws_version *v, const char *engine, struct ws_error *err);

#endif
