/* The agent's side of audits: replicas are compared (audit.c). All under lock. */
#ifndef WS_TRAINER_AGENT_AUDIT_AUDIT_H
#define WS_TRAINER_AGENT_AUDIT_AUDIT_H
#include "backends/trainer/agent/core/state.h"

/* A placement was made. / A version is begun. */
void ws_agent_audit_placed(struct ws_agent_model *m);
void ws_agent_audit_begin(struct ws_agent_model *m);
/* What the rank is to hash, for the reply of its begin. / What it says in the body of its commit. */
json_t *ws_agent_audit_ask(const struct ws_agent_model *m, const struct ws_session *c);
WS_MUST_USE int ws_agent_audit_take(struct ws_agent_model *m, const struct ws_session *c, const json_t *body,
                                    struct ws_error *err);
/* Compares what this node's ranks have said, or (said) what those of all nodes have. -ECANCELED: replicas
 * differ, and the version is to be abandoned for the reason in err. */
WS_MUST_USE int ws_agent_audit_check(struct ws_agent_model *m, struct ws_audit *said, uint64_t version,
                                     struct ws_error *err);
/* How the version ended, where no slot of this node had it. */
void ws_agent_audit_published(struct ws_agent_model *m);
void ws_agent_audit_dropped(struct ws_agent_model *m);

#endif
