/* Version cache: what the FUSE front keeps beside a version: its tensors in name order, the backing ids of
 * files that are passed through, the names of files in link mode. Made at first use; the store's reclaim hook
 * frees it. */
#ifndef WS_FS_FUSE_VERSION_CACHE_H
#define WS_FS_FUSE_VERSION_CACHE_H
#include "fs/fuse/fs.h"

struct ws_tensor_ref {
    uint32_t file;
    uint32_t index; /* in that file's header */
};
struct ws_version_cache {
    struct ws_version_cache *next;
    uint64_t id;
    size_t n_files;
    int *backing;         /* one a file; 0: none yet. guarded by fs->lock */
    bool *linked;         /* guarded by fs->lock */
    pthread_mutex_t lock; /* of making the table */
    size_t n_tensors;
    struct ws_tensor_ref *tensors; /* by file name; set once, NULL before */
};

/* Makes the table of tensors; -EAGAIN while a header is not here. */
WS_MUST_USE int ws_version_cache_tensors(struct ws_fs *fs, struct ws_version *v,
                                         struct ws_version_cache **out);
/* Tensor i of the table. */
const struct ws_tensor *ws_version_cache_tensor(struct ws_version *v, const struct ws_version_cache *vc,
                                                size_t i, size_t *file);
/* Index of a file name below tensors/; -1. */
long ws_version_cache_find(struct ws_version *v, const struct ws_version_cache *vc, const char *name);
/* Closes what former daemons (life.h) had passed through, up to that number: that frees the memory behind it, and files that are open go on. */
void ws_version_cache_close_former(struct ws_fs *fs, int highest);
/* The one backing id of a complete file, which the first use registers. Positive, or -errno; -EPIPE: the broker is gone, and the file
 * has none. */
WS_MUST_USE int ws_version_cache_backing(struct ws_fs *fs, struct ws_version *v, size_t file);
/* Gives a complete file its name in link mode's tmpfs: out is the name there. 0, -EXDEV: it must be served.
 */
WS_MUST_USE int ws_version_cache_link(struct ws_fs *fs, struct ws_version *v, size_t file, char out[64]);
/* Closes the backing ids of a version that no process has open: they are registered again at its next use. */
void ws_version_cache_close(struct ws_fs *fs, struct ws_version *v);
/* ws_store_set_reclaim's hook: closes ids, removes names, has the kernel forget the folder. */
void ws_version_cache_release(void *fs, struct ws_version *v);
void ws_version_cache_free_all(struct ws_fs *fs);
/* Can this session register a backing file? Tried with one; 0 or -errno. */
int ws_version_cache_probe(struct ws_fs *fs);

#endif
