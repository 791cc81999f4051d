/* Audit log: who did what, from where, with what outcome: a line of the log each, and a line of JSON of a file, where
 * one is open. One file a process, as its log is one.
 *
 *     {"time":"2026-11-24T18:54:31.123Z","by":"agent","pid":7,"what":"release begins","who":"trainer",
 *      "from":"10.0.0.3:4711","to":"actor/42","outcome":"done","error":""}
 *
 *     by       which program: agent, mount:/wsync
 *     what     publish, abandon, release begins, release committed, release aborted, remove, refused, tokens, ctl,
 *              switch, lost
 *     who      an identity (access/identity.h), "" where it is not known, or nobody did it
 *     from     an address and port; "pid N uid N" of a process of this host; "" where nobody did it
 *     outcome  done, failed, refused; with an error for the last two
 *
 * Texts are made printable and quoted, so that no name or path can forge a line or a field. No secret is in them.
 *
 * Nobody who writes waits for the disk: lines are queued, and a thread writes each with one write(2) to the end of the
 * file. So a line is whole also where several processes write to it. Lines that the queue or the disk has no room for
 * are lost: the log says so once, ws_audit_log_lost counts them, and so does the next line that there is room for. A
 * file that was renamed or removed is made anew, for its owner only; one that was truncated is written on. */
#ifndef WS_TRANSPORTS_BASE_AUDIT_LOG_H
#define WS_TRANSPORTS_BASE_AUDIT_LOG_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum ws_audit_outcome { WS_AUDIT_DONE, WS_AUDIT_FAILED, WS_AUDIT_REFUSED };

struct ws_audit_entry {
    const char *what, *who, *from, *to; /* NULL: "" */
    enum ws_audit_outcome outcome;
    const char *error; /* NULL: none */
    bool is_logged;    /* the log has it already */
};

/* Opens the file; before other threads of the process write entries. by: as above. The errors of files; -EINVAL: it is
 * no plain file, or one is open. */
WS_MUST_USE int ws_audit_log_open(const char *path, const char *by, struct ws_error *err);
/* Starts its thread, which writes what was queued since; nothing where no file is open. A thread has the capabilities
 * of its maker, so a daemon that gives some up does so between the two. -EAGAIN. */
WS_MUST_USE int ws_audit_log_start(struct ws_error *err);
/* Writes what is queued, and closes the file; no other thread writes entries any more. Nothing where none is open. */
void ws_audit_log_close(void);

void ws_audit_log_write(const struct ws_audit_entry *e); /* any thread, also under locks */
uint64_t ws_audit_log_lost(void);                        /* lines so far */

#endif
