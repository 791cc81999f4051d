/* The requests of ranks, by the unix socket only: POST /v1/local/VERB (routes.c). */
#ifndef WS_TRAINER_AGENT_RANKS_ROUTES_H
#define WS_TRAINER_AGENT_RANKS_ROUTES_H
#include "backends/trainer/agent/core/features.h"

extern const struct ws_ipc_handler ws_rank_handler;
extern const struct ws_rank_route ws_rank_routes[]; /* of POST /v1/local/VERB; the features have more */
/* When a rank's request gives up, by its timeout_ms (CLOCK_MONOTONIC, ns). */
uint64_t ws_rank_deadline(const json_t *body);
/* register.c: POST /v1/local/register; not under lock. */
int ws_rank_register(struct ws_rank_call *q, struct ws_error *err);
/* join.c: a rank becomes one of the model's group. Under lock, which it gives up while it waits for
 * others to end. */
WS_MUST_USE int ws_rank_join(struct ws_agent *a, struct ws_agent_model *m, struct ws_session *c,
                             unsigned world_size, uint64_t deadline, const json_t *body,
                             struct ws_error *err);
/* wait.c: POST /v1/local/wait; not under lock. */
int ws_rank_wait(struct ws_rank_call *q, struct ws_error *err);

#endif
