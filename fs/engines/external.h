/* External: engines that their own framework pauses, loads and resumes (SkyRL, slime, verl). The mount does
 * not call them: the framework stages a version, loads it, and reports it (external_loaded.h). */
#ifndef WS_FS_ENGINES_EXTERNAL_H
#define WS_FS_ENGINES_EXTERNAL_H
#include "backends/engine/engine.h"

extern const struct ws_engine_ops ws_external_ops; /* without functions */

#endif
