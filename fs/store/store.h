/* Store: the versions that this mount knows and holds, and the sources they come from. It knows nothing of
 * FUSE or of engines: fs/fuse shows it, fs/control drives it.
 *
 * A store has models, a model has versions. A version is immutable; what changes is how much of it is here,
 * in this mount's memory. Versions are counted (get/put). The memory of one is given back after its name is
 * gone, its last reference is put and the kernel grants the lease (transports/memory/region.h).
 *
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
#include "transports/sign/trust.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

struct ws_store;
struct ws_model;
struct ws_version;
struct ws_puller;

/* DROPPING: the version has lost its name (ws_version_is_named). Its bytes may still be here
 * (ws_version_is_complete). */
enum ws_version_state { WS_KNOWN, WS_PULLING, WS_VERIFYING, WS_READY, WS_ACTIVE, WS_DROPPING, WS_FAILED };
const char *ws_version_state_name(enum ws_version_state s); /* "known" */

#define WS_HOW_CHARS     160 /* how a version came */
#define WS_WHY_NOT_CHARS 960 /* why it came by no better strategy */

/* How many versions of a model memory holds: as many as are kept, where a new one comes beside them; one, which is
 * patched from version to version (one_copy.h); or one where two do not fit into the cache. */
/* Is a version fetched while the trainer writes it? Auto: unless that is this machine, whose processors it would take. */
enum ws_provisional { WS_PROVISIONAL_AUTO, WS_PROVISIONAL_ON, WS_PROVISIONAL_OFF };
enum ws_copies { WS_COPIES_TWO, WS_COPIES_ONE, WS_COPIES_AUTO };
const char *ws_copies_name(enum ws_copies copies); /* "2", "1", "auto" */

/* Room for the newest three deltas at 5 % changed, each of three quarters of the bytes that changed: an eighth of the
 * model, and at least WS_DELTA_CACHE_LEAST. */
#define WS_DELTA_CACHE_GROWS UINT64_MAX
#define WS_DELTA_CACHE_LEAST (1UL << 30)

/* How models and versions get the numbers that are theirs for the mount's life, where that is longer than this process's (fuse/life.h). All
 * NULL: from 1. Called with the store's lock. */
struct ws_store_ids {
    uint64_t *last; /* the next one comes after it, and it is set to that; borrowed */
    uint64_t (*of_model)(void *arg, const char *name, uint64_t fresh); /* one that it has had, or `fresh` */
    void (*of_version)(void *arg, uint64_t id, uint64_t model_id, const struct ws_version_id *version);
    void *arg;
};
struct ws_store_options {
    struct ws_source_options source; /* token and TLS for every source */
    uint64_t cache_bytes;            /* for weights; 0: ws_cache_budget_default of the memory at start */
    unsigned keep;                   /* newest complete versions kept for a rollback; 0: 2 */
    enum ws_copies copies;
    unsigned streams;             /* lanes of one pull; 0: 4 */
    unsigned threads;             /* for hashing, verifying and faulting memory in; 0: one a core */
    int nice;                     /* of all background threads */
    unsigned deadline_ms;         /* for a pull without progress; 0: WS_READ_DEADLINE_MS */
    uint64_t delta_cache_bytes;   /* for the deltas of each model; 0: versions are always pulled whole; or
                                        WS_DELTA_CACHE_GROWS */
    const struct ws_trust *trust; /* versions must be signed by one of these keys; NULL: need not; copied */
    bool serves;                  /* other mounts can pull from this one */
    bool ucx;                     /* bytes of files come by UCX from http sources that offer it */
    enum ws_provisional provisional;
    bool own_memory;                           /* copy, never map the source's memory (link mode) */
    bool verify_imported;                      /* hash mapped memory before the version is READY */
    struct ws_transport_prefs transport_prefs; /* of models that have none of their own */
    unsigned device;                           /* of this mount, in a broadcast */
    struct ws_speeds speeds;                   /* for the cost model; all 0: as measured */
    struct ws_store_ids ids;
    const struct ws_store_keeper *keeper; /* keeper.h; borrowed; NULL: there is none */
};
/* puller: brings the versions (fs/pull/pull.h); borrowed for the store's life. */
WS_MUST_USE int ws_store_new(struct ws_store **out, const struct ws_puller *puller,
                             const struct ws_store_options *options, struct ws_error *err);
