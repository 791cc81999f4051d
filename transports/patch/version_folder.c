#include "transports/patch/version_folder.h"
#include "transports/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_manifest(int fd, const char *path, struct ws_manifest **out, struct ws_error *err)
{
    size_t room = 64 << 10, n = 0;
    char *text = malloc(room);
    ssize_t more = 0;
    int rc = 0;
    while (text && (more = ws_file_read(fd, text + n, room - n, n)) > 0) {
        n += (size_t)more;
        if (n < room)
            continue;
        if (room >= WS_MAX_MANIFEST_BYTES)
            break;
        char *grown = realloc(text, room *= 4);
        if (!grown)
            free(text);
        text = grown;
    }
    if (!text)
        rc = ws_error_set(err, ENOMEM, "no memory for the manifest of %s", path);
    else if (more < 0)
        rc = ws_error_set(err, (int)-more, "cannot read the manifest of %s: %s", path, strerror((int)-more));
    else
        rc = ws_manifest_from_json(text, n, out, err);
    free(text);
    return rc;
}

int ws_version_folder_manifest(const char *path, struct ws_manifest **out, struct ws_error *err)
{
    char file[PATH_MAX];
    *out = NULL;
    if (snprintf(file, sizeof(file), "%s/.wsync/manifest.json", path) >= (int)sizeof(file))
        return ws_error_set(err, ENAMETOOLONG, "the path %s is too long", path);
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const int rc = read_manifest(fd, path, out, err);
    close(fd);
    return rc;
}

static int find_manifest(struct ws_version_folder *c, struct ws_error *err)
{
    int rc = ws_version_folder_manifest(c->path, &c->manifest, err);
    for (size_t i = 0; rc == 0 && c->manifest && i < c->folder->n_files; i++) {
        const struct ws_folder_file *f = &c->folder->files[i];
        const struct ws_manifest_file *m = ws_manifest_find(c->manifest, f->name);
        if (f->st && (!m || m->size_bytes != f->size_bytes))
            rc = ws_error_set(err, EBADMSG, "the manifest of %s has no file %s of %llu bytes", c->path,
                              f->name, (unsigned long long)f->size_bytes);
    }
    return rc;
}

int ws_version_folder_open(struct ws_version_folder *c, const char *path, struct ws_error *err)
{
    *c = (struct ws_version_folder){.path = path};
    int rc = ws_folder_open(path, &c->folder, err);
    if (rc < 0)
        return rc;
    const size_t n = c->folder->n_files;
    c->fds = malloc((n + 1) * sizeof(*c->fds));
    for (size_t i = 0; c->fds && i < n; i++)
        c->fds[i] = -1;
    if (!c->fds)
        rc = ws_error_set(err, ENOMEM, "no memory for the files of %s", path);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (c->folder->files[i].st) {
            const int fd = ws_folder_file_open(c->folder, &c->folder->files[i], err);
            c->fds[i] = fd;
            rc = fd < 0 ? fd : 0;
        }
    if (rc == 0)
        rc = find_manifest(c, err);
    if (rc < 0)
        ws_version_folder_close(c);
    return rc;
}

void ws_version_folder_close(struct ws_version_folder *c)
{
    for (size_t i = 0; c->fds && i < c->folder->n_files; i++)
        if (c->fds[i] >= 0)
            close(c->fds[i]);
    free(c->fds);
    ws_manifest_free(c->manifest);
    ws_folder_free(c->folder);
    *c = (struct ws_version_folder){0};
}

int ws_version_folder_file(const struct ws_version_folder *c, const char *name)
{
    size_t low = 0, high = c->folder->n_files;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strcmp(name, c->folder->files[mid].name);
        if (order == 0)
            return (int)mid;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

int ws_version_folder_read(const struct ws_version_folder *c, size_t file, void *bytes, size_t n, uint64_t at,
                           struct ws_error *err)
{
    const ssize_t got = ws_file_read(c->fds[file], bytes, n, at);
    if (got == (ssize_t)n)
        return 0;
    const char *name = c->folder->files[file].name;
    if (got < 0)
        return ws_error_set(err, (int)-got, "cannot read %s of %s: %s", name, c->path, strerror((int)-got));
    return ws_error_set(err, ESTALE, "%s of %s became shorter while it was read", name, c->path);
}
