/* The store's own view of its objects, for fs/store and fs/pull only; other rooms include fs/store/store.h.
 *
 * One lock, store->lock, guards the objects and the links between them. It is held for moments only: never
 * over I/O, a listener, a waiter's done, or an allocation of weights. What changes with each block (bitmaps,
 * counters) is atomic and needs no lock. Lock order: store->lock, then a pull's lock
 * (fs/pull/source_select.h), then the pool's own.
 *
 * References to a version: its name holds one, its pull one, each waiter one, each caller its own. A version
 * holds its model, a model its store, and a version in a source's memory that source's poller. The last put
 * hands the version to the reaper, because giving memory back calls a hook that may wait for the kernel. */
#ifndef WS_FS_STORE_STATE_H
#define WS_FS_STORE_STATE_H
#include "fs/store/needs.h"
#include "fs/store/puller.h"
#include "transports/base/clock.h"
#include "transports/base/limits.h"
#include "transports/delta/set.h"
#include "transports/memory/pool.h"
#include <pthread.h>
#include <sys/queue.h>
#include <time.h>

#define WS_ID_BUCKETS    1024
#define WS_MAX_LISTENERS 4
#define WS_NEVER         UINT64_MAX

struct ws_poller;
struct ws_handover;
struct ws_report;
struct ws_offer;
struct ws_model_prefs;
struct ws_parents;
struct ws_tree;
struct ws_parts;
struct ws_part_view;
struct ws_part_description;
struct ws_delta_chain;
struct ws_derived_view;
struct ws_learned;
struct ws_tensor_order;
struct ws_block_set;
struct ws_inquiry;
struct ws_arrivals;

/* One file of a version: which of its blocks are here, and where. */
struct ws_file_state {
    _Atomic(struct ws_region *) region;      /* set once */
    _Atomic(struct ws_safetensors *) header; /* set once */
    _Atomic(struct ws_tensor_order *) order; /* learned.c: set once; plain memory */
    _Atomic(uint64_t) *here;                 /* bit set: the block is here and was verified */
    atomic_size_t n_here;
};

/* rings.c: the time for which a pull uses a source that is a mount. */
struct ws_ring_stay {
    unsigned source; /* its index */
    uint64_t token;  /* 0: the pull uses no mount */
};

struct ws_version {
    struct ws_store *store;
    struct ws_model *model;
    uint64_t serial, number;
    uint64_t origin; /* serial of the first in its line: it goes on where another version took the memory */
    char lineage[WS_LINEAGE_CHARS + 1];
    atomic_uint refs; /* 0: the reaper's */
    atomic_uint n_waiters;
    atomic_int retained; /* ws_version_retain */
    /* its pull was begun to make a view of it (derived.h), and nothing else has asked for it since: it makes room for
     * others */
    atomic_bool only_for_views;
    atomic_bool is_kept;    /* keeper.h: its memory is */
    atomic_bool way_chosen; /* how it comes is known: deltas that it uses are in model->deltas */
    /* all is here and verified; never unset, not by a drop either, but where its memory went on to another version
     * (one_copy.h), whom then no reader has */
    atomic_bool complete;
    atomic_uint leaving; /* versions that its memory is about to go on to: it is not opened any more */
    pthread_mutex_t header_lock;      /* for parsing a header once; taken alone */
    pthread_mutex_t tensor_diff_lock; /* of tensor_diff; taken alone, for as long as a comparison takes */
    char *tensor_diff;                /* control/tensor_diff.c: its text; NULL: not requested yet */
    /* set once, files before manifest */
    struct ws_file_state *files;
    _Atomic(struct ws_manifest *) manifest;
    atomic_bool unsealed; /* the manifest says which files there are, and the rest comes with their bytes */
    _Atomic(struct ws_tree *)
        tree; /* of its blocks, checked; NULL: not asked for, or it need not be signed */
    /* part_view.h */
    struct ws_parts *parts; /* of a version that is made of parts; set once, before their views */
    _Atomic(struct ws_part_view *) view;  /* of a part; set once */
    _Atomic(struct ws_growing *) growing; /* set once */
    /* what describes a part, while nobody knows where it belongs (part_description.h); set and taken away with store->lock */
    _Atomic(struct ws_part_description *) description;
    atomic_bool is_described;              /* all of that came; never unset */
    _Atomic(struct ws_block_set *) wanted; /* which blocks come (wants.h); NULL: all; set once */
    atomic_bool is_known;                  /* all its tensors are learned (learned.h); never unset */
    /* of a part, for its next pull: deltas that a source has listed (pull/parts_way.h); plain memory */
    _Atomic(struct ws_delta_chain *) listed_deltas;
    /* counted by lanes */
    _Atomic(uint64_t) moved_bytes, bad_blocks;
    /* guarded by store->lock */
    char digest[33]; /* as listed, then the manifest's */
    uint64_t listed_bytes, created_ns;
    uint64_t known_ns; /* when a source listed it first, by this host's clock */
    enum ws_version_state state;
    bool named, pinned;
    bool retired;                  /* its framework has deleted it (retired.h); never unset */
    unsigned n_switches;           /* that go to it now; each has a reference, and reads no bytes */
    unsigned n_base_for;           /* pulls that want it as a delta base (one_copy.h) */
    bool dying;                    /* the reaper has it: no look-up finds it */
    bool live;                     /* of the live lineage, so that its name is N; else N@RUN */
    uint64_t sources;              /* bit i: the poller with index i lists it */
    uint64_t partial;              /* bit i: ... and has only a delta to it */
    uint64_t on_gpus;              /* bit i: ... and shares it with processes of this host */
    struct ws_offer *offers;       /* one of each source that lists it, of those that are left out too */
    bool disputed;                 /* the offers name different digests */
    unsigned in_parts;             /* so many agents list a part each, which make all of it; 0: they do not */
    uint64_t own_bytes;            /* of the cache; 0 where the memory is a source's */
    struct ws_poller *mapped_from; /* of the source whose memory it is; counted */
    struct ws_handover *handover;  /* to the version that gets its memory */
    struct ws_pull *pull;
    struct ws_ring_stay stay;  /* of that pull */
    bool took_from_pool;       /* that pull took regions, and none were prepared in exchange */
    struct ws_waiter *waiters; /* in the order of their requests */
    struct ws_waiter *last_waiter;
    int error_code; /* of the last pull that failed, positive */
    char *error;
    uint64_t failed_ns, pull_began_ns;
    double pull_seconds, first_seconds, stalled_seconds; /* as in ws_version_info */
    unsigned stalls;
    char how[WS_HOW_CHARS];
    int strategy;               /* of the last pull */
    char *why_not;              /* NULL: no pull has ended */
    struct ws_version *next;    /* in the model's list, by number, then by creation; or in the reaper's */
    struct ws_version *next_id; /* in its bucket of store->ids */
};

