/* Journal: what the agent's rooms write to the audit log (transports/base/audit_log.h). Under the agent's lock where
 * a model is named. */
#ifndef WS_TRAINER_AGENT_CORE_JOURNAL_H
#define WS_TRAINER_AGENT_CORE_JOURNAL_H
#include "backends/trainer/agent/core/state.h"

/* A version of the group's model was announced ("publish") or given up ("abandon"): by its ranks. why: NULL where it
 * went well. name: the model that the entry names: m's own, or its part's. */
void ws_journal_version(const struct ws_agent_model *m, const char *what, const char *name, uint64_t version,
                        const char *why);
/* A request has ended so: rc 0, or -errno with err. */
void ws_journal_request(const struct ws_identity *who, const char *what, const char *to, int rc,
                        const struct ws_error *err);

#endif
