/* Group: the ranks of a model where they are on several nodes, with an agent on each. Private to
 * backends/trainer/agent; the agent's lock guards it all.
 *
 * One agent is the primary. Each of the others, a secondary (--primary), sends it the state of its node again
 * and again: POST /v1/MODEL/node. The primary answers with the state of the group. Both sides send their whole
 * state, so the next message makes up for a lost one. An agent that sends nothing for WS_LEASE_GRACE_MS is
 * gone.
 *
 * An epoch is a set of registrations from all ranks, and the placement that follows from them; each agent
 * computes it and the primary compares. The ranks of a data-parallel group register the same: to an agent that says
 * "repeats" the primary tells that once, and of the other ranks the number of the first. All of thousands of ranks
 * would be more than a message may have (WS_MAX_REPLY_BYTES). A round is one try to write a version:
 *
 *     OPEN   ranks write; each node reports when all of its own have committed
 *     HASH   all have committed the same version: each node hashes and seals its part
 *     then   all have sealed: the version is announced on all nodes, and the next round begins
 *
 * Whatever else ends a round abandons it on all nodes: a rank or a node that dies, a rank that gives the
 * version up, versions that differ. The primary's round is then higher than the one that a node is in. Ranks
 * that have not begun that version yet are told so once, at their begin: else they would write a version that
 * cannot become complete, and stay one behind. For the same reason the highest is given up where nodes wrote
 * different ones.
 *
 * An agent that is started anew under its name has the same ranks, which come back to it one by one. Their places stay,
 * and so does the round, as long as each registers what it had registered before and nothing of the round was
 * written there. Each says from which version on it writes: a lower one that is being written ends at once. */
#ifndef WS_TRAINER_AGENT_GROUP_GROUP_H
#define WS_TRAINER_AGENT_GROUP_GROUP_H
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/tensor/audit.h"

struct ws_group_node { /* the primary's view of another agent */
    uint64_t id;       /* the agent's instance; 0: this entry is free */
    unsigned n_ranks;  /* that are registered there */
    unsigned index;    /* of its part, in the placement that is being made */
    char name[WS_MOUNT_ID_CHARS + 1];
    uint64_t heard_ns;
    uint64_t renewed_ns; /* when its agent was started anew; 0: no rank of it is away since */
    bool member;         /* of the epoch: its part is needed */
    uint64_t epoch, round, version;
    char lineage[WS_LINEAGE_CHARS + 1];
    bool committed, sealed; /* in that round */
    struct ws_audit audit;  /* hashes of its ranks, of replicas that span nodes, in audit_round */
    uint64_t audit_round;
};

struct ws_group_remote { /* a rank on another node, at the primary */
    struct ws_registration *registration;
    struct ws_group_node *node;
    uint64_t ticket;
    bool away; /* its node's agent was started anew, and it has not registered there yet */
};

struct ws_group {
    uint64_t round, epoch; /* of the primary; epoch 0: none was made or adopted */
    bool hashing;          /* the phase */
    struct ws_version_id announced;
    uint64_t announced_round;
    char why[WS_ERROR_TEXT]; /* the last round was abandoned */
    /* The last version that was given up after a rank had begun it, on whichever node, and its round. */
    struct ws_version_id given_up;
    uint64_t given_up_round;
    /* this node's version */
    uint64_t writing_round;
    bool committed, sealed, abandon_pending; /* the last: abandoned while it is hashed */
    /* the primary's */
    struct ws_group_node nodes[WS_MAX_NODE_PARTS];
    struct ws_group_remote *remotes; /* by rank */
    unsigned n_remotes;
    struct
        ws_group_seen { /* nodes that have gone so far, from the first: they need no other look in this phase */
        uint64_t round, epoch;
        bool sealed;
        unsigned n;
    } seen;
    bool stale; /* a rank joined since the placement was made */
    bool tried; /* and the present ranks allow none: */
    int failed_code;
    char failed_text[WS_ERROR_TEXT];
    unsigned *node_of;   /* of the epoch, by rank */
    unsigned count, own; /* parts; ours, count or more: none */
    json_t *names;       /* of the nodes, by index */
    /* a secondary's */
    uint64_t primary_id;           /* the primary's instance */
    uint64_t gave_up;              /* the round that this node abandoned by itself */
    uint64_t request_ns, reply_ns; /* of the last exchange that succeeded: when sent, when answered */
    unsigned n_present;            /* ranks that the primary knows */
    unsigned n_sent;               /* of our ranks */
    uint64_t audit_round;          /* of which the primary has this node's audit hashes */
    bool is_complete, send_now;    /* the primary has all ranks; the state is to be sent at once */
    json_t *wanted_ranks;          /* ranks that the primary wants registrations of */
    char requested_lineage[WS_LINEAGE_CHARS + 1];
    bool opens_lineage;
    char unreachable[WS_ERROR_TEXT]; /* why the primary does not answer */
};

/* The agent's thread for all its groups, on secondaries and on the primary. */
struct ws_group_thread {
    pthread_t thread;
    bool has_wake, runs; /* wake is initialised; thread is started */
    pthread_cond_t wake; /* there is something to send to the other side, or the agent stops */
    bool
        phase_changed; /* the primary's: a round has ended or is being hashed, and held requests wait for it */
    uint64_t
        stepped_ns; /* when the primary's thread last looked for silent nodes; guarded by the agent's lock */
};
static inline struct ws_group_thread *ws_group_thread_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_group];
}