/* What one source says about a model. */
struct ws_model_claim {
    char lineage[WS_LINEAGE_CHARS + 1]; /* empty: nothing yet */
    uint64_t newest, created_ns;
    bool direct; /* it lists the model itself, not only a part of it, so it gets reports */
};

/* parents.h: by stripe the indices of the parent and of the parent's; -1: none. */
struct ws_model_parents {
    bool is_told;     /* by an agent */
    uint64_t told_ns; /* when it named other ones than before */
    int of[WS_FANOUT_STRIPES][2];
};

struct ws_model {
    struct ws_store *store;
    char *name;
    uint64_t id;
    const struct ws_derived_view *derived; /* NULL: it is no view that is made here */
    const struct ws_need *need;            /* NULL: all of it is needed, or what is learned (needs.h) */
    struct ws_learned *learned;            /* NULL: it is not with need=learn; the store's */
    char *base;                            /* of a hidden model: the one that it has parts of; else NULL */
    atomic_uint refs;
    /* guarded by store->lock */
    bool listed;                        /* in store->models */
    char lineage[WS_LINEAGE_CHARS + 1]; /* the live one; empty: no source has named it yet */
    struct ws_version *versions;        /* those with a name */
    size_t n_versions;
    struct ws_version *current, *previous; /* counted */
    struct ws_model_claim claims[WS_MAX_SOURCES];
    struct ws_histogram pulls;                    /* seconds of complete pulls */
    struct ws_arrivals *arrivals;                 /* NULL: no pull has ended */
    struct ws_version_id retired[WS_MAX_RETIRED]; /* retired.h: the last ones; no run: none */
    unsigned n_retired;                           /* that there ever were */
    struct ws_desired desired;
    unsigned desired_from;         /* index of the source that it is from */
    bool desired_is_hint;          /* that is a parent (parents.h): any other source's takes its place */
    bool reported[WS_MAX_SOURCES]; /* the source with that index has a report of this mount's state */
    struct ws_model_parents parents;
    struct ws_delta_set deltas; /* delta_cache.h */
    unsigned delta_level;       /* of compression, that was asked of the next delta of a view */
    struct ws_delta_set
        shown; /* made here for programs that ask (pull/shown_delta.h); delta_cache.h bounds them, too */
    uint64_t shown_bytes;         /* of the cache, for those */
    struct ws_delta_set way_back; /* made here (way_back.h) */
    uint64_t way_back_bytes;      /* of the cache, for those */
    struct ws_spare *spare;       /* the puller's: of the version that is on its way; NULL: none */
    struct ws_version_id
        directed; /* to which the one copy goes (one_copy.h); lineage empty: the current one */
    /* node_parts.c */
    unsigned part_index, part_count; /* of a hidden model; count 0: it is not hidden */
    char *nodes[WS_MAX_NODE_PARTS];  /* by part: the agent that has it, as it calls itself; NULL: unknown */
    uint64_t missing_number, missing_since_ns;
    bool layout_changed; /* the map of the version before did not fit a version that is to be pulled again */
    bool missing_agent, warned;  /* no source has ever listed one of the parts; that was logged */
    char missing[WS_ERROR_TEXT]; /* which parts of the newest version no source offers; empty: none */
    struct ws_model *next;       /* by name */
};

