#include "fs/export.h"
#include "fs/exported.h"
#include "fs/pull/pull.h"
#include "fs/switch/settings_lock.h"
#include "fs/youngest.h"
#include "transports/base/clock.h"
#include "transports/base/file.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/simd/copy.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LOOK_MS      200
#define AGAIN_NS     5000000000UL
#define MAX_REPORTED 64
#define LEFT_MARK    ".wsync-export" /* in the root of a tmpfs of ours */

struct exporter {
    const struct ws_mount_options *options;
    struct ws_store *store;
    int root;     /* the folder, as it was when we came: a path may lead elsewhere later */
    bool mounted; /* a tmpfs of ours is there: files are links */
    struct ws_error *err;
    uint64_t again_ns;               /* a disk that failed is not tried before */
    uint64_t reported[MAX_REPORTED]; /* hashes of the last complaints, each of which is logged once */
    size_t n_reported;
    struct ws_youngest *youngest;
};

__attribute__((format(printf, 2, 3))) static void complain(struct exporter *e, const char *format, ...)
{
    char text[8192];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    uint64_t hash = ws_hash(text, strlen(text));
    for (size_t i = 0; i < MAX_REPORTED; i++)
        if (e->reported[i] == hash)
            return;
    e->reported[e->n_reported++ % MAX_REPORTED] = hash;
    ws_log(WS_LOG_ERROR, "export", "%s", text);
}

