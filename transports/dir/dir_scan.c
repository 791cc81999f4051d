#include "transports/dir/dir_scan.h"
#include "transports/base/below.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/simd/copy.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#define REST_S 60 /* after which what is no whole checkpoint is not expected to become one */

static void free_version(struct ws_dir_version *v)
{
    free(v->model);
    free(v->path);
    ws_manifest_free(v->manifest);
    free(v->stamps);
}

static void free_versions(struct ws_dir_scan *s)
{
    for (size_t i = 0; i < s->versions.len; i++)
        free_version(&s->versions.ptr[i]);
    ws_dir_versions_reset(&s->versions);
}

int ws_dir_scan_init(struct ws_dir_scan *s, char *root, const char *below)
{
    const char *slash = strrchr(root, '/');
    *s = (struct ws_dir_scan){.root = root,
                              .name = strdup(slash[1] ? slash + 1 : "root"),
                              .below = below ? strdup(below) : NULL,
                              .inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
    return s->name && !s->below == !below && s->inotify >= 0 ? 0 : -ENOMEM;
}

void ws_dir_scan_free(struct ws_dir_scan *s)
{
    free_versions(s);
    if (s->inotify >= 0)
        close(s->inotify);
    free(s->root);
    free(s->name);
    free(s->below);
}

/* Below the root every step is opened from the one before: others may write to the folder. */
int ws_dir_scan_open(const struct ws_dir_scan *s, const char *path, bool folder, struct stat *st,
                     struct ws_error *err)
{
    if (s->below)
        return ws_below_open(s->below, path, folder, st, err);
    int root = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return ws_error_set(err, errno, "cannot open %s: %s", s->root, strerror(errno));
    const char *below = path + strlen(s->root);
    below += strspn(below, "/");
    int fd = ws_entry_open(root, *below ? below : ".", folder, st, err);
    close(root);
    return fd;
}

/* --- one scan --- */

struct scan {
    struct ws_dir_scan *dir;
    int root;
    struct ws_dir_versions found;
    struct ws_error err; /* why it is unknown what is there */
};

static void fail(struct scan *k, int code, const char *path)
{
    if (!k->err.code) /* ENOENT would mean that the source lacks the model */
        ws_error_set(&k->err, code == ENOENT ? ESTALE : code, "cannot look at %s: %s", path, strerror(code));
}

/* A lack of this process, whatever the folder holds. */
static bool is_shortage(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOMEM;
}

static bool is_number(const char *name, uint64_t *out)
{
    return !(name[0] == '0' && name[1]) && ws_text_u64(name, out) == 0 && *out <= INT64_MAX; /* of JSON */
}

/* Its writer is still at work: a later scan finds more of it. */
static bool comes_by_itself(int code)
{
    return code == ENOENT || code == ENOTDIR || code == EBADMSG || code == ESTALE;
}

/* Waiting does not help what cannot be read, and every scan finds it again: each complaint is logged once. */
static void complain(struct ws_dir_scan *s, const char *where, const struct ws_error *err)
{
    char text[sizeof(err->text) + PATH_MAX];
    snprintf(text, sizeof(text), "left out%s%s: %s", where ? " in " : "", where ? where : "", err->text);
    const uint64_t hash = ws_hash(text, strlen(text));
    for (size_t i = 0; i < WS_DIR_COMPLAINTS; i++)
        if (s->complaints[i] == hash)
            return;
    s->complaints[s->n_complaints++ % WS_DIR_COMPLAINTS] = hash;
    ws_log(WS_LOG_WARN, "dir", "%s", text);
}

static void watch(struct scan *k, const char *path)
{
    (void)inotify_add_watch(k->dir->inotify, path,
                            IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE |
                                IN_ONLYDIR);
}

/* Are its files those that were hashed? True where none was. */
static bool is_as_hashed(int folder, const struct ws_dir_version *v)
{
    for (size_t i = 0; v->manifest && i < v->manifest->n_files; i++) {
        struct stat st;
        if (fstatat(folder, v->manifest->files[i].name, &st, 0) != 0)
            return false;
        struct ws_stamp now = ws_stamp_from_stat(&st);
        if (!ws_stamp_equal(&now, &v->stamps[i]))
            return false;
    }
    return true;
}

/* What an earlier scan found at this path, when nothing changed since. */
static bool reuse(struct scan *k, int folder, const char *path, const struct stat *st,
                  struct ws_dir_version *out)
{
    for (size_t i = 0; i < k->dir->versions.len; i++) {
        struct ws_dir_version *v = &k->dir->versions.ptr[i];
        if (v->path && strcmp(v->path, path) == 0 && v->dev == st->st_dev && v->ino == st->st_ino &&
            v->mtime.tv_sec == st->st_mtim.tv_sec && v->mtime.tv_nsec == st->st_mtim.tv_nsec &&
            is_as_hashed(folder, v)) {
            *out = *v;
            out->was = v;
            return true;
        }
    }
    return false;
}

static DIR *open_list(struct scan *k, int folder, const char *path)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && (folder == k->root || is_shortage(errno)))
        fail(k, errno, path);
    if (!d && fd >= 0)
        close(fd);
    return d;
}

