/* A folder as an archive's store. A version is written into a folder beside (MODEL/.new-N), made durable and renamed;
 * one that goes is first renamed (MODEL/.gone-N). What begins with a dot is what a crash left. */
#include "transports/base/below.h"
#include "transports/base/file.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/dir/archive_files.h"
#include "transports/dir/archive_store.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define POLL_MS     250
#define SPARE_BYTES (1UL << 20) /* of a disk: for manifests and listings */

struct folder {
    struct ws_archive_store head;
    char *below; /* NULL: anything is opened */
    int lock;
};

struct reader {
    struct ws_archive_reader head;
    int fd;
    char open_path[WS_ARCHIVE_PATH_BYTES];
};

struct file {
    struct ws_archive_file head;
    int fd;
    char path[WS_ARCHIVE_PATH_BYTES];
};

static void folder_close(struct ws_archive_store *store)
{
    struct folder *s = (struct folder *)store;
    if (s->lock >= 0)
        close(s->lock);
    free(s->below);
    free(s);
}

static int folder_open(const char *root, const struct ws_archive_store_options *o,
                       struct ws_archive_store **out, struct ws_error *err)
{
    struct folder *s = calloc(1, sizeof(*s));
    if (!s || (o->below && !(s->below = strdup(o->below)))) {
        free(s);
        return ws_error_set(err, ENOMEM, "no memory for an archive");
    }
    s->head.ops = &ws_archive_folder_ops;
    snprintf(s->head.root, sizeof(s->head.root), "%s", root);
    s->lock = -1;
    *out = &s->head;
    return 0;
}

/* --- reading --- */

/* A listing is replaced by a rename, so another one is another file. That works over network file systems, too. */
static int folder_get(struct ws_archive_store *store, const char *path, size_t most,
                      char stamp[WS_ARCHIVE_STAMP_BYTES], const atomic_bool *cancel, char **text, size_t *n,
                      struct ws_error *err)
{
    const struct folder *s = (struct folder *)store;
    char now[WS_ARCHIVE_STAMP_BYTES] = "";
    struct stat st;
    (void)cancel;
    *text = NULL;
    *n = 0;
    if (stamp && stat(path, &st) == 0)
        snprintf(now, sizeof(now), "%lu %ld.%09ld", (unsigned long)st.st_ino, (long)st.st_mtim.tv_sec,
                 (long)st.st_mtim.tv_nsec);
    if (now[0] && strcmp(now, stamp) == 0)
        return 0;
    int rc = ws_below_read(s->below, path, most, text, n, err);
    if (rc == 0 && stamp)
        memcpy(stamp, now, sizeof(now));
    return rc;
}

static int folder_reader_open(struct ws_archive_store *s, struct ws_archive_reader **out,
                              struct ws_error *err)
{
    struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    r->head.store = s;
    r->fd = -1;
    *out = &r->head;
    return 0;
}

static void folder_reader_close(struct ws_archive_reader *reader)
{
    struct reader *r = (struct reader *)reader;
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

static int open_file(struct reader *r, const char *path)
{
    const struct folder *s = (struct folder *)r->head.store;
    struct stat st;
    if (r->fd >= 0 && strcmp(r->open_path, path) == 0)
        return 0;
    if (r->fd >= 0)
        close(r->fd);
    snprintf(r->open_path, sizeof(r->open_path), "%s", path);
    r->fd = ws_below_open(s->below, path, false, &st, NULL);
    return r->fd < 0 ? r->fd : 0;
}

static int folder_read(struct ws_archive_reader *reader, const char *path, uint64_t at, uint64_t n,
                       const struct ws_archive_sink *sink, struct ws_error *err)
{
    struct reader *r = (struct reader *)reader;
    ssize_t got = open_file(r, path);
    while (got >= 0 && n > 0) {
        size_t room;
        unsigned char *to = sink->room(sink->arg, &room);
        if (sink->cancel && atomic_load(sink->cancel))
            return ws_error_set(err, ECANCELED, "the transfer was stopped");
        got = ws_file_read(r->fd, to, room < n ? room : (size_t)n, at);
        if (got == 0)
            return 0;
        const int rc = got < 0 ? 0 : sink->came(sink->arg, (size_t)got, err);
        if (rc)
            return rc;
        at += got < 0 ? 0 : (uint64_t)got;
        n -= n == UINT64_MAX || got < 0 ? 0 : (uint64_t)got;
    }
    return got >= 0 ? 0
                    : ws_error_set(err, (int)-got, "the archive is damaged: cannot read %s: %s", path,
                                   strerror((int)-got));
}

/* --- opening it to write --- */

static int acquire_lock(struct folder *s, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, s->head.root, NULL, UINT64_MAX, ".lock");
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, WS_ARCHIVE_FILE_MODE);
    if (s->lock < 0)
        return ws_archive_files_error(err, "open", path);
    if (flock(s->lock, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return ws_error_set(err, EBUSY,
                            "another process writes the archive %s (an agent's --archive, or wsync save); "
                            "wait for it, or use another folder",
                            s->head.root);
    return 0;
}

static int folder_acquire(struct ws_archive_store *store, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    int rc = ws_archive_files_make_folder(store->root, err);
    ws_archive_path(path, store->root, NULL, UINT64_MAX, NULL);
    if (rc == 0)
        rc = ws_archive_files_make_folder(path, err);
    return rc < 0 ? rc : acquire_lock((struct folder *)store, err);
}

static bool is_left_over(const struct ws_archive_listing *listing, const char *model, const char *name)
{
    uint64_t number;
    if (name[0] == '.')
        return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return ws_text_u64(name, &number) == 0 && !ws_archive_listing_find(listing, model, number, NULL);
}

/* Removes what a crash left: folders that were never listed, and those that were being removed. */
static void clean_model(const struct ws_archive_store *s, const struct ws_archive_listing *listing,
                        const char *model)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, s->root, model, UINT64_MAX, NULL);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct ws_error err = {0};
        if (!is_left_over(listing, model, e->d_name))
            continue;
        ws_archive_path(path, s->root, model, UINT64_MAX, e->d_name);
        ws_log(WS_LOG_INFO, "archive", "removing what was never finished path=%s", path);
        if (ws_archive_files_remove_tree(path, &err) < 0)
            ws_log(WS_LOG_WARN, "archive", "%s", err.text);
    }
    if (d)
        closedir(d);
}

