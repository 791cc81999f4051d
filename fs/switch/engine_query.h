/* Engine query: the first step of a switch with an engine. What it serves now is the way back, and it is asked whether it can take
 * part, before any engine is paused. */
#ifndef WS_FS_SWITCH_ENGINE_QUERY_H
#define WS_FS_SWITCH_ENGINE_QUERY_H
#include "fs/switch/engine_steps.h"

/* As the steps of engine_steps.h. */
int ws_engine_step_query(struct ws_switch_engine *se);

#endif
