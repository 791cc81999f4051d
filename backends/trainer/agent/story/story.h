/* Story: when the newest versions were begun, published, had their delta, and were loaded. */
#ifndef WS_TRAINER_AGENT_STORY_STORY_H
#define WS_TRAINER_AGENT_STORY_STORY_H
#include "backends/trainer/agent/core/state.h"

/* Under lock. One more mount serves the version. came: what its report says of how it came there; NULL: nothing. */
void ws_story_loaded(struct ws_agent_model *m, const struct ws_version_id *id, const json_t *came);

#endif
