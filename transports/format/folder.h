/* A checkpoint folder as a trainer or a download left it: the source of a publish and of `dir:`.
 * Read and checked at once; objects do not change afterwards and may be shared by threads. */
#ifndef WS_TRANSPORTS_FORMAT_FOLDER_H
#define WS_TRANSPORTS_FORMAT_FOLDER_H
#include "transports/base/entry.h"
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A checkpoint folder as it lies on disk, checked: every safetensors header parsed, no tensor in two
 * files, all shards of NAME-00001-of-0000N there, the index's files all there and naming exactly what
 * they hold. Where there is a model.safetensors.index.json, safetensors files that it does not name
 * are left out, as the engines do (Mistral's consolidated.safetensors has every weight again).
 * Sidecars are the other regular files a server needs (json, txt, model, tiktoken, jinja; no *.bin,
 * *.pt, *.pth, hidden files, folders). Links to regular files count as the files they lead to, where they
 * may be followed (entry.h). */
struct ws_folder_file {
    char *name; /* ws_name_is_safe */
    char *path;
    uint64_t size_bytes;
    struct ws_stamp stamp;     /* of what the name led to when it was read */
    struct ws_safetensors *st; /* NULL for a sidecar */
};
struct ws_folder {
    char *path, *below;
    int fd;         /* of the folder itself, whatever its path leads to later */
    bool is_part;   /* other nodes have other files of it */
    size_t n_files; /* sorted by name (strcmp) */
    struct ws_folder_file *files;
    size_t n_left_out; /* entries that are no part of a version: folders, other kinds of files; hidden ones */
    char left_out[256]; /* are not counted. Their names, as many as fit, comma-separated */
};
/* -ENOENT: no such folder, no weights in it, or a shard is missing; -EBADMSG: a file or the index is
 * wrong; -EINVAL: a name that cannot be published; -E2BIG: over a limit; or what the system says. */
WS_MUST_USE int ws_folder_open(const char *path, struct ws_folder **out, struct ws_error *err);
/* The same of one node's part of a checkpoint that several nodes write: the files that are not there are elsewhere, and
 * each that is there is called as shards.h says. */
WS_MUST_USE int ws_folder_open_part(const char *path, struct ws_folder **out, struct ws_error *err);
/* The same of an open folder, whose descriptor is taken over, also on failure; path: what it is called.
 * below: its files are opened by path, and only below this folder (below.h), -EPERM; NULL: from the
 * descriptor. */
WS_MUST_USE int ws_folder_read(int fd, const char *path, const char *below, struct ws_folder **out,
                               struct ws_error *err);
WS_MUST_USE int ws_folder_read_part(int fd, const char *path, struct ws_folder **out, struct ws_error *err);
/* Opens a file of it again. A descriptor, or -ESTALE: it is another file now, or was written to; or as
 * ws_entry_open. */
WS_MUST_USE int ws_folder_file_open(const struct ws_folder *f, const struct ws_folder_file *file,
                                    struct ws_error *err);
/* Is a file of this name one that a server, or a framework that waits for its marker, needs beside the weights? Hidden
 * files and names that cannot be published are not. */
int ws_folder_is_sidecar(const char *name);
void ws_folder_free(struct ws_folder *f); /* NULL is fine */

#endif
