#include "fs/exported.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK_MAX (8UL << 20)

static int open_folder(int dir, const char *entry)
{
    int fd = openat(dir, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static const char *text_of(const json_t *mark, const char *key)
{
    return json_string_value(json_object_get(mark, key));
}

static bool is_inode(const json_t *mark, const char *key, const struct stat *st)
{
    return (uint64_t)json_integer_value(json_object_get(mark, key)) == st->st_ino;
}

/* Is it what a folder of that version is called, once it is whole or before? */
static bool is_called(const char *entry, const char *name)
{
    const size_t n = strlen(name);
    return !strcmp(entry, name) ||
           (entry[0] == '.' && !strncmp(entry + 1, name, n) && !strcmp(entry + 1 + n, ".part"));
}

/* The mark of an open folder, if it belongs to this folder under the path where it was made. NULL: there is
 * none. */
static json_t *read_mark(int dir, const char *entry, int folder)
{
    struct stat of_dir, of_folder, of_mark;
    json_t *mark = NULL;
    int fd = openat(folder, WS_EXPORTED_MARK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(dir, &of_dir) == 0 && fstat(folder, &of_folder) == 0 && fstat(fd, &of_mark) == 0 &&
        S_ISREG(of_mark.st_mode) && (uint64_t)of_mark.st_size <= MARK_MAX)
        mark = json_loadfd(fd, JSON_REJECT_DUPLICATES, NULL);
    if (fd >= 0)
        close(fd);
    if (mark && is_inode(mark, "inode", &of_folder) && is_inode(mark, "parent", &of_dir) &&
        text_of(mark, "name") && is_called(entry, text_of(mark, "name")) && text_of(mark, "digest") &&
        json_is_array(json_object_get(mark, "files")))
        return mark;
    json_decref(mark);
    return NULL;
}

/* Is every file of the mark there, and as long as it was? Marks of v0.1.0 say no sizes. */
static bool is_whole(int folder, const json_t *mark)
{
    const json_t *name, *sizes = json_object_get(mark, "sizes");
    struct stat st;
    size_t i;
    json_array_foreach(json_object_get(mark, "files"), i, name)
    {
        const json_t *size = json_array_get(sizes, i);
        if (!json_is_string(name) ||
            fstatat(folder, json_string_value(name), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
            (sizes && json_integer_value(size) != st.st_size))
            return false;
    }
    return true;
}

enum ws_exported ws_exported_check(int dir, const char *name, const char *digest)
{
    enum ws_exported is = WS_EXPORTED_FOREIGN;
    int folder = open_folder(dir, name);
    if (folder == -ENOENT)
        return WS_EXPORTED_NONE;
    json_t *mark = folder >= 0 ? read_mark(dir, name, folder) : NULL;
    if (mark)
        is = (!digest || !strcmp(text_of(mark, "digest"), digest)) && is_whole(folder, mark)
                 ? WS_EXPORTED_OURS
                 : WS_EXPORTED_OLD;
    json_decref(mark);
    if (folder >= 0)
        close(folder);
    return is;
}

static int write_mark(int dir, int folder, const char *name, const struct ws_manifest *m)
{
    struct stat st, of_dir;
    if (fstat(folder, &st) != 0 || fstat(dir, &of_dir) != 0)
        return -errno;
    json_t *files = json_array(), *sizes = json_array();
    json_t *mark = json_pack("{s:s,s:s,s:s,s:I,s:I,s:O,s:O}", "name", name, "run", m->lineage, "digest",
                             m->digest, "inode", (json_int_t)st.st_ino, "parent", (json_int_t)of_dir.st_ino,
                             "files", files, "sizes", sizes);
    int rc = mark ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++)
        rc = json_array_append_new(files, json_string(m->files[i].name)) == 0 &&
                     json_array_append_new(sizes, json_integer((json_int_t)m->files[i].size_bytes)) == 0
                 ? 0
                 : -ENOMEM;
    int fd = rc == 0 ? openat(folder, WS_EXPORTED_MARK, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444) : rc;
    if (rc == 0 && fd < 0)
        rc = -errno;
    if (rc == 0 && json_dumpfd(mark, fd, JSON_COMPACT) != 0)
        rc = errno == ENOSPC || errno == EDQUOT ? -errno : -EIO;
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    json_decref(mark);
    json_decref(files);
    json_decref(sizes);
    return rc;
}

int ws_exported_begin(int dir, const char *part, const char *name, const struct ws_manifest *m)
{
    int rc = ws_exported_remove(dir, part);
    if (rc < 0 && rc != -ENOENT)
        return rc == -EPERM || rc == -ENOTEMPTY ? -EEXIST : rc;
    if (mkdirat(dir, part, 0755) != 0)
        return -errno;
    int folder = open_folder(dir, part);
    rc = folder < 0 ? folder : write_mark(dir, folder, name, m);
    if (rc == 0)
        return folder;
    if (folder >= 0) { /* without its mark no export would ever remove it */
        (void)unlinkat(folder, WS_EXPORTED_MARK, 0);
        close(folder);
    }
    (void)unlinkat(dir, part, AT_REMOVEDIR);
    return rc;
}

int ws_exported_remove(int dir, const char *entry)
{
    const json_t *name;
    size_t i;
    int folder = open_folder(dir, entry), rc = 0;
    if (folder < 0)
        return folder == -ENOENT ? -ENOENT : -EPERM;
    json_t *mark = read_mark(dir, entry, folder);
    if (!mark) {
        close(folder);
        /* Killed between mkdir and the mark: a new folder that is empty holds no files of others. */
        return entry[0] == '.' && unlinkat(dir, entry, AT_REMOVEDIR) == 0 ? 0 : -EPERM;
    }
    json_array_foreach(json_object_get(mark, "files"), i, name)
    {
        const char *file = json_string_value(name);
        if (file && !strchr(file, '/') && unlinkat(folder, file, 0) != 0 && errno != ENOENT)
            rc = -errno;
    }
    /* The mark goes last, so that a remover that is killed leaves what the next one knows. */
    if (rc == 0 && unlinkat(folder, WS_EXPORTED_MARK, 0) != 0)
        rc = -errno;
    if (rc == 0 && unlinkat(dir, entry, AT_REMOVEDIR) != 0)
        rc = -errno;
    close(folder);
    json_decref(mark);
    return rc;
}