/* Does the model have a version? */
static bool has_version(const struct ws_archive_store *s, const char *model)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    uint64_t number;
    bool has = false;
    ws_archive_path(path, s->root, model, UINT64_MAX, NULL);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && !has && (e = readdir(d));) {
        struct stat st;
        if (ws_text_u64(e->d_name, &number) < 0)
            continue;
        ws_archive_path(path, s->root, model, number, "manifest");
        has = stat(path, &st) == 0;
    }
    if (d)
        closedir(d);
    return has;
}

/* Without a listing nothing is removed. A new one would be empty, and the next opening would remove all that it lacks. */
static int folder_recover(struct ws_archive_store *s, struct ws_archive_listing *listing,
                          struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    int rc = 0;
    ws_archive_path(path, s->root, NULL, UINT64_MAX, NULL);
    DIR *d = opendir(path);
    for (const struct dirent *e; rc == 0 && d && (e = readdir(d));) {
        if (!ws_name_is_offered(e->d_name) || e->d_name[0] == '.')
            continue;
        if (listing->seq > 0)
            clean_model(s, listing, e->d_name);
        else if (has_version(s, e->d_name))
            rc = ws_error_set(err, EBADMSG,
                              "the archive %s has versions of %s, and its listing is lost: copy %s/events to "
                              "%s/models, which are the same, or use another folder",
                              s->root, e->d_name, path, path);
    }
    if (d)
        closedir(d);
    return rc;
}

/* --- writing --- */

/* Beside and renamed. Its folder is made where it is missing. */
static int folder_put(struct ws_archive_store *s, const char *path, const void *bytes, size_t n,
                      struct ws_error *err)
{
    char folder[WS_ARCHIVE_PATH_BYTES], beside[WS_ARCHIVE_PATH_BYTES];
    const char *name = strrchr(path, '/') + 1;
    (void)s;
    snprintf(folder, sizeof(folder), "%.*s", (int)(name - 1 - path), path);
    snprintf(beside, sizeof(beside), "%s/.%s.new", folder, name);
    int rc = ws_archive_files_make_folder(folder, err);
    if (rc < 0)
        return rc;
    (void)unlink(beside);
    rc = ws_archive_files_write(beside, bytes, n, err);
    if (rc == 0 && rename(beside, path) < 0)
        rc = ws_archive_files_error(err, "replace", path);
    if (rc < 0)
        (void)unlink(beside);
    return rc == 0 ? ws_archive_files_sync(folder, err) : rc;
}

static int folder_check_space(struct ws_archive_store *s, const char *what, uint64_t bytes,
                              struct ws_error *err)
{
    struct statvfs fs;
    if (statvfs(s->root, &fs) < 0)
        return ws_archive_files_error(err, "look at", s->root);
    uint64_t has = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes + SPARE_BYTES <= has)
        return 0;
    return ws_error_set(err, ENOSPC,
                        "%s needs %" PRIu64 " bytes in the archive %s, and %" PRIu64
                        " are free; make room there, or keep fewer anchors",
                        what, bytes, s->root, has);
}

