/* Archive files: the files and folders of an archive, written durably. The agent's user writes them, and the group of
 * the folder may read them; no other user reads the weights. 0 or -errno, with a sentence that names the path. Any
 * thread. */
#ifndef WS_TRANSPORTS_DIR_ARCHIVE_FILES_H
#define WS_TRANSPORTS_DIR_ARCHIVE_FILES_H
#include "transports/base/error.h"
#include <stddef.h>

#define WS_ARCHIVE_FILE_MODE   0640
#define WS_ARCHIVE_FOLDER_MODE 0750

/* errno as -errno: "cannot WHAT PATH: ...". */
int ws_archive_files_error(struct ws_error *err, const char *what, const char *path);
/* A new file's descriptor; -EEXIST: there is one already. */
WS_MUST_USE int ws_archive_files_create(const char *path, struct ws_error *err);
/* Closes fd; where rc, what writing it returned, is 0, the file is then durable, and out of the page cache: a
 * trainer's node has better uses for that memory. Returns rc, or why it failed. */
WS_MUST_USE int ws_archive_files_finish(int fd, const char *path, int rc, struct ws_error *err);
WS_MUST_USE int ws_archive_files_write(const char *path, const void *bytes, size_t n, struct ws_error *err);
/* A folder that is there already is fine, and keeps its mode. */
WS_MUST_USE int ws_archive_files_make_folder(const char *path, struct ws_error *err);
/* Makes what was made, renamed or removed in the folder durable. */
WS_MUST_USE int ws_archive_files_sync(const char *path, struct ws_error *err);
/* With all that is in it; what is not there is fine. */
WS_MUST_USE int ws_archive_files_remove_tree(const char *path, struct ws_error *err);

#endif