/* Adds a source for all its models, or for `model` only, and polls it on a thread of its own. Several sources
 * of one model are alternatives in the order of adding. A source that cannot be reached is no error: it is
 * retried and shown in status. below: as in ws_source_options. -EINVAL: bad URL or name. */
WS_MUST_USE int ws_store_add(struct ws_store *s, const char *url, const char *model, const char *below,
                             struct ws_error *err);
/* The same with a token of its own, and the file where it was read (protocol/source.h), in the place of the options';
 * token NULL: those'. */
WS_MUST_USE int ws_store_add_with(struct ws_store *s, const char *url, const char *model, const char *below,
                                  const char *token, const char *token_file, struct ws_error *err);
/* Has agents say which mounts are asked first (parents.h). Copied. Before the first source is added. */
struct ws_parents_options {
    const char *rack;       /* NULL: by address and round trip */
    const char *token;      /* for parents; NULL: none is sent */
    const char *token_file; /* where it was read; NULL: it never changes */
    unsigned port;          /* on which this mount serves others; 0: it does not, or says so later */
    bool tls;               /* it serves https:// */
};
WS_MUST_USE int ws_store_ask_parents(struct ws_store *s, const struct ws_parents_options *options,
                                     struct ws_error *err);
void ws_store_serves_at(struct ws_store *s, unsigned port, bool tls); /* before the first source, too */
/* Does it? Those that agents named last, by URL, and those of a daemon before, which holds until an agent answers. */
bool ws_store_asks_parents(const struct ws_store *s);
void ws_store_each_parent(struct ws_store *s, const char *model, void (*visit)(void *arg, const char *url),
                          void *arg);
WS_MUST_USE int ws_store_remember_parent(struct ws_store *s, const char *model, const char *url);
/* Forgets a model and the sources added for it: its names vanish, open files stay readable. -ENOENT. */
WS_MUST_USE int ws_store_remove(struct ws_store *s, const char *model, struct ws_error *err);
/* Asks a source that was added for a model no more; versions that are held stay. Waits for its thread. Nothing where
 * there is no such source. */
void ws_store_remove_source(struct ws_store *s, const char *model, const char *url);
/* Waits until every source has answered once or failed; false at the timeout. */
bool ws_store_wait_first(struct ws_store *s, unsigned timeout_ms);
/* The end, in two steps for a caller that holds versions. stop ends sources and pulls and completes all
 * waiters; the caller then puts its versions; free does the rest. free alone does both. */
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
/* The names latest, current, previous: the newest known version of the live lineage, the version that the
 * engines serve, and the one they served before. References or NULL. */
struct ws_version *ws_model_latest(struct ws_model *m);
struct ws_version *ws_model_current(struct ws_model *m);
struct ws_version *ws_model_previous(struct ws_model *m);
/* Which parts of the newest version no source lists, where the nodes of a trainer have a part each, and what
 * the operator can do. False: none is missing. */
bool ws_model_missing_parts(struct ws_model *m, char *out, size_t cap);
/* Does anything of it, its manifest too, exist only after it is assembled from parts, or made of another model's version
 * (derived.h), by this mount or by the one that lists it? */
