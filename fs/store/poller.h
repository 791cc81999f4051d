/* Watch: one source and the thread that asks it what it offers, by long poll. Kept open by whoever
 * moves bytes from it or holds its memory, after it was removed too. */
#ifndef WS_FS_STORE_POLLER_H
#define WS_FS_STORE_POLLER_H
#include "fs/store/events.h"
#include "fs/store/state.h"

struct ws_watch {
    struct ws_store *store;
    struct ws_source *source;
    char *model; /* all models when NULL */
    unsigned index;
    int strategy; /* by which it serves */
    uint64_t order;
    atomic_uint refs;
    atomic_bool stop;
    pthread_t thread;
    /* guarded by store->lock */
    bool up, answered;
    uint64_t agent;      /* which one it was, by its listing */
    bool circles;        /* it lists what it has from this mount */
    bool told;           /* the mount has said where it stands since the source is up */
    bool is_static;      /* files that nobody listens behind: no reports */
    uint64_t contact_ns; /* 0: never */
    char error[WS_ERROR_TEXT];
};

/* Opens the source, takes a place among store->watches and starts the thread. below: as the source's option.
 */
WS_MUST_USE int ws_watch_start(struct ws_store *s, const char *url, const char *model, const char *below,
                               struct ws_error *err);
struct ws_watch *ws_watch_get(struct ws_watch *w);
void ws_watch_put(struct ws_watch *w);
/* With store->lock: tells it to stop, takes it out of store->watches and its word out of all models;
 * the store's reference is the caller's now, for ws_watch_join. */
void ws_watch_unlist(struct ws_watch *w, struct ws_changes *c);
/* Without any lock: waits for the thread (a second at most), puts the reference. */
void ws_watch_join(struct ws_watch *w);

#endif
