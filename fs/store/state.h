/* The store's own view of its objects, for the files of the store and of what pulls for it; everybody else
 * includes fs/store/store.h.
 *
 * One lock, store->lock, guards what objects say about each other and about themselves. It is held
 * for moments only: never over I/O, a listener, a wait's done, or an allocation of weights. What
 * moves per block (bitmaps, counters) is atomic and needs no lock. Lock order: store->lock, then
 * pull->lock or route->lock, then the pool's own.
 *
 * References: a version's name holds one, a pull one, a wait one, every caller its own. A version
 * holds its model, a model its store, a version whose memory is a source's the watch of it. The last
 * put of a version hands it to the reaper, because giving memory back calls the fs hook, which may
 * have to wait for the kernel. */
#ifndef WS_FS_STORE_STATE_H
#define WS_FS_STORE_STATE_H
#include "fs/store/puller.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/delta/set.h"
#include "transports/memory/pool.h"
#include <pthread.h>
#include <time.h>

#define WS_ID_BUCKETS    1024
#define WS_MAX_LISTENERS 4
#define WS_NEVER         UINT64_MAX

struct ws_watch;
struct ws_bequest;
struct ws_report;
struct ws_offer;
struct ws_preference;

/* One file of a version: which of its blocks are here, and where. */
struct ws_file_state {
    _Atomic(struct ws_region *) region;      /* set once */
    _Atomic(struct ws_safetensors *) header; /* set once */
    _Atomic(uint64_t) *here;                 /* bit set: the block is here and was verified */
    atomic_size_t n_here;
};

/* rings.c: a pull's stay at a source that is a mount. */
struct ws_stay {
    unsigned at;    /* index of the source */
    uint64_t token; /* 0: there is none */
};

struct ws_version {
    struct ws_store *store;
    struct ws_model *model;
    uint64_t id, number;
    char run[WS_RUN_CHARS + 1];
    atomic_uint refs; /* 0: the reaper's */
    atomic_uint n_waits;
    atomic_int kept;              /* ws_version_keep */
    atomic_bool decided;          /* by which way it comes: the deltas that it takes are among the model\'s */
    atomic_bool complete;         /* all is here and verified; never taken back, not by a drop either */
    pthread_mutex_t header_lock;  /* one thread parses; taken alone */
    pthread_mutex_t changed_lock; /* of changed; taken alone, for as long as a comparison takes */
    char *changed;                /* control/tensor_diff.c: its text, once it was asked for */
    /* set once, files before manifest */
    struct ws_file_state *files;
    _Atomic(struct ws_manifest *) manifest;
    /* counted by lanes */
    _Atomic(uint64_t) moved_bytes, bad_blocks;
    /* guarded by store->lock */
    char digest[33]; /* as listed, then the manifest's */
    uint64_t listed_bytes, created_ns;
    enum ws_state state;
    bool named, pinned;
    unsigned held;              /* by switches to it */
    bool dying;                 /* the reaper's: found by nobody any more */
    bool live;                  /* what its name says: of the live lineage, or N@RUN */
    uint64_t sources;           /* bit i: the watch with index i lists it */
    struct ws_offer *offers;    /* what each of those that list it says, of what is left out too */
    bool disputed;              /* they do not agree on its digest */
    uint64_t partial;           /* ... and has only the delta to it */
    uint64_t on_gpus;           /* ... and shares it with processes of this host */
    unsigned in_parts;          /* so many agents list a part each, together all of it; 0: they do not */
    uint64_t own_bytes;         /* of the cache; 0 where the memory is a source's */
    struct ws_watch *mapped;    /* whose memory it is; counted */
    struct ws_bequest *bequest; /* who gets its memory when it goes */
    struct ws_pull *pull;
    struct ws_stay stay;   /* of that pull */
    bool emptied_pool;     /* its pull's: regions were taken that nothing was reserved for in turn */
    struct ws_wait *waits; /* in order of asking */
    struct ws_wait *last_wait;
    int error_code; /* of the last pull that failed, positive */
    char *error;
    uint64_t failed_ns, pull_began_ns;
    double pull_seconds;
    char how[WS_HOW_CHARS];
    int strategy;               /* of the last pull */
    char *why_not;              /* NULL: none has ended */
    struct ws_version *next;    /* of the model's named ones, ascending; or of the reaper's */
    struct ws_version *next_id; /* of its bucket */
};