bool ws_version_is_made_first(struct ws_version *v);
void ws_model_pulls(struct ws_model *m, struct ws_histogram *out); /* seconds of its complete pulls */
/* How its last versions came (arrivals.h). */
#define WS_ARRIVALS 64 /* entries; the oldest gives way */
struct ws_arrival {
    struct ws_version_id id;
    unsigned pulls;                                 /* that ended so: all but the last one failed */
    uint64_t ended_ns;                              /* the last one, CLOCK_REALTIME */
    uint64_t bytes, moved_bytes;                    /* of the version; over the network for it */
    double seconds, first_seconds, stalled_seconds; /* of the last pull, as in ws_version_info */
    unsigned stalls;
    double
        loaded_seconds; /* from when the mount heard of it to when the engines had it; below 0: not so yet */
    int strategy;       /* WS_NO_WAY: none carried weights */
    char how[WS_HOW_CHARS]; /* empty: it failed */
    char why_not[WS_WHY_NOT_CHARS];
    char error[WS_ERROR_TEXT]; /* empty: it came */
};
/* The last one of that version; false: there is none any more. */
WS_MUST_USE bool ws_model_arrival(struct ws_model *m, const struct ws_version_id *id, struct ws_arrival *out);
/* Oldest first, malloc'ed; their number, 0 where there is no memory, too. */
WS_MUST_USE size_t ws_model_arrivals(struct ws_model *m, struct ws_arrival **out);
bool ws_model_is_pulling(struct ws_model *m); /* does a pull bring all of any version? */
void ws_model_desired(struct ws_model *m, struct ws_desired *out);
/* Releases of agents that have ended (ws_desired_inherit). inherit: this release holds until an agent knows
 * another one. forget: no inherited release holds any more. */
void ws_model_inherit_release(struct ws_model *m, uint64_t by, const struct ws_version_id *released,
                              bool quarantines);
void ws_model_forget_inherited(struct ws_model *m);
/* Has every source answered without listing the model, is nothing of it here, and was no source added for it
 * alone? forget: if so, its name vanishes until a source lists it again. */
bool ws_model_is_gone(struct ws_model *m);
void ws_model_forget(struct ws_model *m);
/* Makes v current and the old current previous. Neither is evicted. Atomic for readers. */
void ws_model_set_current(struct ws_model *m, struct ws_version *v);
void ws_model_each(struct ws_model *m, void (*visit)(void *arg, struct ws_version *v), void *arg);

/* --- versions --- */
/* By directory name: "13" (of the live lineage), "13@RUN" (of a superseded one), or latest, current,
 * previous. Reference, or NULL with err -ENOENT. */
struct ws_version *ws_version_find(struct ws_model *m, const char *name, struct ws_error *err);
/* The newest complete version below this one, of the same lineage where there is one. Reference, retained
 * (ws_version_retain) until the caller ends that; or NULL. */
struct ws_version *ws_version_below(struct ws_version *v);
/* By number and lineage; lineage NULL: the live one. Reference, or NULL. */
struct ws_version *ws_version_at(struct ws_model *m, uint64_t number, const char *lineage);
struct ws_version *ws_version_get(struct ws_version *v);
void ws_version_put(struct ws_version *v);
struct ws_version_id ws_version_id(const struct ws_version *v);
uint64_t ws_version_serial(const struct ws_version *v); /* unique in the mount's life, < 2^28, never reused */
/* The same for a version whose memory went on to another and came back, and for no other. */
uint64_t ws_version_origin(const struct ws_version *v);
struct ws_version *ws_version_by_serial(struct ws_store *s, uint64_t serial); /* reference or NULL */
struct ws_model *ws_version_model(const struct ws_version *v);                /* borrowed */
uint64_t ws_version_number(const struct ws_version *v);
/* Must a key of the store's trust have signed it? Takes no lock. */
bool ws_version_must_be_signed(const struct ws_version *v);
const char *ws_version_lineage(const struct ws_version *v);
void ws_version_name(struct ws_version *v, char out[WS_MAX_NAME + 1]); /* its directory name now */
/* Has it that name for who looks? Not where its framework has deleted it, and no engine of this mount needs it. */
bool ws_version_is_shown(struct ws_version *v);
/* It where it is shown; else NULL, and the reference is gone. NULL is fine. */
struct ws_version *ws_version_if_shown(struct ws_version *v);
enum ws_version_state ws_version_state(struct ws_version *v);
/* Is it still in its model's list? Once false it stays so: DROPPING. */
bool ws_version_is_named(struct ws_version *v);
/* Is every byte here and verified? Once true it stays so, also without a name. Takes no lock. */
bool ws_version_is_complete(const struct ws_version *v);
/* The manifest, borrowed for the version's life; NULL with err. The first call fetches it and waits, for
 * WS_REPLY_TIMEOUT_MS at most: a FUSE worker may call only after ws_version_has_manifest. */
