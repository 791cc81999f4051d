/* What ranks share on GPUs, at their agent: versions, the memory of each rank, who has it open. Descriptors
 * and JSON only: the agent touches no GPU. Private to share.c (records), routes.c and
 * on_demand.c, but for ws_gpu_may_make, which a rank's begin asks; all under the agent's lock unless
 * it says otherwise.
 *
 *     GATHERING (ranks tell) -> OFFERED (all ranks have committed it) -> OVER (no more is opened) -> freed
 *
 * A version that is over stays until nobody has it: the rank that waits for that, and the status, see it. */
#ifndef WS_TRAINER_AGENT_GPU_SHARE_H
#define WS_TRAINER_AGENT_GPU_SHARE_H
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/gpu/listing.h"

enum ws_gpu_state { WS_GPU_GATHERING, WS_GPU_OFFERED, WS_GPU_OVER };

struct ws_gpu_share { /* one rank's */
    struct ws_gpu_share *next;
    const struct ws_session *owner; /* NULL: it has ended */
    unsigned rank;
    pid_t pid;
    struct ws_gpu_listing *listing;
    int **fds;        /* by segment and part; -1: not here yet */
    size_t n_missing; /* of them */
    int hold;         /* passed on to who opens the version */
    char pid_namespace[64], ipc_namespace[64], no_marks[WS_ERROR_TEXT];
};

struct ws_gpu_lease {
    struct ws_gpu_lease *next;
    uint64_t id;
    const struct ws_session *by;
    pid_t pid; /* 0: of a PID namespace that we do not see */
};

struct ws_gpu_version {
    struct ws_gpu_version *next; /* newer first */
    enum ws_gpu_state state;
    uint64_t version;
    char run[WS_RUN_CHARS + 1];
    bool packed;
    bool on_demand, made; /* on_demand.c; made: a slot has it */
    bool wanted;          /* somebody waits for its bytes */
    unsigned n_told;      /* ranks that have told all of theirs */
    uint64_t bytes, created_ns, failed_ns;
    struct ws_gpu_share *shares; /* by rank */
    struct ws_gpu_lease *leases;
    unsigned n_leases, n_readers; /* readers: of its JSON, for a moment */
    char why[160];                /* it is over, or could not be made */
    char refused[WS_ERROR_TEXT];  /* the last that could not open it, and why */
};

const char *ws_gpu_strategy(const struct ws_gpu_version *v); /* "cuda_ipc" */

/* A rank's share of a version that ranks gather: takes listing and hold. */
WS_MUST_USE int ws_gpu_add(struct ws_session *c, const struct ws_gpu_version *like,
                           struct ws_gpu_listing *listing, int hold, struct ws_gpu_share **out,
                           struct ws_error *err);
/* That version's share of this rank; NULL: there is none. */
struct ws_gpu_version *ws_gpu_gathering_of(const struct ws_agent_model *m); /* or NULL */
struct ws_gpu_share *ws_gpu_gathering(const struct ws_session *c, uint64_t version);
/* No more is opened; frees it where nobody has it. *told: it was offered, and those who poll are to know. */
void ws_gpu_end(struct ws_agent_model *m, struct ws_gpu_version *v, const char *why, bool *told);
bool ws_gpu_is_writing(const struct ws_agent_model *m, const struct ws_gpu_version *v); /* into a slot */
void ws_gpu_tidy(struct ws_agent_model *m); /* frees what is over and nobody has */
/* The version to open: 0: the newest. NULL and err: there is none. *told as above. */
struct ws_gpu_version *ws_gpu_find(struct ws_agent *a, const char *model, uint64_t version, const char *run,
                                   struct ws_agent_model **m, bool *told, struct ws_error *err);
/* The lease of that id, and what it is of; NULL: this peer has none such. */
struct ws_gpu_lease *ws_gpu_lease_of(struct ws_agent *a, const struct ws_session *c, uint64_t id,
                                     struct ws_gpu_version **v, struct ws_agent_model **m);
WS_MUST_USE int ws_gpu_lease(struct ws_agent *a, struct ws_gpu_version *v, const struct ws_session *c,
                             uint64_t *id, struct ws_error *err);
void ws_gpu_release(struct ws_agent *a, struct ws_gpu_version *v, const struct ws_gpu_lease *lease);
/* Leases of processes that have ended and whose connection a child keeps. */
void ws_gpu_prune(struct ws_agent *a, struct ws_gpu_version *v);
/* "pid 12, pid 14": who has it, for people. */
void ws_gpu_holders(const struct ws_gpu_version *v, char *out, size_t cap);
/* on_demand.c: may the rank share that version, unmade (gives up the lock while it waits)? A rank
 * takes its part of one back that is being made: true: that is abandoned. The one that is being made is given
 * up. */
WS_MUST_USE int ws_gpu_check_unmade(struct ws_rank_call *q, struct ws_error *err);
bool ws_gpu_end_unmade(struct ws_agent *a, struct ws_agent_model *m, struct ws_gpu_version *v,
                       const struct ws_session *c);
void ws_gpu_make_failed(struct ws_agent_model *m);
WS_MUST_USE int ws_gpu_do_told(struct ws_rank_call *q, struct ws_error *err); /* not under lock */
WS_MUST_USE int ws_gpu_do_wanted(struct ws_rank_call *q, struct ws_error *err);
WS_MUST_USE int ws_gpu_do_unmade(struct ws_rank_call *q, struct ws_error *err);
bool ws_gpu_is_of(const struct ws_gpu_version *v,
                  const struct ws_session *c); /* has the rank a share of it? */
/* The model's version was announced. */
void ws_gpu_published(struct ws_agent_model *m, uint64_t version, const char *run);
/* on_demand.c: versions that are announced before they are in a slot. The hooks of core/features.h:
 * is the one in the slot such a one? May one be made, of which the bytes are asked for? */
bool ws_gpu_made(struct ws_agent_model *m, const struct ws_slot *slot);
int ws_gpu_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                struct ws_error *err);
/* May a rank begin it, which is announced already? -ESTALE. */
WS_MUST_USE int ws_gpu_may_make(const struct ws_agent_model *m, uint64_t version, const char *run,
                                struct ws_error *err);
/* Adds them to a listing's versions, oldest first. */
void ws_gpu_list_unmade(const struct ws_agent_model *m, json_t *versions);
extern const struct ws_rank_route ws_gpu_routes[]; /* routes.c */

#endif
