/* Release: one or several models of a fleet to new versions in two phases (Gray's two-phase commit, with the
 * agent as coordinator): every mount that follows prepares (pulls, verifies, compares layouts), and only when
 * all that are there have done so the commit is given, on which each switches its engines; one that cannot
 * prepare, or a deadline, aborts it for all. Mounts are told by the listing that they poll, as state: one
 * that missed something reads where it stands, one that joins late finds what was committed last. State
 * without threads: the agent guards it with its lock.
 *
 *     preparing -- all that follow and are not silent have prepared --> committed -- all loaded or failed -->
 * settled
 *         '------- one failed, the deadline, a newer one, a person ---> aborted
 */
#ifndef WS_TRAINER_AGENT_FLEET_RELEASE_H
#define WS_TRAINER_AGENT_FLEET_RELEASE_H
#include "backends/trainer/agent/fleet/fleet.h"

enum ws_release_phase { WS_RELEASE_PREPARING, WS_RELEASE_COMMITTED, WS_RELEASE_ABORTED };

struct ws_release_part {
    const char *model; /* borrowed */
    struct ws_fleet *fleet;
    struct ws_mark to;
};
struct ws_release {
    struct ws_release *next;
    uint64_t id; /* no other release has it, of an agent before neither */
    enum ws_release_phase phase;
    uint64_t deadline_ns;    /* of preparing */
    char why[WS_ERROR_TEXT]; /* aborted */
    size_t n_parts;
    struct ws_release_part parts[];
};

/* Asks the fleets anew. NULL: no memory. */
struct ws_release *ws_release_new(uint64_t id, const struct ws_release_part *parts, size_t n, uint64_t now_ns,
                                  uint64_t deadline_ns);
bool ws_release_names(const struct ws_release *r, const char *model);
/* A newer one was committed for one of its models. */
bool ws_release_is_passed(const struct ws_release *r);
/* Looks at the fleets; whether the phase has changed. */
bool ws_release_advance(struct ws_release *r, uint64_t now_ns);
void ws_release_abort(struct ws_release *r, const char *why); /* only while it is preparing */
/* Nothing more will happen: aborted, or committed and no mount that is there is on its way. */
bool ws_release_is_settled(const struct ws_release *r, uint64_t now_ns);
/* For a model's entry of the listing; for who asks after it. New references. */
json_t *ws_release_order(const struct ws_release *r, const char *model);
json_t *ws_release_json(const struct ws_release *r, uint64_t now_ns);

#endif
