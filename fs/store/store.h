/* Store: the versions that this mount knows and holds, and where they come from. Knows nothing of
 * FUSE and nothing of engines: fs/fuse shows it, fs/control drives it.
 *
 * Objects: a store has models, a model has versions. A version is immutable; what changes is how much
 * of it is here. Versions are counted (get/put); memory is given back only after the last name is
 * gone, the last reference is put and the kernel grants the lease (transports/memory/region.h).
 * All functions are thread safe. None of them calls back while it holds a lock. */
#ifndef WS_FS_STORE_STORE_H
#define WS_FS_STORE_STORE_H
#include "fs/store/cost.h"
#include "fs/store/desired.h"
#include "fs/store/histogram.h"
#include "fs/store/transport_prefs.h"
#include "transports/base/error.h"
#include "transports/format/manifest.h"
#include "transports/memory/region.h"
#include "transports/protocol/source.h"
#include <stdatomic.h>
#include <stdbool.h>

struct ws_store;
struct ws_model;
struct ws_version;
struct ws_puller;

/* DROPPING: it has no name any more (ws_version_is_named); whether its bytes are here is another matter
 * (ws_version_is_complete). */
enum ws_state { WS_KNOWN, WS_PULLING, WS_VERIFYING, WS_READY, WS_ACTIVE, WS_DROPPING, WS_FAILED };
const char *ws_state_name(enum ws_state s); /* "known" */

#define WS_HOW_CHARS     160 /* by what a version came */
#define WS_WHY_NOT_CHARS 960 /* why it came by nothing better */

struct ws_store_options {
    struct ws_source_options source; /* token and TLS for every source */
    uint64_t cache_bytes;            /* weights held; 0: 0.8 of what memory allows at start */
    unsigned keep;                   /* complete newest versions kept for rollback; 0: 2 */
    unsigned streams;                /* lanes of one pull; 0: 4 */
    unsigned threads;                /* hashing, verifying, pre-faulting; 0: cores */
    int nice;                        /* of all background threads */
    unsigned deadline_ms;            /* of one pull without progress; 0: WS_READ_DEADLINE_MS */
    uint64_t
        delta_cache_bytes; /* deltas that are kept, of each model; 0: the versions are always pulled whole */
    bool own_memory;       /* never import descriptors: copy (link mode) */
    bool verify_imported;  /* rehash what ipc hands over before it is ready */
    struct ws_strategies strategies; /* of models for which none are set */
    unsigned device;                 /* of this mount, in a broadcast */
    struct ws_speeds speeds;         /* by which ways are chosen; all 0: as measured */
};
/* puller: brings the versions (fs/pull/pull.h); borrowed for the store's life. */
WS_MUST_USE int ws_store_new(struct ws_store **out, const struct ws_puller *puller,
                             const struct ws_store_options *options, struct ws_error *err);
/* Adds a source for all its models, or for `model` only, and watches it (one thread a source). Bad
 * URL: -EINVAL. An unreachable source is not an error: it is retried and shown in status. Several
 * sources that serve one model are alternatives in the order of adding. below: as of ws_source_options. */
WS_MUST_USE int ws_store_add(struct ws_store *s, const char *url, const char *model, const char *below,
                             struct ws_error *err);
/* Forgets a model and its sources: its names vanish, readers go on. -ENOENT. */
WS_MUST_USE int ws_store_remove(struct ws_store *s, const char *model, struct ws_error *err);
/* Waits until every source has answered once or failed; false at the timeout. */
bool ws_store_wait_first(struct ws_store *s, unsigned timeout_ms);
/* In two steps for who holds versions: stop ends sources, pulls and waits (done was called for all of them
 * when it returns); then what is held is put; free does the rest. free alone does both. */
void ws_store_stop(struct ws_store *s);
void ws_store_free(struct ws_store *s); /* stops all threads; regions live on for their readers */