/* The next entry; NULL: that was the last, or the rest cannot be read. */
static const struct dirent *next_entry(struct scan *k, DIR *d, const char *path)
{
    errno = 0;
    const struct dirent *e = readdir(d);
    if (!e && errno)
        fail(k, errno, path);
    return e;
}

static bool has_weights(struct scan *k)
{
    const char *path = k->dir->root;
    DIR *d = open_list(k, k->root, path);
    bool found = false;
    for (const struct dirent *e; d && !found && (e = next_entry(k, d, path));) {
        size_t n = strlen(e->d_name);
        found = n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0;
    }
    if (d)
        closedir(d);
    return found;
}

/* Has nothing in the folder changed for so long that no writer is at work any more? False, too, where that cannot be
 * told. */
static bool is_at_rest(const struct scan *k, const char *path)
{
    struct stat st;
    const int fd = ws_dir_scan_open(k->dir, path, true, &st, NULL);
    const time_t before = time(NULL) - REST_S;
    bool rests = fd >= 0 && st.st_ctim.tv_sec < before;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (const struct dirent *e; rests && d && (e = readdir(d));)
        rests = strcmp(e->d_name, "..") == 0 ||
                (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ctim.tv_sec < before);
    rests = rests && d;
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    return rests;
}

/* An entry may be read twice while other entries are renamed. */
static bool is_found(const struct scan *k, const char *path)
{
    for (size_t i = 0; i < k->found.len; i++)
        if (strcmp(k->found.ptr[i].path, path) == 0)
            return true;
    return false;
}

/* Closes fd. false: it is no whole checkpoint, or could not be read. */
static bool read_version(struct scan *k, const char *model, uint64_t number, int fd, const char *path,
                         const struct stat *st, struct ws_dir_version *out)
{
    struct ws_folder *folder;
    struct ws_error err = {0};
    bool weights = false;
    int rc = ws_folder_read(fd, path, k->dir->below, &folder, &err);
    if (rc < 0) {
        if (is_shortage(-rc))
            fail(k, -rc, path);
        else if (!comes_by_itself(-rc) || is_at_rest(k, path))
            complain(k->dir, NULL, &err);
        else
            ws_log(WS_LOG_DEBUG, "dir", "not a whole checkpoint yet: %s", err.text);
        return false;
    }
    *out = (struct ws_dir_version){.model = strdup(model),
                                   .path = strdup(path),
                                   .number = number,
                                   .dev = st->st_dev,
                                   .ino = st->st_ino,
                                   .mtime = st->st_mtim};
    for (size_t i = 0; i < folder->n_files; i++) {
        out->total_bytes += folder->files[i].size_bytes;
        weights |= folder->files[i].st != NULL;
    }
    ws_folder_free(folder);
    if (!weights)
        free_version(out);
    return weights;
}

/* Closes fd, the open folder. */
static void add_version(struct scan *k, const char *model, uint64_t number, int fd, const char *path)
{
    struct ws_dir_version v = {0};
    struct ws_error err = {0};
    struct stat st;
    if (fstat(fd, &st) != 0 || !ws_name_is_model(model) || is_found(k, path)) {
        close(fd);
        return;
    }
    watch(k, path);
    if (reuse(k, fd, path, &st, &v))
        close(fd);
    else if (!read_version(k, model, number, fd, path, &st, &v))
        return;
    int rc = v.model && v.path ? ws_dir_versions_append_most(&k->found, v, WS_MAX_VERSIONS) : -ENOMEM;
    if (rc == 0)
        return;
    ws_error_set(&err, E2BIG, "%s has more than %d checkpoints, the limit", k->dir->root, WS_MAX_VERSIONS);
    if (rc == -ENOMEM)
        fail(k, ENOMEM, path);
    else
        complain(k->dir, NULL, &err);
    if (!v.was)
        free_version(&v);
}

