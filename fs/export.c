#include "fs/export.h"
#include "transports/log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_MS 200

struct exporter {
    const struct ws_mount_options *options;
    struct ws_store *store;
    bool mounted; /* the tmpfs is at the mountpoint: files are links */
    struct ws_error *err;
    int result;
};

static int copy_file(const unsigned char *data, uint64_t size, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444), rc = 0;
    if (fd < 0)
        return -errno;
    for (uint64_t at = 0; rc == 0 && at < size;) {
        ssize_t n = write(fd, data + at, size - at);
        if (n < 0 && errno != EINTR)
            rc = -errno;
        at += n > 0 ? (uint64_t)n : 0;
    }
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

static int place_file(struct exporter *e, struct ws_version *v, size_t i, const char *path)
{
    struct ws_region *r = ws_version_region(v, i);
    if (e->mounted && r && ws_region_link(r, AT_FDCWD, path) == 0)
        return 0;
    return copy_file(r ? ws_region_data(r) : NULL, r ? ws_region_size(r) : 0, path);
}

static void remove_folder(const char *path)
{
    char name[8192];
    DIR *d = opendir(path);
    for (const struct dirent *f; d && (f = readdir(d));) {
        snprintf(name, sizeof(name), "%s/%s", path, f->d_name);
        (void)unlink(name);
    }
    if (d)
        closedir(d);
    (void)rmdir(path);
}

/* The folder appears under its name only when every file is in it. */
static int place_version(struct exporter *e, struct ws_version *v, const char *model, const char *name)
{
    char part[4096], final[4096], path[8192];
    const struct ws_manifest *m = ws_version_manifest(v, e->err);
    snprintf(final, sizeof(final), "%s/%s/%s", e->options->mountpoint, model, name);
    snprintf(part, sizeof(part), "%s/%s/.%s.part", e->options->mountpoint, model, name);
    if (!m)
        return -EIO;
    remove_folder(part);
    int rc = mkdir(part, 0755) == 0 ? 0 : -errno;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        snprintf(path, sizeof(path), "%s/%s", part, m->files[i].name);
        rc = place_file(e, v, i, path);
    }
    if (rc == 0 && rename(part, final) != 0)
        rc = -errno;
    if (rc < 0)
        remove_folder(part);
    else
        ws_log(WS_LOG_INFO, "export", "version is there path=%s", final);
    return rc;
}

/* Before its memory is used again nobody may be able to open it. */
static void take_away(void *arg, struct ws_version *v)
{
    const struct exporter *e = arg;
    char path[4096], name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    snprintf(path, sizeof(path), "%s/%s/%s", e->options->mountpoint, ws_model_name(ws_version_model(v)),
             name);
    remove_folder(path);
}

static void set_link(const struct exporter *e, const char *model, const char *link, const char *name)
{
    char path[4096], part[4096], now[WS_MAX_NAME + 1] = "";
    snprintf(path, sizeof(path), "%s/%s/%s", e->options->mountpoint, model, link);
    snprintf(part, sizeof(part), "%s/%s/.%s.part", e->options->mountpoint, model, link);
    ssize_t n = readlink(path, now, sizeof(now) - 1);
    if (n > 0 && strcmp(now, name) == 0)
        return;
    (void)unlink(part);
    if (symlink(name, part) != 0 || rename(part, path) != 0)
        ws_log(WS_LOG_WARN, "export", "cannot move the link %s: %s", path, strerror(errno));
}

static void visit_version(void *arg, struct ws_version *v)
{
    struct exporter *e = arg;
    char name[WS_MAX_NAME + 1], path[4096];
    struct stat st;
    const char *model = ws_model_name(ws_version_model(v));
    enum ws_state state = ws_version_state(v);
    ws_version_name(v, name);
    snprintf(path, sizeof(path), "%s/%s/%s", e->options->mountpoint, model, name);
    if ((state == WS_READY || state == WS_ACTIVE) && name[0] && stat(path, &st) != 0) {
        int rc = place_version(e, v, model, name);
        if (rc < 0)
            ws_log(WS_LOG_ERROR, "export", "cannot write %s: %s", path, strerror(-rc));
    }
}

/* Takes folders away whose version is gone. */
static void visit_folders(struct exporter *e, struct ws_model *m)
{
    char path[4096], folder[8192];
    struct ws_error ignored;
    snprintf(path, sizeof(path), "%s/%s", e->options->mountpoint, ws_model_name(m));
    DIR *d = opendir(path);
    for (const struct dirent *f; d && (f = readdir(d));) {
        if (f->d_type != DT_DIR || f->d_name[0] == '.')
            continue;
        struct ws_version *v = ws_version_find(m, f->d_name, &ignored);
        if (!v) {
            snprintf(folder, sizeof(folder), "%s/%s", path, f->d_name);
            remove_folder(folder);
        } else {
            ws_version_put(v);
        }
    }
    if (d)
        closedir(d);
}

static void visit_model(void *arg, struct ws_model *m)
{
    struct exporter *e = arg;
    char path[4096], name[WS_MAX_NAME + 1];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", e->options->mountpoint, ws_model_name(m));
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return;
    struct ws_version *latest = ws_model_latest(m);
    if (latest && ws_version_state(latest) == WS_KNOWN)
        ws_version_start(latest, WS_PRIORITY_BACKGROUND);
    visit_folders(e, m);
    ws_model_each(m, visit_version, e);
    if (latest) {
        ws_version_name(latest, name);
        snprintf(path, sizeof(path), "%s/%s/%s", e->options->mountpoint, ws_model_name(m), name);
        if (stat(path, &st) == 0)
            set_link(e, ws_model_name(m), "latest", name);
        ws_version_put(latest);
    }
}

int ws_export_run(const struct ws_mount_options *o, const atomic_bool *stop, void (*ready)(void),
                  struct ws_error *err)
{
    struct exporter e = {.options = o, .err = err};
    struct ws_store_options s = o->store;
    char *copy = strdup(o->source), *save = NULL;
    s.own_memory = true;
    int rc = copy ? ws_store_new(&e.store, &s, err) : ws_error_set(err, ENOMEM, "no memory");
    if (rc < 0) {
        free(copy);
        return rc;
    }
    ws_store_set_release(e.store, take_away, &e);
    if (mkdir(o->mountpoint, 0755) != 0 && errno != EEXIST)
        rc = ws_error_set(err, errno, "cannot make %s: %s", o->mountpoint, strerror(errno));
    int fs = rc == 0 ? ws_region_tmpfs() : -EPERM;
    if (fs >= 0)
        e.mounted = syscall(SYS_move_mount, fs, "", AT_FDCWD, o->mountpoint, MOVE_MOUNT_F_EMPTY_PATH) == 0;
    if (rc == 0 && !e.mounted)
        ws_log(WS_LOG_WARN, "export",
               "no tmpfs can be mounted at %s: files are copies, which takes the memory twice",
               o->mountpoint);
    for (char *url = strtok_r(copy, ",", &save); url && rc == 0; url = strtok_r(NULL, ",", &save))
        rc = ws_store_add(e.store, url, NULL, err);
    free(copy);
    if (rc == 0 && ready)
        ready();
    while (rc == 0 && !atomic_load(stop)) {
        ws_store_each(e.store, visit_model, &e);
        (void)poll(NULL, 0, LOOK_MS);
    }
    if (e.mounted)
        (void)umount2(o->mountpoint, MNT_DETACH);
    ws_store_free(e.store);
    return rc;
}
