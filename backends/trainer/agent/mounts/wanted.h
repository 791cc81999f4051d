/* Wanted versions: those of a model that a client needs on certain mounts, which fetch them and report it. */
#ifndef WS_TRAINER_AGENT_MOUNTS_WANTED_H
#define WS_TRAINER_AGENT_MOUNTS_WANTED_H
#include "backends/trainer/agent/core/state.h"

/* A model's. Under lock. */
struct ws_wanted {
    struct ws_wanted_version *versions;
};

/* Under lock. Mounts, by the names in the request's body, are to fetch the version for a while; once more is longer. */
WS_MUST_USE int ws_wanted_add(struct ws_agent *a, struct ws_agent_model *m, const struct ws_version_id *to,
                              const json_t *body, bool *listing_changed, struct ws_error *err);
/* Under lock. Those that are wanted now, put into the model's entry of the listing. */
void ws_wanted_list(const struct ws_agent_model *m, json_t *out);
void ws_wanted_free(struct ws_agent_model *m);

#endif
