/* What is asked of an agent beside versions (status.c). */
#ifndef WS_TRAINER_AGENT_STATUS_H
#define WS_TRAINER_AGENT_STATUS_H
#include "backends/trainer/agent/core/state.h"

/* The catalog's route; not under lock. */
int ws_status_route(void *self, const struct ws_identity *who, const char *method, const char *path,
                    const char *query, const json_t *body, json_t **reply, char **text, struct ws_error *err);
int ws_status_no_route(void *self, const char *method, const char *path, struct ws_error *err);
extern const struct ws_api_route ws_status_routes[]; /* those of this file; the features have their own */

#endif
