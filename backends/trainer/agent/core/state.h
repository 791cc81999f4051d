/* The data that the agent's parts share: models, their slots, and the ranks that are attached; what is done
 * with it is models.h, slots.h and sessions.h. Private to backends/trainer/agent. One
 * lock guards it all; it is never held while bytes move, memory is faulted in or a socket is written. */
#ifndef WS_TRAINER_AGENT_CORE_STATE_H
#define WS_TRAINER_AGENT_CORE_STATE_H
#include "backends/trainer/agent/core/options.h"
#include "backends/trainer/agent/core/slot.h"
#include "backends/trainer/agent/fleet/release.h"
#include "backends/trainer/tensor/audit.h"
#include "transports/base/number.h"
#include "transports/delta/set.h"
#include "transports/ipc/ipc.h"
#include "transports/protocol/api.h"
#include "transports/tcp/tcp.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

struct ws_agent_model;
struct ws_group;
struct ws_encoding;
struct ws_archiving;
struct ws_broadcasts;
struct ws_gpu_version;
struct ws_agent_feature;

/* How far the archive of a model is. */
struct ws_archive_state {
    struct ws_mark last;                        /* published and meant for it; no run: nothing yet */
    struct ws_mark anchor;                      /* the last one that was to be written whole */
    unsigned since;                             /* versions after it */
    bool anchor_due;                            /* a link is missing: the next version is written whole */
    uint64_t newest;                            /* that is on the disk */
    uint64_t anchors, deltas, given_up, failed; /* counters */
};

/* The audits of a model (audit/audit.c). */
struct ws_audit_state {
    bool due;                            /* of all replicas: nothing of this placement was published yet */
    bool said;                           /* that not all of it can be compared */
    uint64_t since, turn;                /* versions published since then; audits of a share */
    bool runs, is_whole;                 /* the version on its way is audited; all of it */
    bool differs, lacks;                 /* and replicas differ, or were not all compared */
    uint64_t epoch;                      /* of the placement that it was begun by */
    struct ws_replica_window window;     /* what is compared */
    struct ws_audit said_here;           /* by this node's ranks */
    uint64_t passed, failed, incomplete; /* counters */
};

/* A rank's connection. */
struct ws_session {
    struct ws_agent_model *model;
    struct ws_registration *registration;
    const struct ws_ipc_peer *peer;
    unsigned rank;
    pid_t pid;
    uint64_t ticket; /* which registration this is */
    bool placed;     /* a placement was made with it */
    uint64_t told;   /* a hash of the places that it was told; 0: none yet */
    bool stale;      /* its places are others by now: it has to register again */
    int refused;     /* there is no placement: errno, and why */
    char refusal[WS_ERROR_TEXT];
    bool writing;              /* has begun model->writing and not committed */
    struct ws_slot *committed; /* what it has committed, while that is not announced */
    bool lost;                 /* its version was abandoned by another rank; told at the next call */
    uint64_t began;            /* the version that it began last, or came too late with */
    uint64_t late;             /* up to which versions were given up that it had not begun; told at a begin */
    bool deaf;                 /* it keeps slots mapped, and cannot be told (0.1.0) */
    json_t *kept; /* numbers of slots that it may have mapped, of a rank that can be told to let go of them */
};

