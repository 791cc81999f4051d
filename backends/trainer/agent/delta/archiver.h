/* Archiver: writes what is published to the archive (archiver.c). */
#ifndef WS_TRAINER_AGENT_DELTA_ARCHIVER_H
#define WS_TRAINER_AGENT_DELTA_ARCHIVER_H
#include "backends/trainer/agent/core/state.h"

/* The version came out of the archive into a slot, so the next one can be archived as a delta on it. depth: how many
 * deltas lead to it there from its anchor. Under lock. */
void ws_archiver_restored(struct ws_agent_model *m, const struct ws_version_id *version,
                          const struct ws_version_id *anchor, unsigned depth);

#endif
