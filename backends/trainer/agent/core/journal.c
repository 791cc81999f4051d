#include "backends/trainer/agent/core/journal.h"
#include "transports/base/audit_log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* The first rank that is still there stands for all: they are of one trainer. */
static const struct ws_identity *writer_of(const struct ws_agent_model *m)
{
    for (unsigned r = 0; m->ranks && r < m->world_size; r++)
        if (m->ranks[r])
            return &m->ranks[r]->peer->who;
    return NULL;
}

void ws_journal_version(const struct ws_agent_model *m, const char *what, const char *name, uint64_t version,
                        const char *why)
{
    const struct ws_identity *who = writer_of(m);
    char to[WS_MAX_NAME + 32];
    snprintf(to, sizeof(to), "%s/%" PRIu64, name, version);
    ws_audit_log_write(&(struct ws_audit_entry){.what = what,
                                                .who = who ? who->name : NULL,
                                                .from = who ? who->from : NULL,
                                                .to = to,
                                                .outcome = why ? WS_AUDIT_FAILED : WS_AUDIT_DONE,
                                                .error = why,
                                                .is_logged = true});
}

void ws_journal_request(const struct ws_identity *who, const char *what, const char *to, int rc,
                        const struct ws_error *err)
{
    ws_audit_log_write(&(struct ws_audit_entry){.what = what,
                                                .who = who->name,
                                                .from = who->from,
                                                .to = to,
                                                .outcome = rc == -EPERM ? WS_AUDIT_REFUSED
                                                           : rc < 0     ? WS_AUDIT_FAILED
                                                                        : WS_AUDIT_DONE,
                                                .error = rc < 0 ? err->text : NULL});
}
