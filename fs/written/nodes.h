/* Nodes: what the kernel knows of the mount, each by a descriptor of the file below, and the folders at the top, any of
 * which may be or become a version's. One lock over all of it. */
#ifndef WS_FS_WRITTEN_NODES_H
#define WS_FS_WRITTEN_NODES_H
#include "fs/written/written.h"
#include "transports/base/limits.h"
#include <pthread.h>
#include <sys/queue.h>
#include <sys/stat.h>

struct fuse_session;

#define WRITTEN_BUCKETS   4096
#define WRITTEN_OF_MEMORY ((ino_t)1 << 62) /* in the numbers of files, beside those of the folder below */

/* A folder right below the mount. */
struct written_top {
    struct written_top *next;
    char name[256];
    int fd;        /* the folder below */
    unsigned refs; /* nodes in it, and one while it has a name */
    bool is_gone;
    bool is_made_here;  /* through this mount: what was below before keeps its modes */
    bool is_taken;      /* is being read or published: what would change it waits */
    bool is_due;        /* something changed since it was looked at */
    bool is_mapped;     /* it is whole, and a process may go on writing into it by a mapping */
    bool was_published; /* then only what is new of all these parts makes the next version */
    bool is_left_out;   /* as what was written last is no version, and never will be */
    bool new_weights, new_config, new_marker;
    struct ws_version_id id; /* that it was published as */
    uint64_t not_before;     /* ws_clock_ms(), after a failure */
    unsigned failures;
};

struct written_node {
    struct written_node *next; /* of its bucket */
    dev_t dev;
    ino_t ino;
    int fd;        /* O_PATH */
    uint64_t refs; /* look-ups, and open files */
    struct written_top *top;
    char name[256]; /* its last one */
    unsigned open, writers;
    int backing; /* of passthrough, while it is open; 0: none */
    bool is_plain;
};

/* An open file; fi->fh. */
struct written_file {
    LIST_ENTRY(written_file) entry; /* guarded by lock */
    int fd;
    bool writes; /* and is counted in its node's writers */
};

/* What a listing has read; fi->fh. */
struct written_listing {
    LIST_ENTRY(written_listing) entry; /* guarded by lock */
    char *bytes;
    size_t n;
};

struct written {
    const struct ws_written_options *options;
    int lower, memory; /* memory -1: none */
    dev_t memory_dev;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* is_taken, is_due, ends */
    bool ends;
    struct written_node root;
    struct written_node *buckets[WRITTEN_BUCKETS];
    struct written_top *tops;
    const struct written_top *publishing;
    LIST_HEAD(written_files, written_file) files; /* those that are open at the end are never released, */
    LIST_HEAD(written_listings, written_listing) listings; /* nor are these */
    struct fuse_session *session;
    uint64_t last_number; /* of a constant name */
};

/* The look-up of a child: 0 and one more reference, or -errno. */
WS_MUST_USE int written_find(struct written *w, struct written_node *parent, const char *name,
                             struct written_node **out, struct stat *st);
/* The same with the lock, for who has just made it: nobody can have put another in its place through the mount. */
WS_MUST_USE int written_find_locked(struct written *w, struct written_node *parent, const char *name,
                                    struct written_node **out, struct stat *st);
void written_forget(struct written *w, struct written_node *n, uint64_t count);
/* Where a child of that name lies: a descriptor to be used with the name. is_new_folder: one that is to be made. */
int written_folder_of(const struct written *w, const struct written_node *parent, const char *name,
                      bool is_new_folder);
/* Number of a version's folder; false: it is none. */
bool written_is_version(const struct written *w, const struct written_top *top, uint64_t *number);
/* Shown: those of versions that were made here are everybody's to read, and a file of memory has no number of one below. */
void written_show(const struct written *w, const struct written_node *n, struct stat *st);

/* With the lock: waits until nobody reads it; what publishes a part gives way. */
void written_wait(struct written *w, struct written_top *top);
/* With the lock: a file of that name in it was changed. NULL top: nothing. */
void written_note(struct written *w, struct written_top *top, const char *name);
void written_top_drop(struct written *w, struct written_top *top);
/* With the lock: is a file in it open for writing? */
bool written_has_writer(const struct written *w, const struct written_top *top);
void written_free(struct written *w);

#endif
