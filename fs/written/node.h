/* Node: what the kernel knows of a file or folder of a shared folder, by a descriptor that stays right however it is
 * renamed. The kernel's number of it is its address. */
#ifndef WS_FS_WRITTEN_NODE_H
#define WS_FS_WRITTEN_NODE_H
#include "fs/written/written.h"
#include <sys/stat.h>

struct ws_written_node {
    struct ws_written_node *next;
    dev_t dev;
    ino_t ino;
    int fd;                           /* by O_PATH */
    uint64_t n_lookups;               /* guarded by lock, as the rest is */
    struct ws_written_folder *folder; /* it lies in, or is; NULL: it lies below */
    unsigned n_opens;
    int backing; /* while it is open; 0: none */
};

/* A file that is open. */
struct ws_written_open {
    int fd;
    bool writes, flushed;
};

/* NULL: the top folder. */
struct ws_written_node *ws_written_node_of(fuse_ino_t ino);
/* A descriptor of a folder; name: of what is looked up or made in it. Borrowed. */
int ws_written_node_folder(struct ws_written *w, fuse_ino_t parent, const char *name);
/* The kernel learns of one more look-up of a name. 0 or -errno. */
WS_MUST_USE int ws_written_node_look(struct ws_written *w, fuse_ino_t parent, const char *name,
                                     struct fuse_entry_param *out);
int ws_written_node_stat(struct ws_written *w, fuse_ino_t ino, struct stat *out);
/* "/proc/self/fd/N" of it, by which calls follow its descriptor. */
void ws_written_node_path(struct ws_written *w, fuse_ino_t ino, char out[32]);
void ws_written_node_forget(struct ws_written *w, fuse_ino_t ino, uint64_t n);
/* It was opened, and was closed: the kernel's forgetting and its last close may come in either order. opened returns the id by which
 * the kernel reads and writes it itself, where that is possible; fd: of the file. 0: it does not. */
int ws_written_node_opened(struct ws_written *w, fuse_ino_t ino, const struct ws_written_open *o);
void ws_written_node_flushed(struct ws_written *w, fuse_ino_t ino, struct ws_written_open *o);
void ws_written_node_closed(struct ws_written *w, fuse_ino_t ino, const struct ws_written_open *o);
void ws_written_node_free_all(struct ws_written *w);

#endif
