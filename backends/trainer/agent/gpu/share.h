/* GPU share: what ranks share on GPUs, at their agent: versions, the memory of each rank, and the processes
 * that have it open. Descriptors and JSON only: the agent touches no GPU. Private to share.c (records),
 * routes.c and on_demand.c, but for ws_gpu_on_demand_may_write, which a rank's begin asks. All under the
 * agent's lock unless it says otherwise.
 *
 *     GATHERING      ranks add their shares
 *     -> OFFERED     all ranks have committed it
 *     -> OVER        no process may open it any more
 *     -> freed       no process has it open any more
 *
 * A version that is over stays while a process has it open: the rank that waits for its end sees it, and so
 * does the status. */
#ifndef WS_TRAINER_AGENT_GPU_SHARE_H
#define WS_TRAINER_AGENT_GPU_SHARE_H
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/gpu/listing.h"

enum ws_gpu_state { WS_GPU_GATHERING, WS_GPU_OFFERED, WS_GPU_OVER };

struct ws_gpu_share { /* one rank's */
    struct ws_gpu_share *next;
    const struct ws_session *owner; /* the rank's; NULL: it has ended */
    unsigned rank;
    pid_t pid;
    struct ws_gpu_listing *listing;
    int **fds;        /* by segment and part; -1: not received yet */
    size_t n_missing; /* of them */
    int lock_fd;      /* its copies go to each process that opens the version */
    char pid_namespace[64], ipc_namespace[64], no_marks[WS_ERROR_TEXT];
};

struct ws_gpu_lease {
    struct ws_gpu_lease *next;
    uint64_t id;
    const struct ws_session *by;
    pid_t pid; /* 0: of a PID namespace that the agent cannot see */
};

struct ws_gpu_version {
    struct ws_gpu_version *next; /* newer first */
    enum ws_gpu_state state;
    uint64_t version;
    char lineage[WS_LINEAGE_CHARS + 1];
    bool packed;
    bool on_demand, in_slot; /* on_demand.c; in_slot: a slot has it */
    bool requested;          /* a reader waits for its bytes */
    unsigned n_complete;     /* ranks that have sent all of their shares */
    uint64_t bytes, created_ns, failed_ns;
    struct ws_gpu_share *shares; /* by rank */
    struct ws_gpu_lease *leases;
    unsigned n_leases, n_readers;     /* readers: threads that make its JSON, for a moment */
    char why[160];                    /* why it is over, or could not be written to a slot */
    char last_refusal[WS_ERROR_TEXT]; /* the last process that could not open it, and why */
};

/* The newest of the model's versions; their list is the feature's own. */
struct ws_gpu_version **ws_gpu_versions(const struct ws_agent_model *m);
const char *ws_gpu_version_strategy(const struct ws_gpu_version *v); /* "cuda_ipc" */

/* A rank's share of a version that ranks gather: takes listing and hold. */
WS_MUST_USE int ws_gpu_share_add(struct ws_session *c, const struct ws_gpu_version *like,
                                 struct ws_gpu_listing *listing, int lock_fd, struct ws_gpu_share **out,
                                 struct ws_error *err);
/* That version's share of this rank; NULL: there is none. */
struct ws_gpu_version *ws_gpu_version_gathering(const struct ws_agent_model *m); /* or NULL */
struct ws_gpu_share *ws_gpu_share_gathering(const struct ws_session *c, uint64_t version);
/* Ends the version: it cannot be opened any more, and is freed if no reader has it. *announce: it was
 * offered, so the caller notifies clients that poll. */
void ws_gpu_version_end(struct ws_agent_model *m, struct ws_gpu_version *v, const char *why, bool *announce);
bool ws_gpu_version_is_writing(const struct ws_agent_model *m,
                               const struct ws_gpu_version *v); /* into a slot */
void ws_gpu_versions_sweep(struct ws_agent_model *m);           /* frees ended versions without readers */
/* The version to open: 0: the newest. NULL and err: there is none. *announce as above. */
struct ws_gpu_version *ws_gpu_version_find(struct ws_agent *a, const char *model, uint64_t version,
                                           const char *lineage, struct ws_agent_model **m, bool *announce,
                                           struct ws_error *err);
/* The lease of that id, and what it is of; NULL: this peer has none such. */
struct ws_gpu_lease *ws_gpu_lease_find(struct ws_agent *a, const struct ws_session *c, uint64_t id,
                                       struct ws_gpu_version **v, struct ws_agent_model **m);
WS_MUST_USE int ws_gpu_lease_new(struct ws_agent *a, struct ws_gpu_version *v, const struct ws_session *c,
                                 uint64_t *id, struct ws_error *err);
void ws_gpu_lease_end(struct ws_agent *a, struct ws_gpu_version *v, const struct ws_gpu_lease *lease);
/* Ends the leases of processes that have ended and whose connection a child keeps. */
void ws_gpu_version_prune_leases(struct ws_agent *a, struct ws_gpu_version *v);
/* "pid 12, pid 14": the processes that have it open, for messages. */
void ws_gpu_version_holders(const struct ws_gpu_version *v, char *out, size_t cap);
/* on_demand.c: may the rank share that version, unmade (gives up the lock while it waits)? A rank
 * takes its part of one back that is being made: true: that is abandoned. The one that is being made is given
 * up. */
WS_MUST_USE int ws_gpu_on_demand_check(struct ws_rank_call *q, struct ws_error *err);
bool ws_gpu_on_demand_abandon(struct ws_agent *a, struct ws_agent_model *m, struct ws_gpu_version *v,
                              const struct ws_session *c);
void ws_gpu_on_demand_failed(struct ws_agent_model *m);
WS_MUST_USE int ws_gpu_on_demand_do_commit(struct ws_rank_call *q, struct ws_error *err); /* not under lock */
WS_MUST_USE int ws_gpu_on_demand_do_wanted(struct ws_rank_call *q, struct ws_error *err);
WS_MUST_USE int ws_gpu_on_demand_do_unmade(struct ws_rank_call *q, struct ws_error *err);
bool ws_gpu_version_has_rank(const struct ws_gpu_version *v,
                             const struct ws_session *c); /* has the rank a share of it? */
/* The model's version was announced. */
void ws_gpu_version_published(struct ws_agent_model *m, uint64_t version, const char *lineage);
/* on_demand.c: versions that are announced before they are in a slot. The hooks of core/features.h:
 * is the one in the slot such a one? May one be made, of which the bytes are asked for? */
bool ws_gpu_on_demand_written(struct ws_agent_model *m, const struct ws_slot *slot);
int ws_gpu_on_demand_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *lineage,
                          struct ws_error *err);
/* May a rank begin it, which is announced already? -ESTALE. */
WS_MUST_USE int ws_gpu_on_demand_may_write(const struct ws_agent_model *m, uint64_t version,
                                           const char *lineage, struct ws_error *err);
/* Adds them to a listing's versions, oldest first. */
void ws_gpu_on_demand_list(const struct ws_agent_model *m, json_t *versions);
extern const struct ws_rank_route ws_gpu_rank_routes[]; /* routes.c */

#endif