bool ws_version_has_manifest(struct ws_version *v);
const struct ws_manifest *ws_version_manifest(struct ws_version *v, struct ws_error *err);
/* Is it known which files it has, their sizes and headers' sizes? Then ws_version_files says so, in a manifest that may
 * have no digest yet, and no hashes but those of blocks that are here: a version in parts is hashed as they come. */
bool ws_version_has_files(struct ws_version *v);
const struct ws_manifest *ws_version_files(struct ws_version *v); /* NULL: not known */
/* The parsed header of a file, borrowed for the version's life. NULL with err: -ENOENT, a sidecar; -EAGAIN,
 * its header blocks are not here. */
const struct ws_safetensors *ws_version_header(struct ws_version *v, size_t file, struct ws_error *err);

struct ws_version_info {
    uint64_t number, total_bytes, have_bytes, moved_bytes; /* moved: over the network, with retries */
    uint64_t needed_bytes; /* all that comes of it (need=learn); 0: all of it */
    char lineage[WS_LINEAGE_CHARS + 1];
    char digest[33];
    enum ws_version_state state;
    char how[WS_HOW_CHARS];         /* "tcp full", "ipc", "tcp delta from 41: 30 MB of 3.4 GB", "" */
    int strategy;                   /* of the last pull; WS_NO_WAY: none carried weights */
    char why_not[WS_WHY_NOT_CHARS]; /* why each better strategy was not used */
    double pull_seconds;            /* of the finished or the running pull */
    double first_seconds;           /* of a finished one, until its first byte came; below 0: none did */
    unsigned stalls;                /* of that: how often no byte came for WS_STALL_NS and more */
    double stalled_seconds;         /* all of them */
    uint64_t created_ns;            /* when it was published, CLOCK_REALTIME; 0: unknown */
    bool pinned, retired, has_manifest, at_source; /* at_source: a source still serves it, or all its parts */
    unsigned n_sources;                            /* that list it whole */
    uint64_t bad_blocks;                           /* blocks fetched again because a hash differed */
    int error_code;                                /* positive; 0: none */
    char error[WS_ERROR_TEXT];                     /* why it failed */
};
void ws_version_info(struct ws_version *v, struct ws_version_info *out);
/* What is needed of the model of that name (needs.h), as it was written; empty: all of it. */
const char *ws_store_need_text(const struct ws_store *s, const char *model);
/* Which patterns say what this mount has of the model (needs.h); NULL: none do. */
const char *ws_model_need_text(const struct ws_model *m);
/* Tensors that were needed by these patterns (empty: all of them) and are left out of the version, which is complete. some:
 * one of them. -EINVAL: the patterns match nothing any more, which tells nothing. */
WS_MUST_USE int ws_version_compare_need(struct ws_version *v, const char *had, size_t *n,
                                        char some[WS_MAX_NAME + 1], struct ws_error *err);
