/* State: the data that the agent's rooms share: models, their slots, and the ranks that are attached. models.h,
 * slots.h and sessions.h work on it; each feature keeps its own beside it (features.h). Private to
 * backends/trainer/agent. One lock guards it all. No thread holds that lock while bytes move, memory is faulted
 * in or a socket is written. */
#ifndef WS_TRAINER_AGENT_CORE_STATE_H
#define WS_TRAINER_AGENT_CORE_STATE_H
#include "backends/trainer/agent/core/feature_list.h"
#include "backends/trainer/agent/core/options.h"
#include "backends/trainer/agent/core/slot.h"
#include "backends/trainer/agent/fleet/fleet.h"
#include "transports/base/number.h"
#include "transports/ipc/serve.h"
#include "transports/protocol/api.h"
#include "transports/tcp/tcp.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

struct ws_agent_model;
struct ws_group;
struct ws_release;
struct ws_agent_feature;

/* A connection to the unix socket, of a rank or of a reader of what ranks share on GPUs. */
struct ws_session {
    struct ws_agent_model *model;         /* NULL: it is not a rank of any */
    struct ws_registration *registration; /* the session's; NULL: none */
    const struct ws_ipc_peer *peer;
    unsigned rank;
    pid_t pid;
    uint64_t ticket;      /* a number of its registration */
    bool placed;          /* a placement was made with this registration */
    uint64_t placed_hash; /* hash of the places that the rank was last sent; 0: none yet */
    bool stale;           /* its places have changed since: it has to register again */
    int refused;          /* errno: no placement can be made, and refusal says why; 0: not refused */
    char refusal[WS_ERROR_TEXT];
    bool writing;              /* has begun model->writing and not committed */
    unsigned n_records;        /* how often it gave records of that */
    struct ws_slot *committed; /* what it has committed, until that is announced */
    bool lost;                 /* another rank's abandon ended its version; its next call gets that error */
    uint64_t last_begun;       /* the version that it began last, or came too late with */
    uint64_t given_up_until;   /* versions up to this were given up before it began them; its begin fails */
    uint64_t from;             /* it came back, and begins no version before this one; 0: it did not say */
    bool never_unmaps;         /* libwsync 0.1.0: keeps slots mapped, and cannot be asked to unmap them */
    json_t *mapped_slots;      /* ids of the slots that it may have mapped; NULL: it did not say */
};

struct ws_agent_model {
    struct ws_agent_model *next; /* by name */
    char *name;
    char lineage[WS_LINEAGE_CHARS + 1]; /* the live one; empty before the first version */
    uint64_t newest;                    /* published in it; 0: none */
    bool has_published;                 /* something, in any lineage */
    /* An agent before this one was about to announce it, and may have: no other bytes get its number. */
    struct ws_version_id reserved;
    /* Of a view: what was announced last, or was about to be, and its digest: no other bytes get its number. */
    struct ws_version_id derived;
    char derived_digest[33];
    bool logged_copies; /* that readers on this host get copies of some versions */
    struct ws_slot *slots[WS_MAX_SLOTS];
    unsigned n_slots, max_slots;
    /* the group of ranks */
    char group_lineage[WS_LINEAGE_CHARS + 1];
    char opened_lineage[WS_LINEAGE_CHARS + 1]; /* opened last by new_run: needs no permission again */
    unsigned world_size, n_registered;
    struct ws_session **ranks;
    struct ws_placement *placement;      /* NULL until all ranks are there */
    struct ws_placement *node_placement; /* what this node's ranks write of it; NULL: all of it */
    /* The model whose slots its ranks write: itself or its part; NULL: not known yet. */
    struct ws_agent_model *slot_owner;
    unsigned n_local;              /* ranks of this node in the placement */
    unsigned n_told, n_stale;      /* ranks that were sent places; ... and have to register again */
    struct ws_group *group;        /* group/group.h; NULL: no other agent is known */
    bool spans_nodes;              /* other nodes have ranks in it, or may have */
    char why[WS_ERROR_TEXT];       /* the last version was abandoned */
    struct ws_version_id given_up; /* that version; no run: none was abandoned */
    char *nodes;                   /* of a part: the nodes' names, as JSON */
    uint64_t shard_bytes;
    uint64_t epoch;    /* of the placement */
    bool preparing;    /* one rank's thread prepares the slot, the others wait */
    bool wants_memory; /* that thread waits until ranks unmap slots that will not be written again */
    /* the version on its way */
    struct ws_slot *writing; /* NULL: none */
    uint64_t writing_version;
    char how[96]; /* how the rank that committed last copied what it wrote; empty: it did not say */
    unsigned n_begun, n_committed;
    unsigned n_ended;              /* ranks that have committed it and ended */
    struct ws_fleet fleet;         /* its mounts */
    uint64_t published, abandoned; /* counters */
    void *feature_state[WS_N_FEATURES];
};

struct ws_agent {
    struct ws_agent_options options;
    const struct ws_agent_feature *const *features;       /* features.h; the last is NULL */
    const struct ws_api_route *routes[WS_N_FEATURES + 2]; /* tables of its routes; the last is NULL */
    struct ws_catalog catalog;                            /* what it serves */
    _Atomic(struct ws_tcp_server *) tcp;                  /* set while threads run already */
    _Atomic(struct ws_ipc_server *) ipc;
    struct ws_workers *workers;
    pthread_t finisher;
    atomic_bool stop;
    _Atomic uint64_t seq;
    uint64_t
        instance; /* microseconds of CLOCK_REALTIME at its start: tells it from agents before; its first seq */
    char node_name[WS_MOUNT_ID_CHARS + 1]; /* among the agents of a trainer */
    struct ws_source *primary;             /* NULL: this agent is the primary, or alone */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* anything that the lock guards */
    /* guarded by lock */
    struct ws_agent_model *models;
    struct ws_release *releases; /* over them, newest first (agent/mounts/releases.h) */
    uint64_t last_ticket;
    uint64_t slot_bytes;
    uint64_t restoring_bytes;           /* of them, for what is being read back out of an archive */
    char restoring[WS_MAX_NAME + 1];    /* ... of that model; empty: nothing is */
    void *feature_state[WS_N_FEATURES]; /* the pointers change before and after all threads only */
};

/* Waits for `changed` until the deadline (CLOCK_MONOTONIC, ns); false when it has passed. Under lock. */
bool ws_agent_wait(struct ws_agent *a, uint64_t deadline_ns);
/* The listing has changed: seq grows, and long polls end. Not under lock. */
void ws_agent_announce(struct ws_agent *a);
/* What the ranks of this node write; NULL: not known yet. */
static inline struct ws_placement *ws_agent_model_local_placement(const struct ws_agent_model *m)
{
    return m->node_placement ? m->node_placement : m->placement;
}
/* A number of a request's body; fallback: it is not there, or no number. */
static inline uint64_t ws_agent_number(const json_t *body, const char *key, uint64_t fallback)
{
    uint64_t v;
    return ws_number_read(json_object_get(body, key), &v) == 0 ? v : fallback;
}

#endif
