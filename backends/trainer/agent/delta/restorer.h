/* Restorer: what others of the agent ask of it. */
#ifndef WS_TRAINER_AGENT_DELTA_RESTORER_H
#define WS_TRAINER_AGENT_DELTA_RESTORER_H
#include "backends/trainer/agent/core/state.h"

/* Has everything come back that the archive has; or is there none? Under lock, once all features have started. */
bool ws_restorer_has_ended(const struct ws_agent *a);

#endif
