/* Fleet: the mounts that registered for one model of an agent, and how far each is with which version. State
 * without threads: the agent guards it with its lock. Times are CLOCK_MONOTONIC in ns and come from the
 * caller. */
#ifndef WS_TRAINER_FLEET_H
#define WS_TRAINER_FLEET_H
#include "transports/error.h"
#include "transports/limits.h"
#include "transports/mark.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define WS_PREPARED_MARKS 4

struct ws_fleet_mount {
    struct ws_fleet_mount *next;
    char *who;         /* HOST:MOUNTPOINT */
    uint64_t lease_ns; /* silent after this */
    bool follows;      /* acts on releases */
    uint64_t engines;
    struct ws_mark loaded, failed;
    struct ws_mark prepared[WS_PREPARED_MARKS], fetched[WS_PREPARED_MARKS]; /* the last ones, in turn */
    unsigned next_prepared, next_fetched;
    char error[WS_ERROR_TEXT]; /* of failed */
};
struct ws_fleet {
    struct ws_fleet_mount *mounts;
    unsigned n;
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

void ws_fleet_note_prepared(struct ws_fleet_mount *m, const struct ws_mark *to);
void ws_fleet_note_fetched(struct ws_fleet_mount *m,
                           const struct ws_mark *to); /* for another mount: not compared */
/* NULL: it serves nothing. */
void ws_fleet_note_loaded(struct ws_fleet_mount *m, const struct ws_mark *to);
void ws_fleet_note_failed(struct ws_fleet_mount *m, const struct ws_mark *to, const char *why);
/* How far it is with exactly that version. */
enum ws_progress ws_fleet_progress(const struct ws_fleet_mount *m, const struct ws_mark *to, uint64_t now_ns);

/* Is that version, or a later one of its run, served by `who`: "all" that are there and follow or have
 * engines (one at least), a number of them, or one by its name or host? false with who is missing in text
 * (NULL is fine). */
bool ws_fleet_serves(const struct ws_fleet *f, const struct ws_mark *to, const char *who, uint64_t now_ns,
                     char *text, size_t cap);
json_t *ws_fleet_json(const struct ws_fleet *f, uint64_t now_ns); /* new reference */
void ws_fleet_clear(struct ws_fleet *f);

#endif
