/* Version folder: the folder of a version, opened for reading pieces of its files. A mount's has a manifest, which names the version.
 * Reads give errors where mapped memory would end the process. Any thread, once it is open. */
#ifndef WS_TRANSPORTS_PATCH_VERSION_FOLDER_H
#define WS_TRANSPORTS_PATCH_VERSION_FOLDER_H
#include "transports/format/folder.h"
#include "transports/format/manifest.h"

struct ws_version_folder {
    const char *path; /* the caller's */
    struct ws_folder *folder;
    struct ws_manifest *manifest; /* NULL: it is no mount's */
    int *fds;                     /* by file of the folder; -1: no safetensors file */
};

/* The manifest of a folder that a mount shows, which the caller frees; *out NULL: there is none. None of its files is opened. */
WS_MUST_USE int ws_version_folder_manifest(const char *path, struct ws_manifest **out, struct ws_error *err);
/* -ENOENT, -EBADMSG, ... as ws_folder_open's; -EBADMSG: the manifest is another folder's. */
WS_MUST_USE int ws_version_folder_open(struct ws_version_folder *c, const char *path, struct ws_error *err);
void ws_version_folder_close(struct ws_version_folder *c); /* one that is all zero, too */
/* The number of a file in the folder, by its name; -1: there is none. */
int ws_version_folder_file(const struct ws_version_folder *c, const char *name);
/* Reads n bytes at `at` of file i. -ESTALE: the file has become shorter. */
WS_MUST_USE int ws_version_folder_read(const struct ws_version_folder *c, size_t file, void *bytes, size_t n,
                                       uint64_t at, struct ws_error *err);

#endif
