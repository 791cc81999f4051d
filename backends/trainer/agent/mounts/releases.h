/* Releases: the last ones of an agent, the newest first, and the thread that sees leases and deadlines end. With --state
 * they outlive the agent (saved/); one that was being prepared then is aborted. */
#ifndef WS_TRAINER_AGENT_MOUNTS_RELEASES_H
#define WS_TRAINER_AGENT_MOUNTS_RELEASES_H
#include "backends/trainer/agent/core/state.h"
#include "backends/trainer/agent/fleet/release.h"

/* The agent's, beside its list. Ids are guarded by its lock. */
struct ws_releases {
    pthread_t clock;
    bool has_clock;
    uint64_t last_id; /* of releases and of wanted versions */
};

/* The hooks of the feature. */
WS_MUST_USE int ws_releases_start(struct ws_agent *a, struct ws_error *err);
void ws_releases_stop(struct ws_agent *a);
void ws_releases_end(struct ws_agent *a);

/* Under lock. Begins a release of the parts, with what the request's body says of it. *begun: its id. */
WS_MUST_USE int ws_releases_begin(struct ws_agent *a, const struct ws_identity *who,
                                  const struct ws_release_item *parts, size_t n, const json_t *body,
                                  uint64_t *begun, struct ws_error *err);
/* Under lock. Records releases with a new phase; they are notified once the lock is free. */
bool ws_releases_advance(struct ws_agent *a);
/* Not under lock. Records what was decided, and commits it: no mount acts on what a restarted agent would not know.
 * true: the listing has changed. */
bool ws_releases_commit(struct ws_agent *a);
/* Under lock. The newest release that has the model; NULL: there is none. */
const struct ws_release *ws_releases_last(const struct ws_agent *a, const char *model);
/* Under lock. An id of a release or a wanted version: no other has it, of an agent before neither. */
uint64_t ws_releases_new_id(struct ws_agent *a);
/* Under lock. What is behind /v1/releases: nothing, /ID, /ID/abort. */
WS_MUST_USE int ws_releases_route(struct ws_agent *a, const struct ws_identity *who, const char *rest,
                                  bool post, json_t **reply, bool *listing_changed, struct ws_error *err);
/* Not under lock. As an operator sees the release that has just begun; it may have ended since. */
json_t *ws_releases_begun_json(struct ws_agent *a, uint64_t id);

#endif