static void path_beside(const struct ws_archive_store *s, const char *model, uint64_t number,
                        char out[WS_ARCHIVE_PATH_BYTES])
{
    char name[40];
    snprintf(name, sizeof(name), ".new-%" PRIu64, number);
    ws_archive_path(out, s->root, model, UINT64_MAX, name);
}

static int folder_begin(struct ws_archive_store *s, const char *model, uint64_t number,
                        char folder[WS_ARCHIVE_PATH_BYTES], struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, s->root, model, UINT64_MAX, NULL);
    path_beside(s, model, number, folder);
    int rc = ws_archive_files_make_folder(path, err);
    if (rc == 0)
        rc = ws_archive_files_remove_tree(folder, err);
    if (rc == 0 && mkdir(folder, WS_ARCHIVE_FOLDER_MODE) < 0)
        rc = ws_archive_files_error(err, "make", folder);
    return rc;
}

static int folder_file_new(struct ws_archive_store *s, const char *path, uint64_t size,
                           const atomic_bool *stop, struct ws_archive_file **out, struct ws_error *err)
{
    struct file *f = calloc(1, sizeof(*f));
    char folder[WS_ARCHIVE_PATH_BYTES];
    (void)size;
    (void)stop;
    if (!f)
        return ws_error_set(err, ENOMEM, "no memory for a file");
    f->head.store = s;
    snprintf(f->path, sizeof(f->path), "%s", path);
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    int rc = ws_archive_files_make_folder(folder, err); /* files/, with the first of them */
    if (rc == 0)
        rc = f->fd = ws_archive_files_create(path, err);
    if (rc < 0) {
        free(f);
        return rc;
    }
    *out = &f->head;
    return 0;
}

static int folder_file_write(struct ws_archive_file *file, const void *bytes, size_t n, struct ws_error *err)
{
    struct file *f = (struct file *)file;
    return ws_file_write(f->fd, bytes, n) < 0 ? ws_archive_files_error(err, "write", f->path) : 0;
}

static int folder_file_end(struct ws_archive_file *file, int rc, struct ws_error *err)
{
    struct file *f = (struct file *)file;
    rc = ws_archive_files_finish(f->fd, f->path, rc, err);
    free(f);
    return rc;
}

static int folder_commit(struct ws_archive_store *s, const char *model, uint64_t number, struct ws_error *err)
{
    char beside[WS_ARCHIVE_PATH_BYTES], files[WS_ARCHIVE_PATH_BYTES], path[WS_ARCHIVE_PATH_BYTES];
    struct stat st;
    path_beside(s, model, number, beside);
    snprintf(files, sizeof(files), "%s/files", beside);
    ws_archive_path(path, s->root, model, number, NULL);
    int rc = stat(files, &st) == 0 ? ws_archive_files_sync(files, err) : 0;
    if (rc == 0)
        rc = ws_archive_files_sync(beside, err);
    if (rc == 0)
        rc = ws_archive_files_remove_tree(path, err); /* never listed */
    if (rc == 0 && rename(beside, path) < 0)
        rc = ws_archive_files_error(err, "make", path);
    ws_archive_path(path, s->root, model, UINT64_MAX, NULL);
    return rc == 0 ? ws_archive_files_sync(path, err) : rc;
}

static void folder_abandon(struct ws_archive_store *s, const struct ws_manifest *m)
{
    char beside[WS_ARCHIVE_PATH_BYTES];
    path_beside(s, m->model, m->version, beside);
    if (ws_archive_files_remove_tree(beside, NULL) < 0)
        ws_log(WS_LOG_WARN, "archive", "what was begun is still on the disk path=%s", beside);
}

static int folder_remove(struct ws_archive_store *s, const char *model, uint64_t number, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], hidden[WS_ARCHIVE_PATH_BYTES], name[40];
    snprintf(name, sizeof(name), ".gone-%" PRIu64, number);
    ws_archive_path(path, s->root, model, number, NULL);
    ws_archive_path(hidden, s->root, model, UINT64_MAX, name);
    if (rename(path, hidden) < 0)
        memcpy(hidden, path, sizeof(hidden));
    return ws_archive_files_remove_tree(hidden, err);
}

const struct ws_archive_store_ops ws_archive_folder_ops = {
    .poll_ms = POLL_MS,
    .open = folder_open,
    .close = folder_close,
    .get = folder_get,
    .reader_open = folder_reader_open,
    .reader_close = folder_reader_close,
    .read = folder_read,
    .acquire = folder_acquire,
    .recover = folder_recover,
    .put = folder_put,
    .check_space = folder_check_space,
    .begin = folder_begin,
    .file_new = folder_file_new,
    .file_write = folder_file_write,
    .file_end = folder_file_end,
    .commit = folder_commit,
    .abandon = folder_abandon,
    .remove = folder_remove,
};
