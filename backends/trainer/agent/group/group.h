/* Group: the ranks of a model where they are on several nodes, with an agent on each. Private to
 * backends/trainer/agent; the agent's lock guards it all.
 *
 * One agent is the primary; the others are told so (--primary) and say to it, again and again, how things
 * stand on their node: POST /v1/MODEL/node. The primary answers with how things stand altogether. Both sides
 * say the whole state, so a lost message is made good by the next, and who says nothing for WS_LEASE_GRACE_MS
 * is gone.
 *
 * An epoch is a set of registrations from all ranks, and the placement that follows from them; each agent
 * computes it and the primary compares. A round is one try to write a version:
 *
 *     OPEN   ranks write; each node says when all of its own have committed
 *     HASH   all have, with the same version: each node hashes and seals its part
 *     then   all have sealed: it is announced, everywhere, and the next round begins
 *
 * Whatever ends a round otherwise (a rank or a node that dies, a rank that gives it up, versions that differ)
 * abandons it everywhere: the round's number is then larger than the one that a node is in. Ranks that have
 * not begun that version yet are told so once, when they do: else they would write it for nobody, and stay a
 * version behind. For the same reason the highest is given up where nodes wrote different ones. */
#ifndef WS_TRAINER_AGENT_GROUP_GROUP_H
#define WS_TRAINER_AGENT_GROUP_GROUP_H
#include "backends/trainer/agent/core/features.h"

struct ws_group_node { /* the primary's view of another agent */
    uint64_t id;       /* that agent; 0: this place is free */
    char name[WS_WHO_CHARS + 1];
    uint64_t heard_ns;
    bool member; /* of the epoch: its part is needed */
    uint64_t epoch, round, version;
    char run[WS_RUN_CHARS + 1];
    bool committed, sealed; /* in that round */
    struct ws_audit audit;  /* what its ranks have said of replicas that span nodes, in audit_round */
    uint64_t audit_round;
};

struct ws_remote { /* a rank on another node, at the primary */
    struct ws_registration *registration;
    struct ws_group_node *node;
    uint64_t ticket;
};

struct ws_group {
    uint64_t round, epoch; /* of the primary; epoch 0: none was made or adopted */
    bool hashing;          /* the phase */
    struct ws_mark announced;
    uint64_t announced_round;
    char why[WS_ERROR_TEXT]; /* the last round was abandoned */
    /* The last version that was given up after a rank had begun it, on whichever node, and its round. */
    struct ws_mark given_up;
    uint64_t given_up_round;
    /* this node's version */
    uint64_t writing_round;
    bool committed, sealed, drop; /* drop: it was abandoned while it is hashed */
    /* the primary's */
    struct ws_group_node nodes[WS_MAX_PARTS];
    struct ws_remote *remotes; /* by rank */
    unsigned n_remotes;
    bool stale; /* somebody joined since the placement was made */
    bool tried; /* and with those who are here there is none: */
    int failed_code;
    char failed_text[WS_ERROR_TEXT];
    unsigned *node_of;   /* of the epoch, by rank */
    unsigned count, own; /* parts; ours, count or more: none */
    json_t *names;       /* of the nodes, by index */
    /* a secondary's */
    uint64_t primary_id;            /* which agent that was */
    uint64_t gave_up;               /* the round that this node abandoned by itself */
    uint64_t asked_ns, answered_ns; /* the last that was answered: when it was asked, and answered */
    unsigned n_here;                /* ranks that the primary knows */
    unsigned n_told;                /* of our ranks */
    uint64_t audit_round;           /* of which the primary has what our ranks said of replicas */
    bool whole, dirty;              /* the primary has all ranks; something is to be told at once */
    json_t *need;                   /* ranks whose registrations it wants */
    char asked_run[WS_RUN_CHARS + 1];
    bool new_run;
    char away[WS_ERROR_TEXT]; /* why the primary does not answer */
};

/* All below under lock. */
/* Makes m->group where there is none. -ENOMEM. */
WS_MUST_USE int ws_group_have(struct ws_agent_model *m, struct ws_error *err);
/* How many ranks write the model. Nobody of a group of another size is left. */
WS_MUST_USE int ws_group_set_world(struct ws_agent_model *m, unsigned world_size, struct ws_error *err);
/* Are all ranks of the model there, wherever? */
bool ws_group_is_whole(const struct ws_agent *a, const struct ws_agent_model *m);
unsigned ws_group_n_here(const struct ws_agent_model *m);
/* A rank of this node was added: makes the placement when it was the last one. What goes wrong the waiting
 * ranks are told. */