/* All below under lock. */
/* Makes m->group where there is none. -ENOMEM. */
WS_MUST_USE int ws_group_make(struct ws_agent_model *m, struct ws_error *err);
/* How many ranks write the model. No rank of a group of another size may be left. */
WS_MUST_USE int ws_group_set_world_size(struct ws_agent_model *m, unsigned world_size, struct ws_error *err);
/* Are all ranks of the model there, on any node? */
bool ws_group_is_complete(const struct ws_agent *a, const struct ws_agent_model *m);
unsigned ws_group_n_present(const struct ws_agent_model *m);
/* A rank of this node was added: makes the placement if it was the last one. Waiting ranks get the error. */
void ws_group_joined(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last);
/* Where a rank's pieces go, and which of them it writes: a hash, never 0. */
uint64_t ws_group_places_hash(const struct ws_agent_model *m, const struct ws_registration *r);
/* Does a rank of this node have places that have changed since? Its next begin says so, and it registers
 * again; until then what it holds may be out of date. */
bool ws_group_must_register_again(const struct ws_agent_model *m);
/* Must a rank wait before it begins: for the round before, or for ranks that are on their way back? */
bool ws_group_is_busy(const struct ws_agent *a, const struct ws_agent_model *m);
/* A rank is about to begin a version. A secondary first gets the primary's present state: by a state one
 * second old, the version could be begun in a round that is over. The lock is given up meanwhile, for 2 s at
 * most. If the primary does not answer, the last known state is used. */
void ws_group_refresh(struct ws_agent *a, struct ws_agent_model *m, uint64_t deadline_ns);
void ws_group_begun(struct ws_agent_model *m);
/* Has the version ended before a rank could write? A rank left, or the round ended, while its slot was
 * prepared. */
bool ws_group_is_over(const struct ws_agent *a, const struct ws_agent_model *m, char *why, size_t cap);
/* All ranks of this node have committed / its part is sealed, or could not be. */
void ws_group_committed(struct ws_agent *a, struct ws_agent_model *m);
/* true: the version may be announced by the caller now, since no other node is needed. */
bool ws_group_sealed(struct ws_agent *a, struct ws_agent_model *m, const char *failed, bool *announced);
/* A version that a rank had begun was given up in that round, here or elsewhere. Once for each. */
void ws_group_given_up(struct ws_agent_model *m, const struct ws_version_id *version, uint64_t round);
/* Records why the last round was abandoned, for the other nodes; node_name: of the node that reports it, or
 * NULL. */
void ws_group_record_why(struct ws_group *g, const char *node_name, const char *why);
void ws_group_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* The ranks that are missing, for the end of a message: absent, not registered again, or (writing) not
 * committed. */
void ws_group_describe_missing(const struct ws_agent *a, const struct ws_agent_model *m, bool writing,
                               char *out, size_t cap);
/* Makes the placement of registrations (regs[rank]); this node is `index` of the `count` that have ranks, or
 * has none (index >= count). names: of the nodes, borrowed. */
WS_MUST_USE int ws_group_place(struct ws_agent *a, struct ws_agent_model *m,
                               struct ws_registration *const *regs, const unsigned *node_of, unsigned index,
                               unsigned count, json_t *names, struct ws_error *err);
/* Ranks that wait for a placement get the error. */
void ws_group_refuse(struct ws_agent *a, struct ws_agent_model *m, int code, const char *why);
/* The round was abandoned elsewhere: so is this node's version. */
void ws_group_abandon_here(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* Sends the state to the other side at once. */
void ws_group_wake(struct ws_agent *a, struct ws_agent_model *m);
/* The other node that has this rank. NULL: none has. */
const struct ws_group_node *ws_group_remote_node(const struct ws_agent_model *m, unsigned rank);

/* primary.c */
#define WS_NODE_CALL_MS 10000
uint64_t ws_primary_step(struct ws_agent *a); /* forgets nodes that are silent; returns how long to wait */
void ws_primary_joined(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last);
/* The next round begins: held requests of nodes are answered. */
void ws_primary_end_round(struct ws_agent *a, struct ws_group *g);
/* Goes as far as it can. true: a version was announced, and the caller notifies clients that poll. */
bool ws_primary_advance(struct ws_agent *a, struct ws_agent_model *m);
/* Ends the round without a version. */
void ws_primary_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* Ranks that are present, on any node. */
unsigned ws_primary_n_here(const struct ws_agent_model *m);
void ws_primary_placement_changed(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* A rank came back, and begins no version before `from`; 0: it did not say. A lower one can never be complete: the one
 * that is being written ends, and ranks that have yet to begin one are told. */
void ws_primary_skip_until(struct ws_agent *a, struct ws_agent_model *m, unsigned rank, const char *node_name,
                           uint64_t from);
/* how: the end of a sentence about the rank, "ended". */
void ws_primary_drop_rank(struct ws_agent *a, struct ws_agent_model *m, unsigned rank, const char *how);
/* secondary.c: one exchange for each model that needs one (the lock is given up meanwhile). */
uint64_t ws_secondary_step(struct ws_agent *a);

/* reports.c. Not under lock: POST /v1/MODEL/node; WS_ROUTE_HELD: the node waits for others. */
WS_MUST_USE int ws_primary_node_route(struct ws_agent *a, const struct ws_api_request *q, const json_t *body,
                                      json_t **reply, struct ws_error *err);
/* Does a request belong to the primary? Then it is forwarded there. Not under lock. */
bool ws_secondary_forwards(struct ws_agent *a, const struct ws_agent_request *r);
WS_MUST_USE int ws_secondary_forward(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                                     struct ws_error *err);

#endif
