/* The models of an agent and the life of their versions: one is on its way (m->writing), and is published,
 * abandoned or discarded; readers hold those that are served. All under the agent's lock where nothing else
 * is said. Called by ranks' requests, the finisher, groups of nodes, and who serves readers. */
#ifndef WS_TRAINER_AGENT_CORE_MODELS_H
#define WS_TRAINER_AGENT_CORE_MODELS_H
#include "backends/trainer/agent/core/state.h"

/* NULL: there is none / no room for one more. */
struct ws_agent_model *ws_agent_find(struct ws_agent *a, const char *model);
struct ws_agent_model *ws_agent_find_or_add(struct ws_agent *a, const char *model);
/* Waits for `changed` until the deadline (CLOCK_MONOTONIC, ns); false when it has passed. */
bool ws_agent_wait(struct ws_agent *a, uint64_t deadline_ns);
/* Not under lock: seq grows, long polls end. */
void ws_agent_announce(struct ws_agent *a);
/* Gives up the version on its way. why: the end of a sentence, with the rank that is the reason. */
void ws_agent_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* Notes why it will be or was given up; ranks are told. */
void ws_agent_say_why(struct ws_agent_model *m, const char *why);
/* Announces a sealed version of the model; the caller announces it to pollers. */
void ws_agent_publish(struct ws_agent *a, struct ws_agent_model *m);
/* Announces one that no slot has yet, likewise. */
void ws_agent_publish_unmade(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run);
/* Throws it away instead. */
void ws_agent_discard(struct ws_agent *a, struct ws_agent_model *m);
/* The catalog's hold and drop; not under lock. */
int ws_agent_hold(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                  void (*revoked)(void *), void *arg, struct ws_hold **out, struct ws_error *err);
void ws_agent_drop(void *self, struct ws_hold *hold);
/* Nobody uses them any more; not under lock. */
void ws_agent_models_free(struct ws_agent *a);

#endif
