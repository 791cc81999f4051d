/* Release: moves one or several models of a fleet to new versions in two phases (Gray's two-phase commit, with
 * the agent as coordinator). Every mount that follows prepares: it pulls, verifies and compares layouts. When
 * all have prepared, the release is committed, and each mount switches its engines. If a mount fails to
 * prepare, or the deadline passes, the release is aborted for all and the error names the mount.
 *
 * Mounts read releases as state in the listing that they poll. A mount that missed something reads where the
 * release stands, and a mount that joins late finds what was committed last. State without threads: the agent
 * guards it with its lock.
 *
 *     preparing --> committed   all mounts that follow and are not silent have prepared
 *     committed --> finished    each of them has loaded the version, or failed
 *     preparing --> aborted     a mount failed, the deadline passed, a newer release or an operator ended it
 */
#ifndef WS_TRAINER_AGENT_FLEET_RELEASE_H
#define WS_TRAINER_AGENT_FLEET_RELEASE_H
#include "backends/trainer/agent/fleet/fleet.h"

enum ws_release_phase { WS_RELEASE_PREPARING, WS_RELEASE_COMMITTED, WS_RELEASE_ABORTED };

struct ws_release_item {
    const char *model; /* borrowed */
    struct ws_fleet *fleet;
    struct ws_version_id target;
};
struct ws_release {
    struct ws_release *next;
    uint64_t id; /* unique, also over restarts of the agent */
    enum ws_release_phase phase;
    uint64_t deadline_ns;                                 /* of preparing */
    char why[WS_ERROR_TEXT];                              /* aborted */
    char who[WS_IDENTITY_CHARS + 1], from[WS_FROM_CHARS]; /* that began it; the caller's */
    size_t n_items;
    struct ws_release_item items[];
};

/* Forgets what the fleets reported of these versions before. NULL: no memory. */
struct ws_release *ws_release_new(uint64_t id, const struct ws_release_item *parts, size_t n, uint64_t now_ns,
                                  uint64_t deadline_ns);
bool ws_release_has_model(const struct ws_release *r, const char *model);
/* Was a newer release committed for one of its models? */
bool ws_release_is_superseded(const struct ws_release *r);
/* Goes on as far as the fleets have; true: the phase has changed. */
bool ws_release_advance(struct ws_release *r, uint64_t now_ns);
void ws_release_abort(struct ws_release *r, const char *why); /* only while it is preparing */
/* Will nothing more happen? It is aborted, or committed and no mount is in transition. */
bool ws_release_is_finished(const struct ws_release *r, uint64_t now_ns);
/* What mounts read in a model's entry of the listing; the release as an operator sees it. New references. */
json_t *ws_release_desired_json(const struct ws_release *r, const char *model);
json_t *ws_release_json(const struct ws_release *r, uint64_t now_ns);

#endif
