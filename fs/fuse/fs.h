/* The FUSE front: what its files share. One mount a process.
 *
 * Inode numbers are computed, never stored and never used again: object id << 36 | kind << 31 | index, where
 * ids of models and versions are unique in the mount's life. So a version of 100,000 tensors costs the kernel
 * and the daemon nothing until it is looked at, and a cached inode can never become one that passes through.
 */
#ifndef WS_FS_FUSE_FS_H
#define WS_FS_FUSE_FS_H
#include "fs/engines/control.h"
#include "fs/fuse/names.h"
#include "fs/fuse/options.h"
#include "fs/fuse/place.h"
#include "fs/fuse/side.h"
#include "fs/store/store.h"
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
#define WS_HAVE_PASSTHROUGH 1
#else
#define WS_HAVE_PASSTHROUGH 0
#endif

enum ws_tree_kind {
    WS_KIND_ROOT,      /* id 0, index FUSE_ROOT_ID */
    WS_KIND_ROOT_VIEW, /* index: enum ws_view */
    WS_KIND_MODEL,
    WS_KIND_MODEL_VIEW, /* index: enum ws_view */
    WS_KIND_MODEL_LINK, /* index: enum ws_model_link */
    WS_KIND_VERSION,
    WS_KIND_FILE, /* complete: passed through, or cached where that cannot be; index: file */
    WS_KIND_FILL, /* not complete, open=stream: cached, reads wait for their blocks */
    WS_KIND_LINK, /* complete, link mode: a symbolic link into the tmpfs */
    WS_KIND_TENSORS,
    WS_KIND_TENSOR, /* index: in the version's sorted table */
    WS_KIND_META,   /* .wsync */
    WS_KIND_META_VIEW,
    WS_KIND_REGIONS, /* where link mode mounts its tmpfs */
    WS_KIND_CHANGES, /* .wsync/changes-from-BASE; index: the base's serial */
    WS_KIND_VERSION_LINK, /* N@RUN of the live run, which leads to N: what has the longer name keeps it, whichever run lives */
    WS_KIND_SIDE, /* side.h: its number is ws_side_number */
};
enum ws_model_link { WS_LINK_LATEST, WS_LINK_CURRENT, WS_LINK_PREVIOUS, WS_LINK_COUNT };
#define WS_REGIONS_NAME ".regions"

struct ws_fs {
    struct ws_mount_options options;
    struct ws_store *store;
    struct ws_control *control;
    struct ws_probes *probes; /* NULL: the mount has no option listen= */
    struct ws_relay *relay;   /* NULL: it serves no other mounts */
    struct ws_lazy *lazy;     /* NULL: without open=lazy */
    struct ws_heart *heart;   /* NULL: without --supervised */
    struct fuse_session *session;
    struct ws_names names;
    struct ws_side side;
    struct ws_life *life;     /* NULL: without --supervised */
    struct ws_broker *broker; /* NULL: without run-as= */
    struct ws_place place;    /* where the session is mounted, once it is */
    int read_ahead;           /* the kernel's file of the mount's read-ahead; -1: there is none */
    int settings;             /* the lock on them; -1: none, or control has ended */
    int beacon;               /* -1: none */
    enum ws_reads reads;      /* what is in use; never WS_READS_AUTO */
    atomic_bool has_begun;    /* the kernel has said how it talks */
    atomic_bool
        has_ended; /* its requests are not read any more; libfuse forgets that the session has exited */
    atomic_bool has_links; /* link mode's tmpfs is below the mount: before that a link would lead nowhere */
    char mode_text[256];   /* the same for status, with the reason of a fallback */
    struct timespec start; /* times of all files */
    uint64_t
        sources_until_ns; /* how long a daemon that took over waits for what they list (request.h); 0: not at all */
    pthread_mutex_t lock;
    struct ws_version_cache *version_caches;                 /* guarded by lock (version_cache.c) */
    LIST_HEAD(ws_open_files, ws_open_file) open_files;       /* guarded by lock (ops_data.c) */
    LIST_HEAD(ws_open_folders, ws_open_folder) open_folders; /* guarded by lock (ops_meta.c) */
    struct ws_invalidator *invalidator;
    _Atomic uint64_t last_lookup; /* of a file that takes commands (tree.c), without a life */
};

fuse_ino_t ws_ino(uint64_t id, enum ws_tree_kind kind, uint64_t index);
enum ws_tree_kind ws_ino_kind(fuse_ino_t ino);
uint64_t ws_ino_id(fuse_ino_t ino);
uint64_t ws_ino_index(fuse_ino_t ino);
/* Of a side file. */
fuse_ino_t ws_side_ino(uint64_t number);
uint64_t ws_side_number(fuse_ino_t ino);

/* The mount's operations (ops_meta.c, ops_data.c). */
extern const struct fuse_lowlevel_ops ws_fs_ops;
void ws_fs_poll_event(void *fs, struct ws_model *model); /* ws_control_on_event's listener */

void ws_fs_close_folders(struct ws_fs *fs);
/* Who opened a file of the version that is still open, each once; at most max. */
size_t ws_fs_openers(struct ws_fs *fs, const struct ws_version *v, pid_t *out, size_t max);
void ws_fs_close_all(struct ws_fs *fs); /* what is still open, once no request comes any more */

/* ops_data.c, for the table in ops_meta.c */
void ws_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ws_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void ws_op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
                 struct fuse_file_info *fi);
void ws_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ws_op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph);

#endif