/* visit closes the child's descriptor. */
static void each_folder(struct scan *k, int folder, const char *path,
                        void (*visit)(struct scan *, int fd, const char *path, const char *name))
{
    char child[PATH_MAX];
    struct stat st;
    struct ws_error err = {0};
    DIR *d = open_list(k, folder, path);
    for (const struct dirent *e; d && (e = next_entry(k, d, path));) {
        if (e->d_name[0] == '.' || snprintf(child, sizeof(child), "%s/%s", path, e->d_name) >= PATH_MAX)
            continue;
        int fd = k->dir->below ? ws_below_open(k->dir->below, child, true, &st, &err)
                               : ws_entry_open(folder, e->d_name, true, &st, &err);
        if (fd >= 0)
            visit(k, fd, child, e->d_name);
        else if (is_shortage(-fd))
            fail(k, -fd, child);
        else if (!comes_by_itself(-fd))
            complain(k->dir, path, &err);
    }
    if (d)
        closedir(d);
}

static void visit_version(struct scan *k, int fd, const char *path, const char *name)
{
    char parent[PATH_MAX];
    uint64_t number;
    snprintf(parent, sizeof(parent), "%.*s", (int)(strlen(path) - strlen(name) - 1), path);
    if (is_number(name, &number))
        add_version(k, strrchr(parent, '/') + 1, number, fd, path);
    else
        close(fd);
}

static void visit_top(struct scan *k, int fd, const char *path, const char *name)
{
    uint64_t number;
    if (is_number(name, &number)) {
        add_version(k, k->dir->name, number, fd, path);
    } else {
        watch(k, path);
        each_folder(k, fd, path, visit_version);
        close(fd);
    }
}

static int by_model_and_number(const void *a, const void *b)
{
    const struct ws_dir_version *x = a, *y = b;
    int c = strcmp(x->model, y->model);
    return c ? c : x->number < y->number ? -1 : x->number > y->number;
}

static void look(struct scan *k)
{
    const char *path = k->dir->root;
    struct stat st;
    struct ws_error err;
    k->root = ws_dir_scan_open(k->dir, path, true, &st, &err);
    if (k->root < 0) {
        fail(k, -k->root, path);
        if (k->root == -EPERM) /* it says more */
            k->err = err;
        return;
    }
    watch(k, path);
    if (has_weights(k)) {
        add_version(k, k->dir->name, 1, k->root, path);
        return;
    }
    each_folder(k, k->root, path, visit_top);
    close(k->root);
}

int ws_dir_scan(struct ws_dir_scan *s, struct ws_error *err)
{
    struct scan k = {.dir = s};
    size_t reused = 0;
    look(&k);
    for (size_t i = 0; i < k.found.len; i++) {
        struct ws_dir_version *was = k.found.ptr[i].was;
        k.found.ptr[i].was = NULL;
        if (was && !k.err.code)
            *was = (struct ws_dir_version){0};
        else if (!was && k.err.code)
            free_version(&k.found.ptr[i]);
        reused += was != NULL;
    }
    if (k.err.code) {
        ws_dir_versions_reset(&k.found);
        return ws_error_set(err, k.err.code, "%s", k.err.text);
    }
    if (k.found.len > 1)
        qsort(k.found.ptr, k.found.len, sizeof(k.found.ptr[0]), by_model_and_number);
    if (s->seq == 0 || s->versions.len != k.found.len || reused != k.found.len)
        s->seq++;
    free_versions(s);
    s->versions = k.found;
    return 0;
}

struct ws_dir_version *ws_dir_scan_find(const struct ws_dir_scan *s, const char *model, uint64_t number)
{
    for (size_t i = 0; i < s->versions.len; i++)
        if (s->versions.ptr[i].number == number && strcmp(s->versions.ptr[i].model, model) == 0)
            return &s->versions.ptr[i];
    return NULL;
}

/* The events themselves do not matter: a scan looks at everything. */
bool ws_dir_scan_wait(const struct ws_dir_scan *s, unsigned ms)
{
    char events[4096];
    struct pollfd p = {.fd = s->inotify, .events = POLLIN};
    bool any = poll(&p, 1, (int)ms) > 0;
    while (read(s->inotify, events, sizeof(events)) > 0)
        any = true;
    return any;
}
