/* Encoder: deltas between an agent's versions, made in the background. */
#ifndef WS_TRAINER_AGENT_DELTA_ENCODER_H
#define WS_TRAINER_AGENT_DELTA_ENCODER_H
#include "backends/trainer/agent/core/state.h"

/* How many bytes of deltas may be kept now, of all models. Under lock. */
uint64_t ws_encoder_cache_limit(const struct ws_agent *a);
/* Is a delta from the model's newest version to a next one of so many bytes to be made? level: of ws_delta_record_make, by
 * what readers asked; most_bytes: beyond, it is given up. Under lock. */
bool ws_encoder_terms(const struct ws_agent *a, const struct ws_agent_model *m, uint64_t version_bytes,
                      int *level, uint64_t *most_bytes);
/* Are deltas made of the model's versions? / Has a reader taken one in the last few versions? Under lock. */
bool ws_encoder_is_on(const struct ws_agent *a, const struct ws_agent_model *m);
bool ws_encoder_is_taken(const struct ws_agent_model *m);
/* Gives deltas up until the rest has room; those that nobody may want first. Under lock. */
void ws_encoder_trim(struct ws_agent *a);
/* The deltas that lead to a version of this model: transports/delta/listing.h. New reference. Under lock. */
json_t *ws_encoder_chain_json(const struct ws_agent_model *m, const struct ws_version_id *target);
/* The catalog's deltas and delta; not under lock. */
int ws_encoder_deltas(void *self, const char *model, uint64_t version, const char *lineage, bool look,
                      json_t **out, struct ws_error *err);
int ws_encoder_delta(void *self, const char *model, uint64_t version, const char *lineage,
                     const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                     struct ws_error *err);

#endif
