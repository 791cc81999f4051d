/* Encoder: deltas between an agent's versions, made in the background. */
#ifndef WS_TRAINER_AGENT_DELTA_ENCODER_H
#define WS_TRAINER_AGENT_DELTA_ENCODER_H
#include "backends/trainer/agent/core/state.h"

/* How many bytes of deltas may be kept now, of all models. Under lock. */
uint64_t ws_encoder_cache_limit(const struct ws_agent *a);
/* The deltas that lead to a version of this model: transports/delta/listing.h. New reference. Under lock. */
json_t *ws_encoder_chain_json(const struct ws_agent_model *m, const struct ws_version_id *target);
/* The catalog's deltas and delta; not under lock. */
int ws_encoder_deltas(void *self, const char *model, uint64_t version, const char *lineage, bool look,
                      json_t **out, struct ws_error *err);
int ws_encoder_delta(void *self, const char *model, uint64_t version, const char *lineage,
                     const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                     struct ws_error *err);

#endif
