/* Fleet: the mounts that registered for one model of an agent, and how far each is with which version. State
 * without threads: the agent guards it with its lock. Times are CLOCK_MONOTONIC in ns and come from the caller.
 *
 * A mount that reports "loaded 42" may have begun to load 41 since, for a release that was committed meanwhile.
 * So its report counts only once the mount has finished the release that was committed last: well or not. A
 * mount names that release when it reports its presence. A mount of wsync 0.1.0 does not. Its report counts
 * while every release was of the version that it serves, and otherwise once it reports the released version as
 * loaded or failed. */
#ifndef WS_TRAINER_AGENT_FLEET_FLEET_H
#define WS_TRAINER_AGENT_FLEET_FLEET_H
#include "transports/access/identity.h"
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include "transports/base/version_id.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define WS_FLEET_REPORTS 4

struct ws_fleet_mount {
    struct ws_fleet_mount *next;
    char *mount_id;                    /* HOST:MOUNTPOINT */
    char owner[WS_IDENTITY_CHARS + 1]; /* the identity that reports under it (ws_identity_owner) */
    uint64_t lease_ns;                 /* silent after this */
    bool follows;                      /* it acts on releases */
    bool names_release;                /* it names the release that it has finished: */
    uint64_t finished_release;         /* 0: none yet */
    bool in_transition;                /* it does not, and has not reported the released version yet */
    uint64_t engines, serving;         /* registered there; of them, those that serve `loaded` */
    uint64_t quarantined_by;           /* the release that was committed without it; 0: none */
    struct ws_version_id loaded, failed;
    struct ws_version_id prepared[WS_FLEET_REPORTS], fetched[WS_FLEET_REPORTS]; /* the last ones, in turn */
    unsigned next_prepared, next_fetched;
    char error[WS_ERROR_TEXT]; /* of failed */
    json_t *machine;           /* what it says of its machine (machine.h), when it said so; NULL: not said */
    uint64_t machine_ns;
    json_t *came;            /* how `loaded` came to it (said.h), when it said so; NULL: not said */
    json_t *last_error;      /* what the mount's file of that name says; NULL: nothing */
    uint64_t failed_release; /* of failed: which asked for it; 0: the mount did not say */
};
struct ws_fleet {
    struct ws_fleet_mount *mounts;
    unsigned n;
    uint64_t release; /* committed last; 0: none */
    struct ws_version_id released;
    bool quarantines; /* a mount that does not serve it is to be kept from serving (release.h) */
    /* The release that will be committed next: it is recorded first (agent/saved), so that a restarted agent knows
     * of all that a mount may have acted on. decided: 0, or above `release`. */
    uint64_t decided;
    struct ws_version_id decided_to;
    bool decided_quarantines;
    uint64_t recording, recorded; /* releases up to this one are on their way to the state file / in it */
};

enum ws_fleet_progress {
    WS_FLEET_WAITING,
    WS_FLEET_PREPARED,
    WS_FLEET_LOADED,
    WS_FLEET_FAILED,
    WS_FLEET_SILENT
};
const char *ws_fleet_progress_name(enum ws_fleet_progress p);

/* A mount is known by its owner and its id: what one identity reports under an id is never another's. */

/* The mount of that owner and id, added where it is new; its lease is extended. -E2BIG, -ENOMEM. */
WS_MUST_USE int ws_fleet_find_or_add(struct ws_fleet *f, const char *owner, const char *mount_id,
                                     uint64_t now_ns, struct ws_fleet_mount **out, struct ws_error *err);
/* The mount polls, and will poll again within ms. An id that is not registered is ignored. */
void ws_fleet_extend_lease(struct ws_fleet *f, const char *owner, const char *mount_id, uint64_t now_ns,
                           unsigned ms);
void ws_fleet_remove(struct ws_fleet *f, const char *owner, const char *mount_id); /* it is unmounted */
/* An operator has it forgotten: a mount that is silent, of that owner (NULL: of whichever has one of that id).
 * -ENOENT; -EBUSY: it is not silent; -EINVAL: several owners have one. */
WS_MUST_USE int ws_fleet_forget(struct ws_fleet *f, const char *owner, const char *mount_id, uint64_t now_ns,
                                struct ws_error *err);
/* Removes mounts that have been silent for long. */
void ws_fleet_expire(struct ws_fleet *f, uint64_t now_ns);
/* Forgets what mounts reported of a version before, so that they report it again. name: only of mounts that it
 * names; NULL: of all. */
void ws_fleet_reset_reports(struct ws_fleet *f, const struct ws_version_id *to, const char *name);

/* What a restarted agent has to know: the release that is decided, else the one that was committed last. 0: none. */
uint64_t ws_fleet_newest_release(const struct ws_fleet *f, struct ws_version_id *to, bool *quarantines);
/* That release is committed: mounts that follow are in transition until they have finished it. */
void ws_fleet_commit(struct ws_fleet *f, uint64_t release, const struct ws_version_id *to, bool quarantines);

/* What the mount serves (NULL: nothing), and the release that it has finished (NULL: it does not name one). */
void ws_fleet_record_presence(const struct ws_fleet *f, struct ws_fleet_mount *m,
                              const struct ws_version_id *serves, const uint64_t *finished);
/* What it says of its machine; NULL: nothing. day_ns: the time of day. */
void ws_fleet_record_machine(struct ws_fleet_mount *m, const json_t *said, uint64_t now_ns, uint64_t day_ns);
/* How the version that it serves came there; NULL: it does not say. */
void ws_fleet_record_came(struct ws_fleet_mount *m, const json_t *said);
/* Its last_error; NULL: it has none. */
void ws_fleet_record_error(struct ws_fleet_mount *m, const json_t *said);
void ws_fleet_record_prepared(struct ws_fleet_mount *m, const struct ws_version_id *to);
void ws_fleet_record_fetched(
    struct ws_fleet_mount *m,
    const struct ws_version_id *to); /* for another mount: layouts are not compared */
void ws_fleet_record_loaded(const struct ws_fleet *f, struct ws_fleet_mount *m,
                            const struct ws_version_id *to);
/* The release that asked for it, or 0: the mount does not say (one before 0.2.0), and it counts for any. What an earlier
 * release asked for may fail after a new one of the same version has begun. */
void ws_fleet_record_failed(const struct ws_fleet *f, struct ws_fleet_mount *m,
                            const struct ws_version_id *to, uint64_t release, const char *why);
/* How far the mount is with exactly that version, as that release asks for it. */
enum ws_fleet_progress ws_fleet_mount_progress(const struct ws_fleet *f, const struct ws_fleet_mount *m,
                                               uint64_t release, const struct ws_version_id *to,
                                               uint64_t now_ns);

/* Is that version, or a later one of its lineage, served by the mounts that `which` selects? "all": those that
 * are not silent and follow or have engines, one at least; a number: so many of them; else a mount's name or
 * host. False with the missing mounts in text (NULL is fine). */
bool ws_fleet_serves(const struct ws_fleet *f, const struct ws_version_id *to, const char *which,
                     uint64_t now_ns, char *text, size_t cap);
json_t *ws_fleet_json(const struct ws_fleet *f, uint64_t now_ns); /* new reference */
void ws_fleet_clear(struct ws_fleet *f);

#endif