/* What one source says about a model. */
struct ws_model_claim {
    char run[WS_RUN_CHARS + 1]; /* empty: nothing yet */
    uint64_t newest, created_ns;
    bool direct; /* it lists the model itself, not only a part of it: who reports are for */
};

struct ws_model {
    struct ws_store *store;
    char *name;
    uint64_t id;
    atomic_uint refs;
    /* guarded by store->lock */
    bool listed;                 /* in store->models */
    char run[WS_RUN_CHARS + 1];  /* the live lineage; empty: not heard yet */
    struct ws_version *versions; /* named ones, by number, then by time of creation */
    size_t n_versions;
    struct ws_version *current, *previous; /* counted */
    struct ws_model_claim claims[WS_MAX_SOURCES];
    struct ws_histogram pulls; /* seconds of those that came whole */
    struct ws_orders orders;
    unsigned orders_from;       /* index of the source that said so */
    bool told[WS_MAX_SOURCES];  /* the source with that index was told where the mount stands */
    struct ws_delta_set deltas; /* fetched ones, for chains and for mounts that pull from this one */
    /* node_parts.c */
    unsigned part_index, part_count; /* of a hidden model; count 0: it is none */
    char *nodes[WS_MAX_PARTS];       /* who has which part, as agents call themselves; NULL: not heard */
    uint64_t lacking_number, lacking_since_ns;
    bool lacks_agent, warned;    /* nobody has ever listed one of the parts; that was logged */
    char lacking[WS_ERROR_TEXT]; /* which parts of the newest version are not offered; empty: none lacks */
    struct ws_model *next;       /* by name */
};

struct ws_store {
    const struct ws_puller *puller;
    struct ws_store_options options; /* with its strings copied; never changes */
    struct ws_pool *pool;
    uint64_t id;      /* by which other mounts know this one */
    atomic_uint refs; /* the owner and every model */
    atomic_bool stop; /* read anywhere, set by ws_store_free */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a source answered, a pull ended, room was made; monotonic clock */
    _Atomic(uint64_t) moved_bytes, bad_blocks, retries;
    struct ws_speeds speeds;                      /* as measured or given; its members are atomic */
    atomic_uint n_moving[WS_PRIORITY_READER + 1]; /* lanes inside a fetch, by priority */
    /* set before the first source is added, then only read */
    struct {
        ws_store_listener *listener;
        void *arg;
    } listeners[WS_MAX_LISTENERS];
    atomic_uint n_listeners; /* 0 again at the end: nobody is told of it */
    void (*release)(void *arg, struct ws_version *v);
    void *release_arg;
    /* guarded by lock */
    struct ws_model *models;
    size_t n_models;
    struct ws_watch *watches[WS_MAX_SOURCES]; /* in the order of adding; index is the watch's bit */
    uint64_t next_watch;                      /* order of adding */
    char *removed[WS_MAX_MODELS];             /* models that a source for all may not bring back */
    struct ws_preference *preferences;        /* transport_prefs.c: by model */
    uint64_t next_id;
    struct ws_version *ids[WS_ID_BUCKETS];
    uint64_t used_bytes;    /* of the cache, by versions with and without a name */
    uint64_t waiting_bytes; /* the part without a name */
    uint64_t pulls_ok, pulls_failed;
    unsigned n_pulls;
    /* waiters.c: the deadlines' thread */
    pthread_t clock;
    pthread_cond_t clock_changed;
    uint64_t next_deadline_ns;
    /* reaper.c */
    pthread_t reaper;
    pthread_cond_t reaper_changed;
    struct ws_version *dead, **last_dead;
    bool reaper_over;
    /* reporter.c */
    pthread_t reporter;
    pthread_cond_t reporter_changed;
    struct ws_report *reports, **last_report;
    unsigned n_reports; /* with the one that is being sent */
    bool threads_stop;
};

void ws_store_put(struct ws_store *s); /* the last one frees it; without any lock */

static inline uint64_t ws_bit(unsigned index)
{
    return 1UL << index;
}

#endif
