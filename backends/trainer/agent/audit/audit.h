/* Audit: the agent's side of comparing replicas (audit.c). All under lock. */
#ifndef WS_TRAINER_AGENT_AUDIT_AUDIT_H
#define WS_TRAINER_AGENT_AUDIT_AUDIT_H
#include "backends/trainer/agent/core/state.h"
#include "backends/trainer/tensor/audit.h"

/* A placement was made. / A version is begun. */
void ws_agent_audit_placed(struct ws_agent_model *m);
void ws_agent_audit_begin(struct ws_agent_model *m);
/* Is the version on its way audited? */
bool ws_agent_audit_is_running(const struct ws_agent_model *m);
/* What the rank is to hash, for the reply to its begin. New reference. */
json_t *ws_agent_audit_request(const struct ws_agent_model *m, const struct ws_session *c);
/* Records the hashes in the body of its commit. -EINVAL, -ENOMEM. */
WS_MUST_USE int ws_agent_audit_record(struct ws_agent_model *m, const struct ws_session *c,
                                      const json_t *body, struct ws_error *err);
/* The hashes that this node's ranks have sent. */
struct ws_audit *ws_agent_audit_local_hashes(const struct ws_agent_model *m);
/* Compares the hashes of all nodes' ranks; all_hashes NULL: of this node's. -ECANCELED: replicas differ, and
 * the version is to be abandoned for the reason in err. */
WS_MUST_USE int ws_agent_audit_check(struct ws_agent_model *m, struct ws_audit *all_hashes, uint64_t version,
                                     struct ws_error *err);
/* How the version ended, where no slot of this node had it. */
void ws_agent_audit_published(struct ws_agent_model *m);
void ws_agent_audit_discarded(struct ws_agent_model *m);

#endif
