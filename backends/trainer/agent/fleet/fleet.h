/* Fleet: the mounts that registered for one model of an agent, and how far each is with which version. State
 * without threads: the agent guards it with its lock. Times are CLOCK_MONOTONIC in ns and come from the
 * caller.
 *
 * A mount that says "loaded 42" may have begun to load 41 since, for a release that was committed meanwhile.
 * So its word counts once it has come to an end with the release that was committed last: a mount names that
 * release where it says how it stands. Mounts of wsync 0.1.0 do not: theirs counts while every release was of
 * the version that they serve, and otherwise once they report the released version as loaded or failed. */
#ifndef WS_TRAINER_AGENT_FLEET_FLEET_H
#define WS_TRAINER_AGENT_FLEET_FLEET_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include "transports/base/version_id.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define WS_PREPARED_MARKS 4

struct ws_fleet_mount {
    struct ws_fleet_mount *next;
    char *who;         /* HOST:MOUNTPOINT */
    uint64_t lease_ns; /* silent after this */
    bool follows;      /* acts on releases */
    bool answers;      /* names the release that it has come to an end with, well or not: */
    uint64_t answered; /* 0: none yet */
    bool moves;        /* one that does not: it has not reported the released version yet */
    uint64_t engines;
    struct ws_mark loaded, failed;
    struct ws_mark prepared[WS_PREPARED_MARKS], fetched[WS_PREPARED_MARKS]; /* the last ones, in turn */
    unsigned next_prepared, next_fetched;
    char error[WS_ERROR_TEXT]; /* of failed */
};
struct ws_fleet {
    struct ws_fleet_mount *mounts;
    unsigned n;
    uint64_t release; /* the one that was committed last; 0: none */
    struct ws_mark released;
};

enum ws_progress { WS_FLEET_WAITING, WS_FLEET_PREPARED, WS_FLEET_LOADED, WS_FLEET_FAILED, WS_FLEET_SILENT };
const char *ws_progress_name(enum ws_progress p);

/* The mount of that name, made at need; its lease begins anew. -E2BIG, -ENOMEM. */
WS_MUST_USE int ws_fleet_meet(struct ws_fleet *f, const char *who, uint64_t now_ns,
                              struct ws_fleet_mount **out, struct ws_error *err);
/* It polls, and will be heard of again within ms. Unknown ones are passers-by. */
void ws_fleet_seen(struct ws_fleet *f, const char *who, uint64_t now_ns, unsigned ms);
void ws_fleet_leave(struct ws_fleet *f, const char *who); /* it is unmounted */
/* Forgets those that have been silent for long. */
void ws_fleet_forget(struct ws_fleet *f, uint64_t now_ns);
/* What mounts said of a version before counts no more: they are asked anew. name: only those that it names;
 * NULL: all. */
void ws_fleet_ask_anew(struct ws_fleet *f, const struct ws_mark *to, const char *name);

/* That release is committed: followers are under way until they have come to an end with it. */
void ws_fleet_commit(struct ws_fleet *f, uint64_t release, const struct ws_mark *to);

/* Where the mount stands. serves NULL: it serves nothing; answered NULL: it does not say. */
void ws_fleet_note_stand(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *serves,
                         const uint64_t *answered);
void ws_fleet_note_prepared(struct ws_fleet_mount *m, const struct ws_mark *to);
void ws_fleet_note_fetched(struct ws_fleet_mount *m,
                           const struct ws_mark *to); /* for another mount: not compared */
void ws_fleet_note_loaded(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *to);
void ws_fleet_note_failed(const struct ws_fleet *f, struct ws_fleet_mount *m, const struct ws_mark *to,
                          const char *why);
/* How far it is with exactly that version, as that release asks for it. */
enum ws_progress ws_fleet_progress(const struct ws_fleet *f, const struct ws_fleet_mount *m, uint64_t release,
                                   const struct ws_mark *to, uint64_t now_ns);

/* Is that version, or a later one of its run, served by `who`: "all" that are there and follow or have
 * engines (one at least), a number of them, or one by its name or host? false with who is missing in text
 * (NULL is fine). */
bool ws_fleet_serves(const struct ws_fleet *f, const struct ws_mark *to, const char *who, uint64_t now_ns,
                     char *text, size_t cap);
json_t *ws_fleet_json(const struct ws_fleet *f, uint64_t now_ns); /* new reference */
void ws_fleet_clear(struct ws_fleet *f);

#endif