/* With need=learn (learned.h): is it so of the model? */
bool ws_model_learns(const struct ws_model *m);
bool ws_store_learns(const struct ws_store *s); /* ... of any? */
/* How far the kernel is to read ahead on such a mount. */
#define WS_LEARNED_AHEAD_KB 128
struct ws_learned_info {
    size_t n_tensors;
    bool is_over; /* learning has ended: only these come */
};
/* False: it is not so of the model. */
bool ws_model_learned(struct ws_model *m, struct ws_learned_info *out);
/* Unless nothing is learned yet, or asked is false and nothing was read for certain. */
void ws_model_learn_end(struct ws_model *m, bool asked);
void ws_model_learn_again(struct ws_model *m); /* forgets all: the next version comes whole */
/* Bytes [at, at + n) of a file were read through the mount. The manifest is here. Any thread. */
void ws_version_was_read(struct ws_version *v, size_t file, uint64_t at, uint64_t n);
/* Is there nothing more to learn of it? It comes whole then. */
bool ws_version_is_known(const struct ws_version *v);
/* How often anything that was learned has changed, of all models. */
uint64_t ws_store_learned_changes(struct ws_store *s);
/* All that was learned, as lines. -ENOMEM. */
WS_MUST_USE int ws_store_learned_print(struct ws_store *s, FILE *f);
/* Reads these, which it changes; before the first source is added. -EBADMSG: what cannot be read; the lines before it
 * hold. */
WS_MUST_USE int ws_store_learned_read(struct ws_store *s, char *text, struct ws_error *err);
/* Is each byte of [at, at + n) here? False where some of a complete version did not come. n > 0; the manifest is here. */
bool ws_version_has_range(struct ws_version *v, size_t file, uint64_t at, uint64_t n);
/* Has the source's version a file of that name, or a tensor (as ws_name_to_file has it), which this mount leaves out, as
 * it is not needed (needs.h)? why: a sentence that says so. Of a version whose files are known. */
bool ws_version_leaves_out(struct ws_version *v, const char *name, bool is_tensor, struct ws_error *why);

/* Starts a pull of the whole version unless it is here or a pull runs, whose priority may rise. */
enum ws_priority { WS_PRIORITY_BACKGROUND, WS_PRIORITY_SWITCH, WS_PRIORITY_READER };
void ws_version_start(struct ws_version *v, enum ws_priority priority);
/* Why a wait of timeout_ms for the version, or its pull, ended with rc, in a sentence; returns rc, negative. */
int ws_version_explain(struct ws_version *v, int rc, int timeout_ms, struct ws_error *err);
/* Starts a pull and waits until the version is READY. The pull's error; -ECANCELED: *cancel; -EAGAIN: not
 * within timeout_ms (negative: no limit), the pull goes on and err says ETIMEDOUT. */
WS_MUST_USE int ws_version_pull(struct ws_version *v, enum ws_priority priority, int timeout_ms,
                                const atomic_bool *cancel, struct ws_error *err);
/* Requests bytes without waiting for them: blocks [first, first + n) of a file. n 0: only its files;
 * WS_FILE_ALL: the whole version, complete and verified; WS_FILE_HEADERS: every header; WS_FILE_MANIFEST: the manifest
 * with its digest.
 *
 * Returns 1 if they are here; done is not called then. Else returns 0, starts what is needed (awaited blocks
 * come first), and a store thread later calls done(w, result) exactly once. The result is 0 when they are
 * here, -ETIMEDOUT at the deadline, or the pull's error: -ESTALE, -EBADMSG, -EHOSTUNREACH, -ENOSPC ... A
 * failure that is known at once (no such file, a pull that failed a moment ago) goes to done as well.
 *
 * The timeout is this waiter's own and counts time without progress: it starts anew with every byte of the
 * version. The pull goes on after it. The caller owns w and keeps it, and its reference to v, until done is
 * called or cancel has returned true. */