/* --- models --- */
/* Calls visit for each model in name order, with a reference that lives during the call. */
void ws_store_each(struct ws_store *s, void (*visit)(void *arg, struct ws_model *m), void *arg);
struct ws_model *ws_store_find(struct ws_store *s, const char *name); /* reference or NULL */
struct ws_model *ws_model_get(struct ws_model *m);
void ws_model_put(struct ws_model *m);
const char *ws_model_name(const struct ws_model *m);
uint64_t ws_model_id(const struct ws_model *m); /* unique in the mount's life, never reused; > 0 */
/* Links: the newest known version of the live lineage; what the engines serve; what they served
 * before. References or NULL. */
struct ws_version *ws_model_latest(struct ws_model *m);
struct ws_version *ws_model_current(struct ws_model *m);
struct ws_version *ws_model_previous(struct ws_model *m);
/* Of the newest version that a trainer's nodes have in parts: which parts no source lists, and what to do;
 * false: none is missing. */
bool ws_model_lacks(struct ws_model *m, char *out, size_t cap);
/* Has it to be made of parts before anything of it is known, its manifest too? */
bool ws_version_is_to_be_made(struct ws_version *v);
void ws_model_pulls(struct ws_model *m, struct ws_histogram *out); /* seconds of its whole pulls so far */
bool ws_model_is_pulling(struct ws_model *m); /* is any version of it being pulled whole? */
void ws_model_orders(struct ws_model *m, struct ws_orders *out);
/* Releases of agents that have ended (ws_orders_keep): this one counts where no agent knows another; none
 * counts any more. */
void ws_model_keep_released(struct ws_model *m, uint64_t by, const struct ws_mark *released);
void ws_model_forget_kept(struct ws_model *m);
/* Has every source said that it does not list the model, is nothing of it here, and was no source added for
 * it alone? forget: then its name vanishes until one lists it again. */
bool ws_model_is_gone(struct ws_model *m);
void ws_model_forget(struct ws_model *m);
/* Makes v current and the old current previous, both kept from eviction. Atomic for readers. */
void ws_model_set_current(struct ws_model *m, struct ws_version *v);
void ws_model_each(struct ws_model *m, void (*visit)(void *arg, struct ws_version *v), void *arg);

/* --- versions --- */
/* By directory name: "13" (live lineage), "13@RUN" (a superseded one that is still held), or the
 * words latest, current, previous. Reference, or NULL with err -ENOENT. */
struct ws_version *ws_version_find(struct ws_model *m, const char *name, struct ws_error *err);
/* The newest complete version below this one, of the same lineage where there is one; kept from eviction,
 * which the caller ends (ws_version_keep). Reference, or NULL. */
struct ws_version *ws_version_below(struct ws_version *v);
/* By number and lineage; run NULL: the live one. Reference, or NULL. */
struct ws_version *ws_version_at(struct ws_model *m, uint64_t number, const char *run);
struct ws_version *ws_version_get(struct ws_version *v);
void ws_version_put(struct ws_version *v);
struct ws_mark ws_version_mark(const struct ws_version *v);
uint64_t ws_version_id(const struct ws_version *v); /* unique in the mount's life, < 2^28, never reused */
struct ws_version *ws_version_by_id(struct ws_store *s, uint64_t id); /* reference or NULL */
struct ws_model *ws_version_model(const struct ws_version *v);        /* borrowed */
uint64_t ws_version_number(const struct ws_version *v);
const char *ws_version_run(const struct ws_version *v);
void ws_version_name(struct ws_version *v, char out[WS_MAX_NAME + 1]); /* its directory name now */
enum ws_state ws_version_state(struct ws_version *v);
/* Does its model list it still? Once false it stays so: DROPPING. */
bool ws_version_is_named(struct ws_version *v);
/* Is every byte here and verified? Once true it stays so, also without a name. Takes no lock. */
bool ws_version_is_complete(const struct ws_version *v);
/* The manifest; fetched at the first call (waits for the network, bounded: not from FUSE workers
 * unless ws_version_has_manifest). Borrowed, lives as long as the version. NULL with err. */
