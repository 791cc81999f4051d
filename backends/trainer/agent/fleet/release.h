/* Release: moves one or several models of a fleet to new versions in two phases (Gray's two-phase commit, with
 * the agent as coordinator). Every mount that follows prepares: it pulls, verifies and compares layouts. When
 * all have prepared, the release is committed, and each mount switches its engines. If a mount fails to
 * prepare, or the deadline passes, the release is aborted for all and the error names the mount.
 *
 * Mounts read releases as state in the listing that they poll. A mount that missed something reads where the
 * release stands, and a mount that joins late finds what was committed last. State without threads: the agent
 * guards it with its lock.
 *
 *     preparing --> decided     all mounts that follow and are not silent have prepared
 *     decided   --> committed   the agent has recorded it: from now on mounts act on it
 *     committed --> finished    each of them has loaded the version, or failed
 *     preparing --> aborted     a mount failed, the deadline passed, a newer release or an operator ended it
 *     decided   --> aborted     it could not be recorded
 *
 * Mounts and operators see a decided release as one that is preparing.
 *
 * A release may have terms. min_engines: so many engines are at the mounts that have prepared, or it is not committed.
 * quorum: it waits until every mount has answered or the deadline passes, and is committed if that share of the fleet
 * has prepared: of the engines, or of the mounts where none has an engine; silent ones are part of the fleet. The
 * rest is in quarantine: named, kept from serving what is older, and brought along.
 */
#ifndef WS_TRAINER_AGENT_FLEET_RELEASE_H
#define WS_TRAINER_AGENT_FLEET_RELEASE_H
#include "backends/trainer/agent/fleet/fleet.h"

enum ws_release_phase { WS_RELEASE_PREPARING, WS_RELEASE_DECIDED, WS_RELEASE_COMMITTED, WS_RELEASE_ABORTED };

struct ws_release_terms {
    uint64_t min_engines;     /* 0: any number */
    unsigned quorum_permille; /* 1 to 1000; 0: all mounts that are not silent, or none */
};
struct ws_release_item {
    const char *model; /* borrowed */
    struct ws_fleet *fleet;
    struct ws_version_id target;
};
struct ws_release {
    struct ws_release *next;
    uint64_t id; /* unique, also over restarts of the agent */
    enum ws_release_phase phase;
    uint64_t deadline_ns; /* of preparing */
    struct ws_release_terms terms;
    char why[WS_ERROR_TEXT];                              /* aborted */
    char who[WS_IDENTITY_CHARS + 1], from[WS_FROM_CHARS]; /* that began it; the caller's */
    size_t n_items;
    struct ws_release_item items[];
};

/* Forgets what the fleets reported of these versions before; ws_release_advance goes on. NULL: no memory. */
struct ws_release *ws_release_new(uint64_t id, const struct ws_release_item *parts, size_t n,
                                  const struct ws_release_terms *terms, uint64_t deadline_ns);
bool ws_release_has_model(const struct ws_release *r, const char *model);
/* Was a newer release committed for one of its models? */
bool ws_release_is_superseded(const struct ws_release *r);
/* Goes on as far as the fleets have; true: the phase has changed. */
bool ws_release_advance(struct ws_release *r, uint64_t now_ns);
/* Commits a decided release that is recorded; true: it did. Of several the oldest first. */
bool ws_release_commit(struct ws_release *r);
void ws_release_abort(struct ws_release *r, const char *why);  /* only while it is preparing */
void ws_release_revoke(struct ws_release *r, const char *why); /* only while it is decided */
/* Will nothing more happen? It is aborted, or committed and no mount is in transition. */
bool ws_release_is_finished(const struct ws_release *r, uint64_t now_ns);
/* What mounts read in a model's entry of the listing; the release as an operator sees it. New references. */
json_t *ws_release_desired_json(const struct ws_release *r, const char *model);
json_t *ws_release_json(const struct ws_release *r, uint64_t now_ns);

#endif