struct ws_store {
    const struct ws_puller *puller;
    struct ws_store_options options; /* with its strings copied; never changes */
    struct ws_pool *pool;
    uint64_t id;      /* by which other mounts know this one */
    atomic_uint refs; /* the owner's and one of each model */
    atomic_bool stop; /* read anywhere, set by ws_store_stop */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a source answered, a pull ended, memory came back; monotonic clock */
    _Atomic(uint64_t) moved_bytes, bad_blocks, retries;
    _Atomic(uint64_t)
        on_demand_bytes;     /* of moved_bytes: blocks that were fetched for a read alone (pull/lazy.h) */
    struct ws_speeds speeds; /* as measured or given; its members are atomic */
    atomic_uint n_moving[WS_PRIORITY_READER + 1]; /* lanes inside a fetch, by priority */
    /* set before the first source is added, then only read */
    struct {
        ws_store_listener *listener;
        void *arg;
    } listeners[WS_MAX_LISTENERS];
    atomic_uint n_listeners; /* 0 again once the store stops: the end is no event */
    void (*reclaim)(void *arg, struct ws_version *v);
    void *reclaim_arg;
    struct ws_store_readers readers;
    struct ws_derived_view *derived; /* views that this mount makes: derived.h */
    size_t n_derived;
    struct ws_store_need needs[WS_MAX_NEEDS];
    size_t n_needs;
    /* guarded by lock */
    struct ws_learned *learned; /* by model */
    struct ws_model *models;
    size_t n_models;
    struct ws_poller *pollers[WS_MAX_SOURCES]; /* by index, which is the source's bit */
    uint64_t next_order;                       /* of sources, in which they were added */
    char *removed[WS_MAX_MODELS];              /* models that a source for all models may not bring back */
    struct ws_model_prefs *model_prefs;        /* transport_prefs.c */
    uint64_t *last_id, own_last_id;
    struct ws_version *ids[WS_ID_BUCKETS];
    uint64_t used_bytes;    /* of the cache, by versions with and without a name */
    uint64_t waiting_bytes; /* by those without a name */
    uint64_t kept_bytes;    /* of used_bytes: what was not taken of a keeper yet (keeper.h) */
    bool keeps_one_copy;    /* of each model: copies=auto has found that two do not fit (one_copy.h) */
    uint64_t pulls_ok, pulls_failed;
    unsigned n_pulls;
    LIST_HEAD(ws_comparisons, ws_comparison) comparisons;
    /* waiters.c */
    pthread_t deadline_thread;
    pthread_cond_t deadline_changed;
    uint64_t next_deadline_ns;
    /* reaper.c */
    pthread_t reaper;
    pthread_cond_t reaper_changed;
    struct ws_version *dead, **last_dead;
    bool reaper_over;
    struct ws_parents
        *parents; /* NULL: this mount takes no part in trees; set before the first source is added */
    /* reporter.c */
    unsigned n_reports;   /* that wait or are being sent, to all agents */
    unsigned n_reporters; /* threads */
    bool threads_stop;
    /* inquiry.c */
    LIST_HEAD(ws_inquiries, ws_inquiry) inquiries;
    size_t n_inquiries;
    uint64_t inquiry_logged_ns;
};

void ws_store_put(struct ws_store *s); /* the last one frees it; without any lock */
/* Sleeps ms, a quarter more or less so that many mounts do not wake at once, or until *stop, or *wakes (guarded by
 * store->lock; NULL: nothing else wakes it), after which store->changed is broadcast. Without any lock. */
void ws_store_pause(struct ws_store *s, const atomic_bool *stop, const bool *wakes, unsigned ms,
                    unsigned *seed);

static inline uint64_t ws_bit(unsigned index)
{
    return 1UL << index;
}

#endif