bool ws_version_has_manifest(struct ws_version *v);
const struct ws_manifest *ws_version_manifest(struct ws_version *v, struct ws_error *err);
/* Parsed header of file i; NULL for a sidecar or while its header blocks are not here (with err
 * -EAGAIN). Borrowed, lives as long as the version. */
const struct ws_safetensors *ws_version_header(struct ws_version *v, size_t file, struct ws_error *err);

struct ws_version_info {
    uint64_t number, total_bytes, have_bytes, moved_bytes; /* moved: over the network, retries too */
    char run[WS_RUN_CHARS + 1];
    char digest[33];
    enum ws_state state;
    char how[WS_HOW_CHARS];               /* "tcp full", "ipc", "tcp delta from 41: 30 MB of 3.4 GB", "" */
    int strategy;                         /* of the pull that ended; WS_NO_WAY: none carried weights */
    char why_not[WS_WHY_NOT_CHARS];       /* of those before it */
    double pull_seconds;                  /* of the finished or the running pull */
    uint64_t created_ns;                  /* when it was published, CLOCK_REALTIME; 0: not told */
    bool pinned, has_manifest, at_source; /* at_source: some source still serves it, or its parts */
    unsigned n_sources;                   /* that list it whole */
    uint64_t bad_blocks;                  /* blocks refetched because a hash differed */
    int error_code;                       /* positive; 0: none */
    char error[WS_ERROR_TEXT];            /* why it failed */
};
void ws_version_info(struct ws_version *v, struct ws_version_info *out);

/* Starts a pull if none runs and nothing is here (whole version; files and blocks in order). */
enum ws_priority { WS_PRIORITY_BACKGROUND, WS_PRIORITY_SWITCH, WS_PRIORITY_READER };
void ws_version_start(struct ws_version *v, enum ws_priority priority);
/* Starts and waits until it is READY: 0, or the pull's error, -ECANCELED; -EAGAIN: not within timeout_ms, and
 * the pull goes on (err says ETIMEDOUT). */
WS_MUST_USE int ws_version_pull(struct ws_version *v, enum ws_priority priority, int timeout_ms,
                                const atomic_bool *cancel, struct ws_error *err);
/* Asks for bytes without waiting. Blocks [first, first + n) of a file (n 0: only the manifest;
 * file WS_FILE_ALL: the whole version complete and verified; WS_FILE_HEADERS: every header). If they
 * are here now returns 1 and done is not called. Else starts what is needed (blocks that are waited
 * for come first), returns 0, and later calls done(w, result) exactly once from a store thread:
 * 0 here; -ESTALE, -EBADMSG, -EHOSTUNREACH, -ENOSPC ...; -ETIMEDOUT at the deadline. The struct is
 * the caller's and must live until done or until cancel returned true, and so must the caller's
 * reference to v. What fails at once (no such file, the last pull failed a moment ago and is not
 * tried again yet) is told through done as well, never by the return value. The timeout is the
 * wait's own, and a time without progress: while blocks of the version come it is not over. The pull goes on
 * after it. */
#define WS_FILE_ALL     ((size_t)-1)
#define WS_FILE_HEADERS ((size_t)-2)
struct ws_wait {
    void (*done)(struct ws_wait *w, int result); /* set by the caller */
    struct ws_version *version;                  /* the rest is the store's */
    size_t file, first, n;
    uint64_t deadline_ns, patience_ns; /* the deadline moves on so far behind what comes; 0: it does not */
    int result;
    bool queued;
    struct ws_wait *next, *prev;
};
WS_MUST_USE int ws_version_wait(struct ws_version *v, size_t file, size_t first, size_t n,
                                unsigned timeout_ms, struct ws_wait *w);
bool ws_wait_cancel(struct ws_wait *w); /* true: done will not be called */
/* The region of file i, once its bytes may be read (NULL for size 0). Borrowed. */
struct ws_region *ws_version_region(struct ws_version *v, size_t file);
/* Progress of one file in blocks that are here, for .wsync/progress. */
size_t ws_version_blocks_here(struct ws_version *v, size_t file);

