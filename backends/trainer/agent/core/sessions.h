/* Sessions: the ranks of this node, one session a connection: whether a rank may go on, and what follows when
 * it ends. All under the agent's lock. Called by ranks' requests (agent/ranks, agent/gpu) and by groups of
 * nodes. */
#ifndef WS_TRAINER_AGENT_CORE_SESSIONS_H
#define WS_TRAINER_AGENT_CORE_SESSIONS_H
#include "backends/trainer/agent/core/state.h"

/* The session leaves its model; how: the verb of a sentence about the rank, "ended". */
void ws_session_end(struct ws_agent *a, struct ws_session *c, const char *how);
/* As ws_agent_wait, for a request of this rank: false also where its connection has ended. Returns true now and
 * then although nothing has changed; the caller checks again. */
bool ws_session_wait(struct ws_agent *a, const struct ws_session *c, uint64_t deadline_ns);
/* Resolves the lineage that the group writes; the first of its ranks decides. -EINVAL, -EEXIST, -EPROTO. */
WS_MUST_USE int ws_session_set_lineage(struct ws_agent_model *m, const char *lineage, bool new_run,
                                       bool first, struct ws_error *err);
/* 0: the rank is in the group and has places. -ESTALE; -ECANCELED, once: its version was given up. */
WS_MUST_USE int ws_session_check(struct ws_session *c, struct ws_error *err);
/* A node has abandoned versions up to this one: ranks that have not begun it get that error at their begin. */
void ws_session_record_late(struct ws_agent_model *m, uint64_t version);
/* The same for a rank that comes back after the version was given up. */
void ws_session_record_missed(const struct ws_agent_model *m, struct ws_session *c,
                              const struct ws_version_id *given_up);
/* -ECANCELED, once: the rank begins such a version. */
WS_MUST_USE int ws_session_check_late(struct ws_session *c, uint64_t version, struct ws_error *err);
/* May this version be published? -EEXIST. */
WS_MUST_USE int ws_session_check_version(const struct ws_agent_model *m, uint64_t version,
                                         const char *lineage, struct ws_error *err);

#endif
