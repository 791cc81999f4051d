/* The ranks of this node, one session a connection: whether one may go on, and what follows when it ends. All
 * under the agent's lock. Called by what ranks ask (agent/ranks, agent/gpu) and by groups of nodes. */
#ifndef WS_TRAINER_AGENT_CORE_SESSIONS_H
#define WS_TRAINER_AGENT_CORE_SESSIONS_H
#include "backends/trainer/agent/core/state.h"

/* It is no rank any more; how: in a sentence, "ended". */
void ws_session_forget(struct ws_agent *a, struct ws_session *c, const char *how);
/* As ws_agent_wait, for a call of this rank: false also where its connection has ended. True, now and then,
 * where nothing has changed: the caller looks again. */
bool ws_session_wait(struct ws_agent *a, const struct ws_session *c, uint64_t deadline_ns);
/* The lineage that the group writes, which the first of its ranks settles. */
WS_MUST_USE int ws_session_set_run(struct ws_agent_model *m, const char *run, bool new_run, bool first,
                                   struct ws_error *err);
/* Is it one of the group that has places? -ESTALE; -ECANCELED: its version was given up, which it is told
 * once. */
WS_MUST_USE int ws_session_check(struct ws_session *c, struct ws_error *err);
/* Versions up to this one were given up on some node: who has not begun it hears so at its begin. */
void ws_session_note_late(struct ws_agent_model *m, uint64_t version);
/* -ECANCELED: it begins one of them, which it is told once. */
WS_MUST_USE int ws_session_check_late(struct ws_session *c, uint64_t version, struct ws_error *err);
/* May this version be published? -EEXIST. */
WS_MUST_USE int ws_session_check_version(const struct ws_agent_model *m, uint64_t version, const char *run,
                                         struct ws_error *err);

#endif
