/* Deltas between an agent's versions, made in the background (encoder.c). */
#ifndef WS_TRAINER_AGENT_DELTA_ENCODER_H
#define WS_TRAINER_AGENT_DELTA_ENCODER_H
#include "backends/trainer/agent/core/state.h"

/* How many bytes of deltas may be kept now. Under lock. */
uint64_t ws_agent_delta_room(const struct ws_agent *a);
/* The catalog's deltas and delta; not under lock. */
int ws_agent_deltas(void *self, const char *model, uint64_t version, const char *run, bool look, json_t **out,
                    struct ws_error *err);
int ws_agent_delta(void *self, const char *model, uint64_t version, const char *run,
                   const struct ws_mark *base, unsigned level, struct ws_delta **out, struct ws_error *err);

#endif
