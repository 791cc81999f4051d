#include "transports/dir/archive_files.h"
#include "transports/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int ws_archive_files_error(struct ws_error *err, const char *what, const char *path)
{
    int code = errno;
    return ws_error_set(err, code, "cannot %s %s: %s", what, path, strerror(code));
}

int ws_archive_files_create(const char *path, struct ws_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, WS_ARCHIVE_FILE_MODE);
    return fd < 0 ? ws_archive_files_error(err, "make", path) : fd;
}

int ws_archive_files_finish(int fd, const char *path, int rc, struct ws_error *err)
{
    if (rc == 0 && fsync(fd) < 0)
        rc = ws_archive_files_error(err, "write", path);
    if (rc == 0)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(fd) < 0 && rc == 0)
        rc = ws_archive_files_error(err, "write", path);
    return rc;
}

int ws_archive_files_write(const char *path, const void *bytes, size_t n, struct ws_error *err)
{
    int fd = ws_archive_files_create(path, err);
    if (fd < 0)
        return fd;
    return ws_archive_files_finish(
        fd, path, ws_file_write(fd, bytes, n) < 0 ? ws_archive_files_error(err, "write", path) : 0, err);
}

int ws_archive_files_sync(const char *path, struct ws_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ws_archive_files_error(err, "open", path);
    /* Some network file systems do not know fsync of a folder; their renames are durable. */
    int rc =
        fsync(fd) < 0 && errno != EINVAL && errno != ENOTSUP ? ws_archive_files_error(err, "write", path) : 0;
    close(fd);
    return rc;
}

int ws_archive_files_make_folder(const char *path, struct ws_error *err)
{
    return mkdir(path, WS_ARCHIVE_FOLDER_MODE) < 0 && errno != EEXIST
               ? ws_archive_files_error(err, "make", path)
               : 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st;
    (void)f;
    return (type == FTW_DP ? rmdir(path) : unlink(path)) < 0 && errno != ENOENT ? -1 : 0;
}

int ws_archive_files_remove_tree(const char *path, struct ws_error *err)
{
    return nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) < 0 && errno != ENOENT
               ? ws_archive_files_error(err, "remove", path)
               : 0;
}
