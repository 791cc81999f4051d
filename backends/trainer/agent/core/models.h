/* Models: the models of an agent and the life of their versions. A version is on its way (m->writing) until it
 * is published, abandoned or discarded. All under the agent's lock where nothing else is said. Called by ranks'
 * requests, the finisher and groups of nodes. */
#ifndef WS_TRAINER_AGENT_CORE_MODELS_H
#define WS_TRAINER_AGENT_CORE_MODELS_H
#include "backends/trainer/agent/core/state.h"

/* NULL: there is none / there are too many, or no memory. */
struct ws_agent_model *ws_agent_model_find(struct ws_agent *a, const char *model);
struct ws_agent_model *ws_agent_model_find_or_add(struct ws_agent *a, const char *model);
/* Gives up the version on its way, where ranks still write it. why: ends a sentence, and names the rank. */
void ws_agent_model_abandon(struct ws_agent *a, struct ws_agent_model *m, const char *why);
/* Records why the version will be or was given up; ranks read it in the errors of their requests. */
void ws_agent_model_record_why(struct ws_agent_model *m, const char *why);
/* Publishes the sealed version on its way; the caller then calls ws_agent_announce. */
void ws_agent_model_publish(struct ws_agent *a, struct ws_agent_model *m);
/* A whole version that no rank of this agent has written, in a slot that no model has: the model, which has fewer slots than it may, serves
 * it. Its manifest is the slot's. What the model's newest version is does not change. */
void ws_agent_model_adopt(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
/* The version was announced: it is the model's newest, unless a higher one of its lineage is. */
void ws_agent_model_raise(struct ws_agent_model *m, uint64_t version, const char *lineage);
/* Publishes a version that is not in a slot yet, likewise. */
void ws_agent_model_publish_pending(struct ws_agent *a, struct ws_agent_model *m, uint64_t version,
                                    const char *lineage);
/* Retires the slot of the version on its way instead. */
void ws_agent_model_discard(struct ws_agent *a, struct ws_agent_model *m);
/* Has the model listed no longer, and frees its slots: those that readers still have once these have gone and it is
 * called again. The model itself stays, for threads that know it; the next version of that name begins anew. -EBUSY:
 * a version is written, or processes of this host have the memory of one. */
WS_MUST_USE int ws_agent_model_remove(struct ws_agent *a, struct ws_agent_model *m, struct ws_error *err);
/* At the end, when no other thread uses them; not under lock. */
void ws_agent_models_free(struct ws_agent *a);

#endif
