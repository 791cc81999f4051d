/* Side files: what programs of this node put beside the files of a version, and what they removed, in a mount with names=.
 * Frameworks touch a marker in the folder that they load, copy a tokenizer into it, and remove it when they are done. All
 * that is of this node alone: it is in this mount's memory, and gone with the mount, or with the version.
 *
 * A version's own files are never hidden by others, nor written to. A folder that was removed stays hidden for as long as
 * there is that version: its bytes stay for those that have them mapped, and for the mount, as base of the next delta and
 * below MODEL/N. Any thread; of other locks only the store's is taken under this one. */
#ifndef WS_FS_FUSE_SIDE_H
#define WS_FS_FUSE_SIDE_H
#include "fs/store/store.h"
#include <pthread.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>

#define WS_MAX_SIDE_BYTES                                                                                    \
    (64UL << 20) /* of a mount, with WS_SIDE_FILE_BYTES for each file: so there are 4096 at most */
#define WS_SIDE_FILE_BYTES (16UL << 10)

struct ws_side_folder;
struct ws_side {
    pthread_mutex_t lock;
    /* guarded by lock */
    LIST_HEAD(ws_side_folders, ws_side_folder) folders;
    uint64_t next_id, used_bytes;
};

void ws_side_init(struct ws_side *s);
void ws_side_free(struct ws_side *s); /* also of files that are open: nobody reads any more */

/* A file of the version's folder, by its name; 0: there is none. */
uint64_t ws_side_find(struct ws_side *s, struct ws_version *v, const char *name);
/* *id: of the new file. -EEXIST, -ENOSPC, -ENOMEM. The caller has seen that the version has no file of that name. */
WS_MUST_USE int ws_side_create(struct ws_side *s, struct ws_version *v, const char *name, uint64_t *id);
/* Those below are of a file, and -ENOENT where it is gone. hold: it stays, without a name too, until let go. */
WS_MUST_USE int ws_side_hold(struct ws_side *s, uint64_t id);
void ws_side_let_go(struct ws_side *s, uint64_t id);
WS_MUST_USE int ws_side_attr(struct ws_side *s, uint64_t id, struct stat *st); /* size and times */
WS_MUST_USE int ws_side_resize(struct ws_side *s, uint64_t id, uint64_t size);
WS_MUST_USE int ws_side_set_mtime(struct ws_side *s, uint64_t id, struct timespec mtime);
/* *out: malloc'ed; *n bytes of it, fewer at the end of the file. */
WS_MUST_USE int ws_side_read(struct ws_side *s, uint64_t id, uint64_t at, size_t size, char **out, size_t *n);
WS_MUST_USE int ws_side_write(struct ws_side *s, uint64_t id, uint64_t at, const char *bytes, size_t n);

/* -ENOENT. */
WS_MUST_USE int ws_side_unlink(struct ws_side *s, struct ws_version *v, const char *name);
/* What is called so afterwards is gone, unless is_new: then -EEXIST. -ENOENT. */
WS_MUST_USE int ws_side_rename(struct ws_side *s, struct ws_version *v, const char *from, const char *to,
                               bool is_new);
/* A file of the version itself, or with name NULL its folder, is hidden from now on, which no limit prevents. -ENOTEMPTY:
 * the folder has files of ours; those of the version are the caller's to look at. */
WS_MUST_USE int ws_side_hide(struct ws_side *s, struct ws_version *v, const char *name);
bool ws_side_hides(struct ws_side *s, struct ws_version *v, const char *name); /* NULL: the folder */
/* Calls visit with each file of the folder, with the lock held. */
void ws_side_each(struct ws_side *s, struct ws_version *v,
                  void (*visit)(void *arg, const char *name, uint64_t id), void *arg);
/* Drops what is of versions that the model has no more. */
void ws_side_prune(struct ws_side *s, struct ws_model *m);

#endif