void ws_group_joined(struct ws_agent *a, struct ws_agent_model *m, const struct ws_session *last);
/* Where a rank's pieces go, and which of them it writes: a hash, never 0. */
uint64_t ws_group_places(const struct ws_agent_model *m, const struct ws_registration *r);
/* Has a rank of this node been told places that are others by now? It learns so at its next begin, and
 * registers again: until then what it holds may be out of date. */
bool ws_group_register_again(const struct ws_agent_model *m);
/* Must a rank wait before it begins: for the round before, or for ranks that are on their way back? */
bool ws_group_is_busy(const struct ws_agent *a, const struct ws_agent_model *m);
/* A rank is about to begin a version: a secondary hears from the primary first how things stand, since by
 * what it heard a second ago the version could be begun in a round that is over. The lock is given up
 * meanwhile, for 2 s at most; where the primary is away, what is known has to do. */
void ws_group_hear(struct ws_agent *a, struct ws_agent_model *m, uint64_t deadline_ns);
void ws_group_begun(struct ws_agent_model *m);
/* Is it over before anybody could write? A rank left, or the round ended, while its slot was prepared. */
bool ws_group_is_over(const struct ws_agent *a, const struct ws_agent_model *m, char *why, size_t cap);
/* All ranks of this node have committed / its part is sealed, or could not be. */
void ws_group_committed(struct ws_agent *a, struct ws_agent_model *m);
/* true: the version may be announced by the caller now, since no other node is needed. */
bool ws_group_sealed(struct ws_agent *a, struct ws_agent_model *m, const char *failed, bool *tell);
/* A version that a rank had begun was given up in that round, here or elsewhere. Once for each. */
void ws_group_given_up(struct ws_agent_model *m, const struct ws_mark *version, uint64_t round);
/* Why the last round was abandoned, for the other nodes; who: which node says so, or NULL. */
void ws_group_say_why(struct ws_group *g, const char *who, const char *why);
void ws_group_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* Who is missing, for the end of a sentence: ranks that are not there, that have not registered again, or
 * (writing) not committed. */
void ws_group_missing(const struct ws_agent *a, const struct ws_agent_model *m, bool writing, char *out,
                      size_t cap);
/* Makes the placement of registrations (regs[rank]); this node is `index` of the `count` that have ranks, or
 * has none (index >= count). names: of the nodes, borrowed. */
WS_MUST_USE int ws_group_place(struct ws_agent *a, struct ws_agent_model *m,
                               struct ws_registration *const *regs, const unsigned *node_of, unsigned index,
                               unsigned count, json_t *names, struct ws_error *err);
/* The ranks that wait for a placement are told that there is none. */
void ws_group_refuse(struct ws_agent *a, struct ws_agent_model *m, int code, const char *why);
/* The round was abandoned elsewhere: so is this node's version. */
void ws_group_drop(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* There is something to say to the other side. */
void ws_group_wake(struct ws_agent *a, struct ws_agent_model *m);
/* Which of the ranks' numbers are taken by another node. NULL: it is free. */
const struct ws_group_node *ws_group_holder(const struct ws_agent_model *m, unsigned rank);

/* primary.c */
#define WS_NODE_CALL_MS 10000
void ws_node_name(struct ws_agent *a);
uint64_t ws_primary_turn(struct ws_agent *a); /* forgets nodes that are silent; returns how long to wait */
void ws_primary_joined(struct ws_agent *a, struct ws_agent_model *m);
/* Goes as far as it can; true: something was announced, which the caller tells the pollers. */
bool ws_primary_advance(struct ws_agent *a, struct ws_agent_model *m);
/* secondary.c: one exchange for each model that needs one (the lock is given up meanwhile). */
uint64_t ws_secondary_turn(struct ws_agent *a);

/* Not under lock: POST /v1/MODEL/node. */
WS_MUST_USE int ws_primary_node_route(struct ws_agent *a, const struct ws_api_request *q, const json_t *body,
                                      json_t **reply, struct ws_error *err);
/* Does a request belong to the primary? Then it is forwarded there. Not under lock. */
bool ws_secondary_forwards(struct ws_agent *a, const struct ws_agent_request *r);
WS_MUST_USE int ws_secondary_forward(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                                     struct ws_error *err);

#endif
