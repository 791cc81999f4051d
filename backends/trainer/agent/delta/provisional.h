/* Provisional delta: what is known of the step to a version that ranks are still writing. It grows as ranks give their
 * records, and is listed with its model (wsync-api(5), `coming`), so that mounts fetch it and patch a spare copy meanwhile. The
 * target's digest is not known: it has WS_PROVISIONAL_DIGEST for it. It is given up, never whole: when the version is
 * announced, whose own delta is made as ever, when it is abandoned, and where it grows beyond the room for deltas. */
#ifndef WS_TRAINER_AGENT_DELTA_PROVISIONAL_H
#define WS_TRAINER_AGENT_DELTA_PROVISIONAL_H
#include "backends/trainer/agent/core/state.h"
#include "transports/delta/delta.h"

/* Of its records, which count in the room for deltas. Under lock. */
uint64_t ws_provisional_bytes(const struct ws_agent_model *m);
/* Borrowed, or NULL. Under lock. */
struct ws_delta *ws_provisional_find(const struct ws_agent_model *m, const struct ws_version_id *base,
                                     const struct ws_version_id *target);

#endif
