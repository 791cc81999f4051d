/* Route: which source a pull uses now, what it does when one fails, and when it gives up. Shared by
 * the threads of one pull; holds the one lock of a pull (taken after store->lock). */
#ifndef WS_FS_PULL_SOURCE_SELECT_H
#define WS_FS_PULL_SOURCE_SELECT_H
#include "fs/store/poller.h"
#include "fs/store/transport_prefs.h"

#define WS_REASON_CHARS 160 /* why one strategy was not used */

struct ws_route {
    struct ws_version *version; /* the pull's */
    atomic_bool stop;
    _Atomic(uint64_t) progress_ns;   /* when the last byte of use came: a block that is what it should be */
    _Atomic(uint64_t) came_ns;       /* when any byte did */
    struct ws_strategies strategies; /* never changes */
    atomic_int used;                 /* the strategy by which weights came last, or WS_NO_WAY */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of everything in the pull; monotonic clock */
    /* guarded by lock */
    uint64_t refused;     /* sources that will not serve this version, by index */
    unsigned turn;        /* which of the alternatives */
    struct ws_leg *legs;  /* that use a source now */
    bool gone;            /* one of them said that it had the version and has it no more */
    struct ws_error last; /* why the last attempt failed */
    char why_not[WS_N_WAYS][WS_REASON_CHARS]; /* why one was of no use, where something was tried */
    char part_why_not[WS_WHY_NOT_CHARS];      /* the pull's thread's: what its first part said */
};

/* One use of a source. It stays where it is in memory while it has one. */
struct ws_leg {
    struct ws_watch *watch; /* counted; NULL: none */
    atomic_bool leave;      /* this use is to end: cancels what is asked of the source */
    struct ws_route *route; /* that it is linked in */
    struct ws_leg *next, *prev;
    unsigned turn;
    uint64_t since_ns, share_ns; /* when it was taken; how long it may say nothing, 0: there is no other */
    bool silent;                 /* it said nothing for so long */
    unsigned attempts;           /* failures in a row, of this leg's thread */
    uint64_t skip;               /* the caller's: sources that it does not want, by index */
    bool whole;   /* the caller's: bytes of files are wanted, which who has only a delta has not */
    bool control; /* the caller's: it moves no weights, so every strategy will do */
    bool spare;   /* the caller's: where it is silent the pull goes on without it */
    const struct ws_strategies *only; /* the caller's: sources by these; NULL: by the route's */
};

void ws_route_init(struct ws_route *r, struct ws_version *v); /* with store->lock */
void ws_route_release(struct ws_route *r);
/* Chooses a source: in the order of the strategies, then of adding, those that answer first. When none is
 * left: -ESTALE, -ECANCELED or what the last one said; -EHOSTUNREACH: there are some, but by no strategy of
 * the list; -EBADMSG: they disagree on what the version is. */
WS_MUST_USE int ws_route_take(struct ws_route *r, struct ws_leg *leg, struct ws_error *err);
void ws_route_end(struct ws_leg *leg); /* done with the source */
/* What the source said with rc (err: its sentence). Puts the source. 0: take one and try again, after
 * the wait that is due; else final, with err. */
WS_MUST_USE int ws_route_failed(struct ws_route *r, struct ws_leg *leg, int rc, struct ws_error *err);
/* What the source sent was not the manifest's, or came much slower than from another. Puts it; the next
 * attempt is with another, where there is one. */
void ws_route_doubt(struct ws_route *r, struct ws_leg *leg);
/* All uses of the source with that index are to end, and the next one is of another source where there is
 * one; ws_route_failed then says to go on, at once. With store->lock. */
void ws_route_leave(struct ws_route *r, unsigned index);
/* A source that has said nothing since it was taken and since the last byte (last_ns) is left after its share
 * of the deadline, so that the next one has a share too. When to look again, or WS_NEVER. With store->lock.
 */
uint64_t ws_route_hurry(struct ws_route *r, uint64_t last_ns, uint64_t now_ns);
/* Which source is asked now, else what the last one said. With store->lock. */
void ws_route_describe(struct ws_route *r, char out[WS_ERROR_TEXT / 2]);
void ws_route_progress(struct ws_route *r, struct ws_leg *leg);
/* Why a strategy was of no use. */
void ws_route_note(struct ws_route *r, int strategy, const char *why);
/* Wakes all that wait; callable with store->lock. */
void ws_route_stop(struct ws_route *r);

#endif
