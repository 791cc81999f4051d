/* Dir scan: which checkpoints a folder has. They are its numbered subfolders (or those of its subfolders, one a
 * model); a folder that is itself a checkpoint is version 1. A subfolder that is no whole checkpoint yet is left
 * out until it is. Where the folder cannot be read, what the last scan found stays.
 *
 * Not thread safe: the source's lock guards versions, seq and complaints; nothing else changes. */
#ifndef WS_TRANSPORTS_DIR_DIR_SCAN_H
#define WS_TRANSPORTS_DIR_DIR_SCAN_H
#include "transports/base/vector.h"
#include "transports/format/folder.h"
#include "transports/format/manifest.h"
#include <sys/stat.h>
#include <time.h>

#define WS_DIR_COMPLAINTS 64

struct ws_dir_version {
    char *model, *path;
    uint64_t number;
    dev_t dev; /* of the folder when it was checked, as what follows */
    ino_t ino;
    struct timespec mtime;
    uint64_t total_bytes;
    struct ws_manifest *manifest; /* NULL until it was requested */
    struct ws_stamp *stamps;      /* of its files, when they were hashed */
    struct ws_dir_version *was;   /* during a scan: the one of the scan before, whose all of this is */
};
WS_VECTOR(ws_dir_versions, struct ws_dir_version);

struct ws_dir_scan {
    char *root, *name; /* name: the root's last component, the name of a model whose versions lie in it */
    char *below;       /* nothing outside of it is opened; NULL: anything */
    int inotify;
    uint64_t complaints[WS_DIR_COMPLAINTS]; /* hashes of the last ones, each of which is logged once */
    size_t n_complaints;
    struct ws_dir_versions versions; /* by model, then number */
    uint64_t seq;                    /* 0: not scanned yet; grows when a scan finds something else */
};

/* Owns root, which is absolute, also on failure. -ENOMEM: no memory, or no inotify instance is left; free it
 * nevertheless. */
WS_MUST_USE int ws_dir_scan_init(struct ws_dir_scan *s, char *root, const char *below);
void ws_dir_scan_free(struct ws_dir_scan *s);
/* Reads the folder anew. On failure versions and seq stay. */
WS_MUST_USE int ws_dir_scan(struct ws_dir_scan *s, struct ws_error *err);
/* Valid until the next scan; or NULL. */
struct ws_dir_version *ws_dir_scan_find(const struct ws_dir_scan *s, const char *model, uint64_t number);
/* Opens a file or folder in the root; the caller closes it. Any thread. */
WS_MUST_USE int ws_dir_scan_open(const struct ws_dir_scan *s, const char *path, bool folder, struct stat *st,
                                 struct ws_error *err);
/* Waits up to ms for a change in the folder; true: there was one. Any thread. */
bool ws_dir_scan_wait(const struct ws_dir_scan *s, unsigned ms);

#endif
