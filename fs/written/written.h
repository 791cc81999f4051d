/* Written: a folder that takes writes as any other, and whose folders of versions are published as they become whole
 * (wsync-share(1)). What this room's files share. */
#ifndef WS_FS_WRITTEN_WRITTEN_H
#define WS_FS_WRITTEN_WRITTEN_H
#include "fs/written/lower.h"
#include <pthread.h>
#include <stdint.h>
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

/* A folder that is whole. Returns 0, or -errno with err. One at a time, on any thread; path is the folder's, of the daemon's own. */
typedef int ws_written_publish(void *arg, const char *name, uint64_t number, const char *path,
                               struct ws_error *err);

struct ws_written_node;
struct ws_written_folder;
struct ws_written {
    struct ws_lower lower;
    const char *marker; /* NULL: there is none */
    ws_written_publish *publish;
    void *arg;
    struct fuse_session *session;
    pthread_mutex_t lock, publishing; /* publishing is taken first */
    struct ws_written_folder *folders;
    struct ws_written_node **nodes; /* node.h */
    size_t n_nodes;
    bool passes; /* files are read and written by the kernel; guarded by lock */
};

extern const struct fuse_lowlevel_ops ws_written_ops; /* of a session with a ws_written */
WS_MUST_USE int ws_written_init(struct ws_written *w, const char *dir, const struct ws_pattern *pattern,
                                struct ws_error *err);
void ws_written_free(struct ws_written *w); /* the session is over */

#endif