/* Eviction and care. drop: removes the names, memory follows when the last reader is gone; current,
 * pinned: -EBUSY. pinned versions are never evicted. verify: rehashes all that is here against the
 * manifest: -EBADMSG names file and block; -ECANCELED: one of stop (NULL: none) was set. */
WS_MUST_USE int ws_version_drop(struct ws_version *v, struct ws_error *err);
WS_MUST_USE int ws_version_pin(struct ws_version *v, bool pin, struct ws_error *err);
WS_MUST_USE int ws_version_verify(struct ws_version *v, const atomic_bool *const stop[2],
                                  struct ws_error *err);
/* Tells every agent that lists the model, in the background and as well as it goes: POST .../verb of a
 * version, or of the model itself (NULL). body: new reference, stolen. */
void ws_model_tell(struct ws_model *m, const struct ws_mark *version, const char *verb, json_t *body);
/* Waits until what was told has been sent, a while at most. */
void ws_store_drain(struct ws_store *s, unsigned timeout_ms);
/* Asks the first agent that lists the model and answers; waits for it. path: of transports/protocol/api.h;
 * body NULL: GET. -ENOENT: no source of the model is an agent. */
WS_MUST_USE int ws_model_ask(struct ws_model *m, const char *path, const json_t *body, json_t **reply,
                             struct ws_error *err);

/* --- what happened --- */
/* Called from store threads after: a model appeared or went, a version became known, changed state,
 * lost its name (names of the kernel must be invalidated). Never under a lock. Set once, before add. */
enum ws_change {
    WS_MODEL_ADDED,
    WS_MODEL_REMOVED,
    WS_MODEL_LISTED, /* a source lists it that did not, or could not be asked, before */
    WS_MODEL_ORDERS, /* what agents ask of it has changed */
    WS_MODEL_OFFERS, /* sources were heard: what can be passed on of it may have changed */
    WS_VERSION_KNOWN,
    WS_VERSION_STATE,
    WS_VERSION_UNREAD, /* what a reader asked of it (its manifest, its headers) could not be had; its state is
                          as before */
    WS_VERSION_RENAMED,
    WS_VERSION_GONE
};
typedef void ws_store_listener(void *arg, enum ws_change change, struct ws_model *m, struct ws_version *v);
void ws_store_listen(struct ws_store *s, ws_store_listener *listener, void *arg); /* up to 4 */
/* True when FUSE holds lookups or open files of the version: its region memory is then not recycled
 * before fs says that they are gone. Set by fs/fuse/tree.c through these counters. */
void ws_version_use(struct ws_version *v, int delta);
/* Keeps a version from being evicted while the sum is over 0: for open files, and for a switch
 * between its pull and its end. Lookups alone (ws_version_use) do not: the version loses its names,
 * the kernel is told to forget them, and what nobody has open goes. (Added after the first draft.) */
void ws_version_keep(struct ws_version *v, int delta);
/* A switch to it begins and ends: until then it is kept, and not dropped either. -ESTALE: it lost its name
 * before. */
WS_MUST_USE int ws_version_hold(struct ws_version *v, struct ws_error *err);
void ws_version_let_go(struct ws_version *v);
/* Called when a version's memory is about to be given back, so that fs can close backing ids and
 * names (link mode). Returns when that is done. One hook. */
void ws_store_set_release(struct ws_store *s, void (*release)(void *arg, struct ws_version *v), void *arg);

/* --- figures for status and metrics --- */
struct ws_source_info {
    char url[WS_MAX_URL + 1], transport[16], error[WS_ERROR_TEXT];
    bool up;
    double seconds_since_contact;
};
size_t ws_store_sources(struct ws_store *s, struct ws_source_info *out, size_t max);
struct ws_store_stats {
    uint64_t cache_bytes, used_bytes, waiting_bytes; /* waiting: dropped, still read by somebody */
    uint64_t moved_bytes, bad_blocks, pulls_ok, pulls_failed, retries;
};
void ws_store_stats(struct ws_store *s, struct ws_store_stats *out);

#endif
