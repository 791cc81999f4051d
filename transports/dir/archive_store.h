/* Archive store: where an archive lies, behind one table: a folder (archive_folder.c), or a bucket of an object store
 * (archive_bucket.c). What is in it is called by paths as ws_archive_path makes them, ROOT/v1/...; of a bucket the
 * root is its URL. Errors are -errno with a sentence that names the path; -ENOENT of a read: there is no such thing.
 *
 * Reading is thread safe; a reader belongs to one thread. One thread writes. */
#ifndef WS_TRANSPORTS_DIR_ARCHIVE_STORE_H
#define WS_TRANSPORTS_DIR_ARCHIVE_STORE_H
#include "transports/dir/archive_listing.h"
#include <stdatomic.h>
#include <stddef.h>

struct ws_archive_store_options {
    const char *below;       /* a folder: nothing else is opened (below.h); NULL: anything */
    bool insecure;           /* a bucket by http:// beyond loopback */
    const char *ca_file;     /* a bucket: NULL: the system's authorities */
    const atomic_bool *stop; /* ends reads; NULL: never */
};

struct ws_archive_store { /* the head of each kind's own struct */
    const struct ws_archive_store_ops *ops;
    char root[WS_ARCHIVE_ROOT_BYTES];
};
struct ws_archive_reader {
    struct ws_archive_store *store;
};
struct ws_archive_file { /* that is being written */
    struct ws_archive_store *store;
};

/* Takes bytes as they come, in their order. */
struct ws_archive_sink {
    unsigned char *(*room)(void *arg, size_t *n); /* where the next ones go, and how many at most */
    int (*came)(void *arg, size_t n,
                struct ws_error *err); /* they are there; not 0 ends the read with that */
    void *arg;
    const atomic_bool *cancel; /* NULL: never */
};

#define WS_ARCHIVE_STAMP_BYTES 128

struct ws_archive_store_ops {
    unsigned poll_ms; /* how often a mount looks for new versions */
    bool is_in_place; /* a version is written where readers look for it: what has its number goes before */
    int (*open)(const char *root, const struct ws_archive_store_options *options,
                struct ws_archive_store **out, struct ws_error *err);
    void (*close)(struct ws_archive_store *s);

    /* All of a small file, NUL-terminated, malloc'ed. stamp: what it was when it was last read, and becomes what it is
     * now; where it is still that, *text is NULL. Empty: read in any case; NULL: likewise. */
    int (*get)(struct ws_archive_store *s, const char *path, size_t most, char stamp[WS_ARCHIVE_STAMP_BYTES],
               const atomic_bool *cancel, char **text, size_t *n, struct ws_error *err);
    int (*reader_open)(struct ws_archive_store *s, struct ws_archive_reader **out, struct ws_error *err);
    void (*reader_close)(struct ws_archive_reader *r);
    /* Bytes from `at` on, n of them; UINT64_MAX: to the end. 0 where the file ends before that, too. */
    int (*read)(struct ws_archive_reader *r, const char *path, uint64_t at, uint64_t n,
                const struct ws_archive_sink *sink, struct ws_error *err);

    /* Makes the place where it is missing and becomes its only writer. -EBUSY: another process is. */
    int (*acquire)(struct ws_archive_store *s, struct ws_error *err);
    /* Is it still? -EBUSY: another one is; -ESTALE: another one was meanwhile, and has ended: what was read is not what
     * is there any more, until it is acquired again. NULL: always. */
    int (*hold)(struct ws_archive_store *s, struct ws_error *err);
    /* After the listing was read, or there was none: removes what a crash left, or lists it where it is whole. */
    int (*recover)(struct ws_archive_store *s, struct ws_archive_listing *listing, struct ws_error *err);
    /* Replaces a small file: readers see the old or the new one. -ESTALE: of the listing, another process has written it
     * since it was read here. */
    int (*put)(struct ws_archive_store *s, const char *path, const void *bytes, size_t n,
               struct ws_error *err);
    int (*check_space)(struct ws_archive_store *s, const char *what, uint64_t bytes,
                       struct ws_error *err); /* may be NULL */
    /* The folder into which the files of a version are written from now on. */
    int (*begin)(struct ws_archive_store *s, const char *model, uint64_t number,
                 char folder[WS_ARCHIVE_PATH_BYTES], struct ws_error *err);
    /* size: how many bytes it will have at most. */
    int (*file_new)(struct ws_archive_store *s, const char *path, uint64_t size, const atomic_bool *stop,
                    struct ws_archive_file **out, struct ws_error *err);
    int (*file_write)(struct ws_archive_file *f, const void *bytes, size_t n, struct ws_error *err);
    /* Frees it; where rc is 0 the file is then durable. Returns rc, or why it failed. */
    int (*file_end)(struct ws_archive_file *f, int rc, struct ws_error *err);
    /* The version is whole: its files are where readers look for them. Or it is not: they go. */
    int (*commit)(struct ws_archive_store *s, const char *model, uint64_t number, struct ws_error *err);
    void (*abandon)(struct ws_archive_store *s, const struct ws_manifest *m);
    /* Of a version that is no longer listed; what cannot be removed is at the next recovery. */
    int (*remove)(struct ws_archive_store *s, const char *model, uint64_t number, struct ws_error *err);
};

extern const struct ws_archive_store_ops ws_archive_folder_ops, ws_archive_bucket_ops;

/* By its root: a URL of a bucket (s3://, gs://), else a folder's path; no other scheme. options NULL: defaults. */
WS_MUST_USE int ws_archive_store_open(struct ws_archive_store **out, const char *root,
                                      const struct ws_archive_store_options *options, struct ws_error *err);
void ws_archive_store_close(struct ws_archive_store *s); /* NULL is fine */

#endif
