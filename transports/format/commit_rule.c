#include "transports/format/commit_rule.h"
#include "transports/base/name.h"
#include "transports/format/adapter_files.h"
#include "transports/format/folder_index.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY        "tmp"
#define TEMPORARY_SUFFIX ".tmp"
#define WHOLE_MODEL      "model.safetensors"

static bool is_temporary(const char *name)
{
    const size_t n = strlen(name), suffix = strlen(TEMPORARY_SUFFIX);

    return strncmp(name + (name[0] == '.'), TEMPORARY, strlen(TEMPORARY)) == 0 ||
           (n >= suffix && strcmp(name + n - suffix, TEMPORARY_SUFFIX) == 0);
}

static bool has(int folder, const char *name)
{
    struct stat stat;

    return fstatat(folder, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(stat.st_mode);
}

static int check_names(int folder, struct ws_error *err)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *names = fd < 0 ? NULL : fdopendir(fd);

    if (!names) {
        rc = ws_error_set(err, errno, "cannot list it: %m");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while (rc == 0) {
        errno = 0;
        const struct dirent *entry = readdir(names);
        if (!entry && errno)
            rc = ws_error_set(err, errno, "cannot list it: %m");
        if (!entry)
            break;
        if (is_temporary(entry->d_name))
            rc = ws_error_set(err, EAGAIN, "%s is there, a name of what is still written", entry->d_name);
    }
    closedir(names);
    return rc;
}

static int check_last(int folder, const char *marker, enum ws_commit_part part, struct ws_error *err)
{
    if (part == WS_COMMIT_OTHER)
        return 0;
    if (marker)
        return has(folder, marker) ? 0 : ws_error_set(err, EAGAIN, "its marker %s is missing", marker);
    if (part == WS_COMMIT_FIRST)
        return has(folder, WS_FOLDER_INDEX_NAME)
                   ? 0
                   : ws_error_set(err, EAGAIN, "its index " WS_FOLDER_INDEX_NAME " is missing");
    if (has(folder, WS_FOLDER_INDEX_NAME) || has(folder, WHOLE_MODEL) ||
        (has(folder, WS_ADAPTER_CONFIG_NAME) && has(folder, WS_ADAPTER_WEIGHTS_NAME)))
        return 0;
    return ws_error_set(err, EAGAIN,
                        "none of " WS_FOLDER_INDEX_NAME ", " WHOLE_MODEL ", or " WS_ADAPTER_CONFIG_NAME
                        " with " WS_ADAPTER_WEIGHTS_NAME
                        " is there: if the framework writes a marker, give its name");
}

/* What is no checkpoint now may be one when its writer goes on. */
static int read_checkpoint(int folder, const char *path, enum ws_commit_part part, struct ws_folder **out,
                           struct ws_error *err)
{
    const int fd = fcntl(folder, F_DUPFD_CLOEXEC, 0);
    int rc;

    if (fd < 0)
        return ws_error_set(err, errno, "cannot open it once more: %m");
    rc = part == WS_COMMIT_WHOLE ? ws_folder_read(fd, path, NULL, out, err)
                                 : ws_folder_read_part(fd, path, out, err);
    if (rc != -ENOENT && rc != -EBADMSG && rc != -ESTALE)
        return rc;
    if (err)
        err->code = EAGAIN;
    return -EAGAIN;
}

static int check(int folder, const char *path, const char *marker, enum ws_commit_part part,
                 struct ws_folder **out, struct ws_error *err)
{
    struct stat before, after;
    int rc = fstat(folder, &before) < 0 ? ws_error_set(err, errno, "cannot stat it: %m") : 0;

    /* The last file first: what comes before it was there then. */
    if (rc == 0)
        rc = check_last(folder, marker, part, err);
    if (rc == 0)
        rc = check_names(folder, err);
    if (rc == 0)
        rc = read_checkpoint(folder, path, part, out, err);
    if (rc < 0)
        return rc;
    if (fstat(folder, &after) == 0) {
        const struct ws_stamp a = ws_stamp_from_stat(&before), b = ws_stamp_from_stat(&after);
        if (ws_stamp_equal(&a, &b))
            return 0;
    }
    ws_folder_free(*out);
    *out = NULL;
    return ws_error_set(err, EAGAIN, "it was changed while it was read");
}

int ws_commit_rule_read(const char *path, const char *marker, enum ws_commit_part part,
                        struct ws_folder **out, struct ws_error *err)
{
    if (marker && !ws_name_is_file(marker))
        return ws_error_set(
            err, EINVAL, "'%.100s' is no marker: it is the name of a file in the folder, not hidden", marker);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the path is its caller's word */
    if (fd < 0) {
        const int code = errno == ENOENT ? EAGAIN : errno;
        return ws_error_set(err, code, "%s: cannot open the folder: %m", path);
    }
    int rc = check(fd, path, marker, part, out, err);
    close(fd);
    if (rc < 0)
        ws_error_prefix(err, "%s is not whole", path);
    return rc;
}