struct ws_agent_model {
    struct ws_agent_model *next; /* by name */
    char *name;
    char run[WS_RUN_CHARS + 1]; /* live lineage; empty before the first */
    uint64_t newest;            /* published in it; 0: none */
    bool any;                   /* something was published in it */
    bool said_copies;           /* that readers on this host get some */
    struct ws_slot *slots[WS_MAX_SLOTS];
    unsigned n_slots, max_slots;
    /* the group of ranks */
    char group_run[WS_RUN_CHARS + 1];
    char opened_run[WS_RUN_CHARS +
                    1]; /* that new_run opened last: it needs no leave again, published or not */
    unsigned world_size, n_registered;
    struct ws_session **ranks;
    struct ws_placement *placement; /* NULL until all ranks are there */
    struct ws_placement *share;   /* what this node's ranks write of it, where others write, too; else NULL */
    struct ws_agent_model *owner; /* whose slots they write: this one, or its part; NULL: not settled */
    unsigned n_local;             /* ranks of this node in it */
    struct ws_group *group;       /* NULL: no other agent is known */
    bool spans_nodes;             /* other nodes have ranks in it, or may have */
    char why[WS_ERROR_TEXT];      /* the last version was abandoned */
    struct ws_mark given_up;      /* which one that was; no run: none was */
    char *nodes;                  /* of a part: JSON of the nodes' names */
    uint64_t shard_bytes;
    uint64_t epoch;  /* of the placement */
    bool preparing;  /* one rank's thread prepares the slot, the others wait */
    bool wants_room; /* and it waits until they have let go of memory that is of no use */
    /* the version on its way */
    struct ws_slot *writing;
    uint64_t writing_version;
    unsigned n_begun, n_committed;
    unsigned n_left; /* ranks that have committed it and ended */
    /* mounts/routes.c */
    struct ws_fleet fleet;
    struct ws_wanted *wanted;
    /* delta/encoder.c */
    struct ws_delta_set deltas;
    unsigned level; /* of compression, that was asked of the next delta */
    uint64_t published, abandoned, deltas_made, deltas_given_up; /* counters */
    struct ws_archive_state archive;                             /* delta/archiver.c */
    struct ws_audit_state audit;
    struct ws_gpu_version *gpu; /* gpu/share.c; newest first */
};

struct ws_agent {
    struct ws_agent_options options;
    const struct ws_agent_feature *const *features; /* features.h; the last is NULL */
    struct ws_catalog catalog;                      /* what it serves */
    _Atomic(struct ws_tcp_server *) tcp;            /* set while threads run already */
    _Atomic(struct ws_ipc_server *) ipc;
    struct ws_workers *workers;
    pthread_t finisher, clock;
    bool has_clock;
    atomic_bool stop;
    _Atomic uint64_t seq;
    uint64_t born;               /* microseconds of CLOCK_REALTIME: which agent this is; its first seq */
    char node[WS_WHO_CHARS + 1]; /* who we are among the agents of a trainer */
    struct ws_source *primary;   /* NULL: we are it, or alone */
    pthread_t grouper;
    bool has_grouper;
    pthread_mutex_t lock;
    pthread_cond_t changed;       /* anything below changed */
    pthread_cond_t group_changed; /* something that the primary is to be told */
    /* guarded by lock */
    struct ws_agent_model *models;
    struct ws_release *releases; /* newest first */
    uint64_t last_id;            /* of releases and of what is wanted */
    uint64_t last_ticket;
    uint64_t last_gpu;      /* gpu/share.c: of leases */
    uint64_t group_turn_ns; /* group/primary.c */
    uint64_t slot_bytes;
    struct ws_astraflow **astraflow;
    size_t n_astraflow;
    _Atomic(struct ws_broadcasts *) broadcasts; /* broadcast/sender.c; NULL: none */
    /* delta/encoder.c */
    pthread_t encoder;
    struct ws_workers *encoders;              /* NULL: no deltas are made */
    struct ws_encoding *encodings, *encoding; /* that wait, first come first; the one in work */
    /* delta/archiver.c */
    pthread_t archiver;
    struct ws_archive *archive;                  /* the archiver's; NULL: none */
    struct ws_archiving *archivings, *archiving; /* that wait, first come first; the one in work */
};

/* What the ranks of this node write; NULL: not known yet. */
static inline struct ws_placement *ws_agent_layout(const struct ws_agent_model *m)
{
    return m->share ? m->share : m->placement;
}
static inline uint64_t ws_agent_number(const json_t *body, const char *key, uint64_t fallback)
{
    uint64_t v;
    return ws_number_read(json_object_get(body, key), &v) == 0 ? v : fallback;
}

#endif
