/* Sender: the agent's end of broadcasts, in two halves: tickets of the mounts that ask (join.c), and the rounds
 * (sender.c). */
#ifndef WS_TRAINER_AGENT_BROADCAST_SENDER_H
#define WS_TRAINER_AGENT_BROADCAST_SENDER_H
#include "backends/trainer/agent/core/features.h"
#include "transports/nccl/broadcast.h"
#include "transports/nccl/broadcast_plan.h"

/* A mount with a ticket. */
struct ws_sender_joiner {
    struct ws_sender_joiner *next;
    uint64_t ticket, since_ns, asked_ns;
    char *model, *mount_id;
    char owner[WS_IDENTITY_CHARS + 1]; /* as the fleet's: only it asks with this ticket */
    struct ws_version_id version;
    char digest[33], uuid[WS_DEVICE_UUID_BYTES];
    struct ws_block_run *wants; /* NULL: all blocks */
    size_t n_wants;
    unsigned rank; /* in the round under way */
};

struct ws_sender {
    bool runs; /* false: nothing is broadcast. As what follows, set before any request comes */
    int device;
    char uuid[WS_DEVICE_UUID_BYTES];
    unsigned gather_ms;
    struct ws_workers *workers;
    pthread_t thread;
    atomic_bool end_round; /* the round's slot is wanted, or a member has left */
    /* guarded by the agent's lock */
    struct ws_sender_joiner *waiting; /* first come first */
    struct ws_sender_joiner *members; /* of the round under way */
    json_t *invitation;               /* the answer to all members; NULL: not ready yet */
    uint64_t last_ticket;
    char broken[WS_ERROR_TEXT];                 /* the device is lost, and why; empty: it works */
    uint64_t n_completed, n_failed, sent_bytes; /* counters */
    uint64_t bytes_per_second;                  /* of the last round */
};

/* The agent's; NULL: nothing is broadcast. */
static inline struct ws_sender *ws_sender_of(const struct ws_agent *a)
{
    struct ws_sender *b = a->feature_state[WS_FEATURE_broadcast];
    return b->runs ? b : NULL;
}

/* All under lock. Removes joiners that have stopped asking. */
void ws_sender_expire(struct ws_sender *b, uint64_t now_ns);
/* Whether all mounts that the agent knows for that model have joined, so that waiting for others is
 * pointless. */
bool ws_sender_all_joined(struct ws_agent *a, const struct ws_sender *b);
/* Waiting joiners that want what the first one wants become members of the next round. */
void ws_sender_select_members(struct ws_sender *b);
void ws_sender_joiners_free(struct ws_sender_joiner **list);
/* POST /v1/{model}/{version}/broadcast (transports/nccl/broadcast.c); not under lock. */
int ws_sender_route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                    struct ws_error *err);

#endif
