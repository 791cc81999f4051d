/* Poller: one source, and the thread that asks it by long poll what it offers. Counted: a pull that uses the
 * source, and a version in its memory, keep it open, also after it was removed. */
#ifndef WS_FS_STORE_POLLER_H
#define WS_FS_STORE_POLLER_H
#include "fs/store/events.h"
#include "fs/store/inquiry.h"
#include "fs/store/state.h"

struct ws_poller {
    struct ws_store *store;
    struct ws_source *source;
    struct ws_source *ucx;         /* the same by UCX, for whole versions; NULL: not by UCX */
    _Atomic(uint64_t) ucx_from_ns; /* not before then: it has failed */
    char *model;                   /* all models when NULL */
    unsigned index;
    int strategy;   /* by which it serves: enum ws_way_id */
    uint64_t order; /* of adding */
    atomic_uint refs;
    atomic_bool stop;
    pthread_t thread;
    _Atomic uint64_t hung_ns; /* when it last left a request for a signature without an answer; 0: never */
    /* guarded by store->lock */
    bool up, answered;
    bool is_said_up; /* what the log said last */
    struct ws_inquirer inquirer;
    uint64_t applied_seq, applied_ns; /* of the listing that holds, and when that was */
    uint64_t agent;            /* its id in the last listing; a new one is an agent that was restarted */
    bool circles;              /* it lists versions that it has from this mount */
    bool reported;             /* the mount has reported its state since the source is up */
    struct ws_report *reports; /* reporter.c: that wait */
    unsigned n_reports;
    bool reporting;      /* a thread sends them */
    bool is_static;      /* files behind a web server: no agent that takes reports */
    bool is_hint;        /* set once: no operator named it, an agent did (parents.h) */
    bool is_suspect;     /* a parent whose connection broke: parent_watcher.h looks whether it is alive */
    json_t *listing;     /* of a hint: its last one's models, for when another source lists more; or NULL */
    uint64_t contact_ns; /* 0: never */
    char error[WS_ERROR_TEXT];
};

/* Opens the source, adds it to store->pollers and starts the thread. below: as in ws_source_options. token, token_file: in
 * the place of the store's; token NULL: those. */
WS_MUST_USE int ws_poller_start(struct ws_store *s, const char *url, const char *model, const char *below,
                                const char *token, const char *token_file, struct ws_error *err);
/* The same for a mount that an agent named as a parent (parents.h), for one model. *out: its index. */
WS_MUST_USE int ws_poller_start_hint(struct ws_store *s, const char *url, const char *model,
                                     const char *token, const char *token_file, unsigned *out,
                                     struct ws_error *err);
/* With store->lock: has each source answered once, or failed to? */
bool ws_pollers_have_answered(const struct ws_store *s);
struct ws_poller *ws_poller_get(struct ws_poller *p);
void ws_poller_put(struct ws_poller *p);
/* Any thread: what became of a request for a signature, rc; and, did the source leave one without an answer in the last
 * minute? Then others are asked first. */
void ws_poller_note_signature(struct ws_poller *p, int rc);
bool ws_poller_hung_lately(const struct ws_poller *p);
/* With store->lock: tells the thread to stop, and takes the poller out of store->pollers and what it said out
 * of all models. The store's reference is the caller's now, for ws_poller_join. */
void ws_poller_unlist(struct ws_poller *p, struct ws_store_events *ev);
/* Without any lock: waits for the thread (a second at most), puts the reference. */
void ws_poller_join(struct ws_poller *p);

#endif
