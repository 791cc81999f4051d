/* Written session: mounts a shared folder (fs/written) over itself, and serves it until it ends. */
#ifndef WS_FS_WRITTEN_SESSION_H
#define WS_FS_WRITTEN_SESSION_H
#include "fs/written/written.h"

struct ws_written_session_options {
    const char *dir; /* absolute */
    const struct ws_pattern *pattern;
    const char *marker; /* NULL: there is none */
    ws_written_publish *publish;
    void *arg;
    void (*ready)(void *arg); /* the folder takes writes */
};
/* Until a signal (SIGTERM, SIGINT, SIGHUP) or an unmount; what is in folders of versions is gone then. 0, or -errno with err. */
WS_MUST_USE int ws_written_session_run(const struct ws_written_session_options *o, struct ws_error *err);

#endif