#define WS_FILE_ALL      ((size_t)-1)
#define WS_FILE_HEADERS  ((size_t)-2)
#define WS_FILE_MANIFEST ((size_t)-3)
struct ws_waiter {
    void (*done)(struct ws_waiter *w, int result); /* set by the caller */
    /* set by the caller, for one block: also done when so many of its first bytes may be read (growing.h); 0: never before
     * it is here */
    uint64_t some_bytes;
    struct ws_version *version; /* the rest is the store's */
    size_t file, first, n;
    uint64_t deadline_ns;
    uint64_t progress_timeout_ns; /* the deadline is so long after the last byte; 0: it is fixed */
    int result;
    bool queued;
    struct ws_waiter *next, *prev;
};
WS_MUST_USE int ws_version_await(struct ws_version *v, size_t file, size_t first, size_t n,
                                 unsigned timeout_ms, struct ws_waiter *w);
bool ws_waiter_cancel(struct ws_waiter *w); /* true: done will not be called */
/* The region of a file, borrowed; NULL while no block of it is here, or where its size is 0. */
struct ws_region *ws_version_region(struct ws_version *v, size_t file);
/* Blocks of a file that are here, for .wsync/progress. */
size_t ws_version_blocks_here(struct ws_version *v, size_t file);

/* Operations on a version. drop removes its name; memory follows when the last reader is gone. -EBUSY: it is
 * current or pinned, or engines are being switched to it. A pinned version is never evicted. verify hashes
 * all that is here against the manifest. -EBADMSG: err names file and block; -ECANCELED: one of stop (NULL:
 * none) was set. */
WS_MUST_USE int ws_version_drop(struct ws_version *v, struct ws_error *err);
WS_MUST_USE int ws_version_pin(struct ws_version *v, bool pin, struct ws_error *err);
WS_MUST_USE int ws_version_verify(struct ws_version *v, const atomic_bool *const stop[2],
                                  struct ws_error *err);
/* Posts a report to every agent that lists the model, in the background, once: POST .../verb of a version, or
 * of the model itself (NULL). body: new reference, stolen. */
void ws_model_report(struct ws_model *m, const struct ws_version_id *version, const char *verb, json_t *body);
/* Waits until all reports have been sent, for timeout_ms at most. */
void ws_store_drain(struct ws_store *s, unsigned timeout_ms);
/* Sends a request to the agents that list the model, until one succeeds, and waits for the reply. path: of
 * transports/protocol/api.h; body NULL: GET. -ENOENT: no source of the model is an agent. */
WS_MUST_USE int ws_model_query(struct ws_model *m, const char *path, const json_t *body, json_t **reply,
                               struct ws_error *err);

/* Asks the sources that list the model for a signature (transports/sign/proof_path.h), until one has it; turn: by how
 * many places another source than the first begins. -EAGAIN: one of them is making it. */
WS_MUST_USE int ws_model_query_signature(struct ws_model *m, const char *path, unsigned turn, json_t **reply,
                                         struct ws_error *err);

/* --- events --- */
/* What listeners are told, on store threads and without a lock held, after it has happened. */
enum ws_store_event {
    WS_MODEL_ADDED,
    WS_MODEL_REMOVED,
    WS_MODEL_LISTED,  /* a source lists it that did not list it, or was not connected, before */
    WS_MODEL_DESIRED, /* what agents want of it has changed */
    WS_MODEL_PARENTS, /* agents name other parents */
    WS_MODEL_OFFERS,  /* a source was polled: what this mount can serve of it may have changed */
    WS_VERSION_KNOWN,
    WS_VERSION_STATE,
    WS_VERSION_READ_FAILED, /* a reader did not get its manifest, headers or blocks; its state is as before */
    WS_VERSION_RENAMED,
    WS_VERSION_RETIRED, /* its framework has deleted it: it has a name only while it is needed by that */
    WS_VERSION_GONE     /* it has lost its name, which the kernel must forget */
};
typedef void ws_store_listener(void *arg, enum ws_store_event event, struct ws_model *m,
                               struct ws_version *v);