/* A model's folder below the export's; -errno. */
static int open_model(const struct exporter *e, const char *model, bool make)
{
    if (make && mkdirat(e->root, model, 0755) != 0 && errno != EEXIST)
        return -errno;
    int fd = openat(e->root, model, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int copy_file(const unsigned char *data, uint64_t size, int folder, const char *name)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return -errno;
    int rc = ws_file_write(fd, data, size);
    /* The mark says whose bytes these are: they must be there before the name is, also after a power cut. */
    if (rc == 0 && fdatasync(fd) != 0 && errno != EINVAL)
        rc = -errno;
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

static int place_file(const struct exporter *e, struct ws_version *v, const struct ws_manifest *m, size_t i,
                      int folder)
{
    const struct ws_manifest_file *f = &m->files[i];
    struct ws_region *r = ws_version_region(v, i);
    if (f->size_bytes > 0 && !r)
        return -ESTALE; /* it went meanwhile */
    if (e->mounted && r && ws_region_link(r, folder, f->name) == 0)
        return 0;
    return copy_file(r ? ws_region_data(r) : NULL, f->size_bytes, folder, f->name);
}

/* The folder appears under its name only when every file is in it. */
static int place_version(struct exporter *e, struct ws_version *v, int dir, const char *name)
{
    char part[WS_MAX_NAME + 16];
    const struct ws_manifest *m = ws_version_manifest(v, e->err);
    if (!m)
        return -EIO;
    snprintf(part, sizeof(part), ".%s.part", name);
    int folder = ws_exported_begin(dir, part, name, m), rc = folder < 0 ? folder : 0;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++)
        rc = place_file(e, v, m, i, folder);
    if (folder >= 0)
        close(folder);
    if (rc == 0 && renameat2(dir, part, dir, name, RENAME_NOREPLACE) != 0)
        rc = -errno;
    if (rc < 0 && folder >= 0)
        (void)ws_exported_remove(dir, part);
    return rc;
}

/* The store's reclaim hook: before a version's memory is used again, no process may be able to open it. */
static void remove_version(void *arg, struct ws_version *v)
{
    const struct exporter *e = arg;
    char name[WS_MAX_NAME + 1];
    int dir = open_model(e, ws_model_name(ws_version_model(v)), false);
    ws_version_name(v, name);
    if (dir >= 0 && name[0] && ws_exported_check(dir, name, NULL) != WS_EXPORTED_FOREIGN)
        (void)ws_exported_remove(dir, name);
    if (dir >= 0)
        close(dir);
}

/* Moves a link. What is there and is no link was not made by an export, and stays. */
static void set_link(struct exporter *e, int dir, const char *model, const char *link, const char *name)
{
    char part[64], now[WS_MAX_NAME + 1] = "";
    struct stat st;
    snprintf(part, sizeof(part), ".%s.part", link);
    ssize_t n = readlinkat(dir, link, now, sizeof(now) - 1);
    if (n > 0 && strcmp(now, name) == 0)
        return;
    if (n < 0 && errno != ENOENT) {
        complain(e, "%s/%s/%s is there and is no link of ours: it is left; take it away for the link to come",
                 e->options->mountpoint, model, link);
        return;
    }
    if (fstatat(dir, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
        (void)unlinkat(dir, part, 0);
    if (symlinkat(name, dir, part) != 0 || renameat(dir, part, dir, link) != 0)
        complain(e, "cannot move the link %s/%s/%s: %s", e->options->mountpoint, model, link,
                 strerror(errno));
}

struct visit {
    struct exporter *exporter;
    const char *model;
    int dir; /* of the model */
};

static void visit_version(void *arg, struct ws_version *v)
{
    struct visit *visit = arg;
    struct exporter *e = visit->exporter;
    char name[WS_MAX_NAME + 1];
    const struct ws_manifest *m = ws_version_has_manifest(v) ? ws_version_manifest(v, e->err) : NULL;
    ws_version_name(v, name);
    if (!ws_version_is_complete(v) || !ws_version_is_named(v) || !ws_version_is_shown(v) || !name[0] || !m)
        return;
    enum ws_exported is = ws_exported_check(visit->dir, name, m->digest);
    int rc = 0;
    if (is == WS_EXPORTED_OURS || (is != WS_EXPORTED_FOREIGN && ws_clock_ns() < e->again_ns))
        return;
    if (is == WS_EXPORTED_FOREIGN)
        rc = -EEXIST;
    else if (is == WS_EXPORTED_OLD)
        rc = ws_exported_remove(visit->dir, name);
    if (rc == 0)
        rc = place_version(e, v, visit->dir, name);
    if (rc == 0)
        ws_log(WS_LOG_INFO, "export", "version is there path=%s/%s/%s", e->options->mountpoint, visit->model,
               name);
    else if (rc == -EEXIST || rc == -EPERM || rc == -ENOTEMPTY)
        complain(
            e,
            "%s/%s/%s is not written: there is something that wsync export did not make; move it elsewhere",
            e->options->mountpoint, visit->model, name);
    else {
        e->again_ns = ws_clock_ns() + AGAIN_NS;
        complain(e, "cannot write %s/%s/%s: %s; it is tried again", e->options->mountpoint, visit->model,
                 name, strerror(-rc));
    }
}

/* Takes folders away that we made and whose version is gone, and what a killed export left half made. */
static void visit_folders(const struct visit *visit, struct ws_model *m)
{
    struct ws_error ignored;
    int fd = openat(visit->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *f; d && (f = readdir(d));) {
        struct ws_version *v = NULL;
        size_t n = strlen(f->d_name);
        bool part = f->d_name[0] == '.' && n > 6 && !strcmp(f->d_name + n - 5, ".part");
        if (!strcmp(f->d_name, "latest") || (f->d_name[0] == '.' && !part))
            continue;
        v = part ? NULL : ws_version_find(m, f->d_name, &ignored);
        if (!v || !ws_version_is_shown(v))
            (void)ws_exported_remove(visit->dir, f->d_name); /* only where the mark is ours */
        if (v)
            ws_version_put(v);
    }
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
}

/* Where versions must be signed, `latest` goes to none whose signed time is before that of one that it led to: lists
 * are not signed, and a source may replay an old one (switch/freshness.h). */
static bool is_led_back(const struct exporter *e, const char *model, struct ws_version *v)
{
    if (!ws_version_must_be_signed(v))
        return false;
    const struct ws_manifest *m = ws_version_has_manifest(v) ? ws_version_manifest(v, NULL) : NULL;
    return !m || !ws_youngest_take(e->youngest, model, m->created_ns);
}

static void visit_model(void *arg, struct ws_model *m)
{
    struct exporter *e = arg;
    char name[WS_MAX_NAME + 1];
    struct visit visit = {.exporter = e, .model = ws_model_name(m)};
    visit.dir = open_model(e, visit.model, true);
    if (visit.dir < 0) {
        complain(e, "cannot open the folder %s/%s: %s", e->options->mountpoint, visit.model,
                 strerror(-visit.dir));
        return;
    }
    struct ws_version *latest = ws_model_latest(m);
    if (latest && ws_version_state(latest) == WS_KNOWN)
        ws_version_start(latest, WS_PRIORITY_BACKGROUND);
    visit_folders(&visit, m);
    ws_model_each(m, visit_version, &visit);
    if (latest) {
        ws_version_name(latest, name);
        const bool is_ours = name[0] && ws_exported_check(visit.dir, name, NULL) == WS_EXPORTED_OURS;
        if (is_ours && is_led_back(e, visit.model, latest))
            (void)unlinkat(visit.dir, "latest", 0); /* names may mean other versions now: no link is right */
        else if (is_ours)
            set_link(e, visit.dir, visit.model, "latest", name);
        ws_version_put(latest);
    }
    close(visit.dir);
}

/* Is it the root of a tmpfs that an export mounted and, killed, did not take away? Only that one has the
 * mark.
 */
static bool is_left_over(int root)
{
    struct stat st, above;
    struct statfs fs;
    return fstatat(root, LEFT_MARK, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_uid == geteuid() &&
           fstat(root, &st) == 0 && fstatat(root, "..", &above, 0) == 0 && st.st_dev != above.st_dev &&
           fstatfs(root, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

/* The folder, alone: a second export on it would take the first one's versions for old ones. */
static int open_root(struct exporter *e, struct ws_error *err)
{
    const char *path = e->options->mountpoint;
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return ws_error_set(err, errno, "cannot make %s: %s", path, strerror(errno));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ws_error_set(err, errno, "cannot open %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int rc =
            ws_error_set(err, errno == EWOULDBLOCK ? EBUSY : errno, "cannot export to %s: %s", path,
                         errno == EWOULDBLOCK ? "another wsync export does; end it, or name another folder"
                                              : strerror(errno));
        close(fd);
        return rc;
    }
    if (is_left_over(fd) && umount2(path, MNT_DETACH) == 0) { /* its lock was free: no export serves it */
        close(fd);
        return open_root(e, err);
    }
    e->root = fd;
    return 0;
}

/* A tmpfs of ours over the folder, where that is allowed. The folder below stays locked. Returns its
 * descriptor, which then is the root, or the folder's. */
static int mount_tmpfs(struct exporter *e)
{
    int folder = e->root, fs = ws_region_tmpfs();
    int root = fs >= 0 ? openat(fs, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int mark = root >= 0 ? openat(root, LEFT_MARK, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400) : -1;
    if (mark >= 0)
        close(mark);
    /* Locked before it is mounted: another export that comes to the path opens this one. */
    e->mounted =
        mark >= 0 && flock(root, LOCK_EX | LOCK_NB) == 0 &&
        syscall(SYS_move_mount, fs, "", AT_FDCWD, e->options->mountpoint, MOVE_MOUNT_F_EMPTY_PATH) == 0;
    if (e->mounted) {
        e->root = root;
        return folder;
    }
    if (root >= 0)
        close(root);
    ws_log(WS_LOG_WARN, "export",
           "no tmpfs can be mounted at %s: files are copies, which takes the memory twice",
           e->options->mountpoint);
    return folder;
}

/* Only what is ours: over it, or in its place, there may be another mount by now. */
static void unmount_tmpfs(const struct exporter *e)
{
    struct stat ours, there;
    if (fstat(e->root, &ours) == 0 && stat(e->options->mountpoint, &there) == 0 &&
        ours.st_dev == there.st_dev)
        (void)umount2(e->options->mountpoint, MNT_DETACH);
}

/* The file lies where a mount's settings are. The folder is locked: no other export has the file. */
static int open_youngest(struct exporter *e, struct ws_error *err)
{
    const struct ws_mount_options *o = e->options;
    char file[4096], *settings = o->trust.n ? ws_settings_path(o->state, o->mountpoint) : NULL;

    if (settings)
        snprintf(file, sizeof(file), "%s.signed", settings);
    int rc = ws_youngest_open(&e->youngest, settings ? file : NULL, err);
    free(settings);
    return rc;
}

/* Options of a mount that would have no effect. */
static int check_options(const struct ws_mount_options *o, struct ws_error *err)
{
    const char *name = o->asks_parents   ? "topology=auto"
                       : o->rack         ? "rack"
                       : o->peer_token   ? "peer-token-file"
                       : o->serve.listen ? "serve"
                       : o->config       ? "config"
                                         : NULL;
    if (o->store.copies != WS_COPIES_TWO)
        return ws_error_set(err, EINVAL,
                            "wsync export takes no copies=%s: its files are read without it, and are not "
                            "patched under readers; "
                            "mount, or leave it out",
                            ws_copies_name(o->store.copies));
    return name ? ws_error_set(
                      err, EINVAL,
                      "wsync export takes no %s: it serves no mounts and has no engines; mount, or leave "
                      "it out",
                      name)
                : 0;
}

int ws_export_run(const struct ws_mount_options *o, const atomic_bool *stop, void (*ready)(void),
                  struct ws_error *err)
{
    struct exporter e = {.options = o, .err = err};
    struct ws_store_options s = o->store;
    int folder = -1;
    s.own_memory = true;
    s.trust = o->trust.n ? &o->trust : NULL;
    int rc = check_options(o, err);
    if (rc == 0)
        rc = open_root(&e, err);
    if (rc < 0)
        return rc;
    rc = open_youngest(&e, err);
    if (rc == 0)
        rc = ws_store_new(&e.store, &ws_puller, &s, err);
    if (rc < 0) {
        ws_youngest_free(e.youngest);
        close(e.root);
        return rc;
    }
    ws_store_set_reclaim(e.store, remove_version, &e);
    folder = mount_tmpfs(&e);
    rc = ws_mount_options_add_views(o, e.store, err);
    if (rc == 0 && ws_store_learns(e.store))
        rc =
            ws_error_set(err, EINVAL,
                         "wsync export takes no need=learn: its files are read without it, so it would learn "
                         "nothing; write patterns, mount, or leave it out");
    if (rc == 0)
        rc = ws_mount_options_add_sources(o, e.store, err);
    if (rc == 0 && ready)
        ready();
    while (rc == 0 && !atomic_load(stop)) {
        ws_store_each(e.store, visit_model, &e);
        (void)poll(NULL, 0, LOOK_MS);
    }
    if (e.mounted)
        unmount_tmpfs(&e);
    ws_store_free(e.store); /* takes copies away: the root must be open */
    if (folder != e.root)
        close(folder);
    close(e.root);
    ws_youngest_free(e.youngest);
    return rc;
}
