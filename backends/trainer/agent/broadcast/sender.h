/* What the two halves of the agent's broadcasts share: who asks (join.c), and the rounds
 * (sender.c). */
#ifndef WS_TRAINER_AGENT_BROADCAST_SENDER_H
#define WS_TRAINER_AGENT_BROADCAST_SENDER_H
#include "backends/trainer/agent/core/features.h"
#include "transports/nccl/broadcast_plan.h"

/* Somebody with a ticket. */
struct ws_joiner {
    struct ws_joiner *next;
    uint64_t ticket, since_ns, asked_ns;
    char *model, *who;
    struct ws_mark of;
    char digest[33], uuid[WS_DEVICE_ID];
    struct ws_block_run *wants; /* NULL: all blocks */
    size_t n_wants;
    unsigned rank; /* in the round under way */
};

struct ws_broadcasts {
    int device;
    char uuid[WS_DEVICE_ID];
    unsigned gather_ms;
    struct ws_workers *workers;
    pthread_t thread;
    atomic_bool end_round; /* its version's slot is wanted, or a member has left */
    /* guarded by the agent's lock */
    struct ws_joiner *waiting; /* first come first */
    struct ws_joiner *members; /* of the round under way */
    json_t *offer;             /* what they are told; NULL: not yet */
    uint64_t last_ticket;
    char broken[WS_ERROR_TEXT];    /* the device is lost, and why; empty: it works */
    uint64_t whole, failed, bytes; /* counters */
    uint64_t speed;                /* of the last round, bytes a second */
};

/* All under lock. Forgets those that ask no more. */
void ws_broadcast_forget(struct ws_broadcasts *b, uint64_t now_ns);
/* Are all mounts here that the agent knows of that model, so that waiting for others is no use? */
bool ws_broadcast_all_here(struct ws_agent *a, const struct ws_broadcasts *b);
/* The waiting ones that want what the first one wants become members of the next round. */
void ws_broadcast_choose(struct ws_broadcasts *b);
void ws_joiners_free(struct ws_joiner **list);
/* POST /v1/{model}/{version}/broadcast (transports/nccl/broadcast.c); not under lock. */
int ws_broadcast_route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                       struct ws_error *err);

#endif