/* Up to WS_MAX_LISTENERS, before the first ws_store_add. */
void ws_store_listen(struct ws_store *s, ws_store_listener *listener, void *arg);
/* References of the kernel: lookups and open files. The version's memory is not recycled while there are any.
 * Counted by fs/fuse/tree.c. */
void ws_version_use(struct ws_version *v, int delta);
/* While the sum is over 0 the version is not evicted: for open files, and for a switch from its pull to its
 * end. Lookups alone (ws_version_use) do not protect a version: it loses its name, the kernel is told to
 * forget it, and the memory goes if no process has it open. */
void ws_version_retain(struct ws_version *v, int delta);
/* A switch to it begins and ends: between the two it is neither evicted nor dropped. -ESTALE: it has lost its
 * name before. */
WS_MUST_USE int ws_version_begin_switch(struct ws_version *v, struct ws_error *err);
void ws_version_end_switch(struct ws_version *v);
/* The one hook that is called before a version's memory is given back. fs closes backing ids and names there
 * (link mode) and returns when that is done. Set before the first ws_store_add. */
void ws_store_set_reclaim(struct ws_store *s, void (*reclaim)(void *arg, struct ws_version *v), void *arg);

/* What the front knows of those who read a version by it. Set before the first ws_store_add. */
struct ws_store_readers {
    /* Closes what the front itself has open of the version's memory. No reader has the version open. */
    void (*close)(void *arg, struct ws_version *v);
    /* Who reads it: "process 12 (python3)". Empty: not known. */
    void (*describe)(void *arg, struct ws_version *v, char *out, size_t cap);
    void *arg;
};
void ws_store_set_readers(struct ws_store *s, const struct ws_store_readers *readers);
/* Is its memory about to go on to another version? Then it is not opened any more: ESTALE. Takes no lock. */
bool ws_version_is_leaving(const struct ws_version *v);
/* Has its error, and listeners, say so. */
void ws_version_refuse_open(struct ws_version *v);
/* The one copy (fs/store/one_copy.h) of the version's model goes to this version, when that is pulled, and to no other
 * until there is a new current one. -EBUSY: engines are being switched to another. No effect where there are several
 * copies. */
WS_MUST_USE int ws_version_direct(struct ws_version *v, struct ws_error *err);
/* ... to the current version again, at once where it is on its way to another, or there. */
void ws_model_turn_back(struct ws_model *m);
/* ... where it goes to this version, and to no other that it was directed to since. */
void ws_version_turn_back(struct ws_version *v);
/* The one copy as a status shows it. False: the model has more. */
struct ws_one_copy_info {
    struct ws_version *holder;    /* a reference; NULL: nothing is here */
    uint64_t way_back_bytes;      /* of the cache */
    char way_back[WS_ERROR_TEXT]; /* versions that it can go to without a source; empty: none */
};
bool ws_model_one_copy(struct ws_model *m, struct ws_one_copy_info *out);
bool ws_model_has_one_copy(struct ws_model *m); /* the same, where no more is asked */

/* --- figures for status and metrics --- */
struct ws_source_info {
    char url[WS_MAX_URL + 1], transport[16], error[WS_ERROR_TEXT];
    bool up;
    double seconds_since_contact;
    unsigned rtt_us; /* of its connection, as the kernel measured it last; 0: not measured */
};
const char *ws_store_certificate(
    const struct ws_store *s); /* file of the client certificate for sources; NULL: none */
size_t ws_store_sources(struct ws_store *s, struct ws_source_info *out, size_t max);
struct ws_store_stats {
    uint64_t cache_bytes, used_bytes, waiting_bytes; /* waiting: dropped, still mapped by a reader */
    uint64_t moved_bytes, bad_blocks, pulls_ok, pulls_failed, retries;
    uint64_t link_bytes_s;    /* measured; 0: not yet */
    uint64_t on_demand_bytes; /* of moved_bytes: blocks that were fetched for a read alone */
};
void ws_store_stats(struct ws_store *s, struct ws_store_stats *out);

#endif
