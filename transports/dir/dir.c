/* dir: a folder of checkpoints as a source. Versions are its numbered subfolders (or those of its
 * subfolders, one a model); a folder that is itself a checkpoint is version 1. New ones appear by inotify;
 * a folder that is no whole checkpoint yet is left out until it is. Where it cannot be looked at, what it had
 * stays known: that is no word about what is there. Hashes are computed at the first
 * manifest, on all cores: the folder has none. */
#include "transports/dir/dir.h"
#include "transports/base/below.h"
#include "transports/base/cpu_features.h"
#include "transports/base/file.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include "transports/format/folder.h"
#include "transports/simd/copy.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETTLE_MS 200 /* files of a checkpoint come one after the other */
#define STEP_MS   250
#define MAX_TOLD  64

struct version {
    char *model, *path;
    uint64_t number;
    dev_t dev; /* of the folder when it was checked, as what follows */
    ino_t ino;
    struct timespec mtime;
    uint64_t total_bytes;
    struct ws_manifest *manifest; /* NULL until asked for */
    struct ws_stamp *stamps;      /* of its files, when they were hashed */
    struct version *was;          /* while a scan goes on: the one before, whose all of this is */
};

struct dir_source {
    struct ws_source head;
    char *root, *base; /* base: its last component, the model's name */
    char *below;       /* nothing else is opened; NULL: anything */
    int inotify;
    uint64_t told[MAX_TOLD]; /* hashes of the last complaints, each of which is told once; guarded by lock */
    size_t n_told;
    pthread_mutex_t hashing; /* one manifest at a time; taken before lock */
    pthread_mutex_t lock;
    /* guarded by lock */
    struct version *versions; /* by model, then number */
    size_t n_versions;
    uint64_t seq;
};

struct dir_lane {
    struct ws_lane head;
    int fd;
    char *open_path;
};

static void free_version(struct version *v)
{
    free(v->model);
    free(v->path);
    ws_manifest_free(v->manifest);
    free(v->stamps);
}

static void dir_close(struct ws_source *source)
{
    struct dir_source *s = (struct dir_source *)source;
    for (size_t i = 0; i < s->n_versions; i++)
        free_version(&s->versions[i]);
    free(s->versions);
    if (s->inotify >= 0)
        close(s->inotify);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->hashing);
    free(s->root);
    free(s->base);
    free(s->below);
    free(s->head.url);
    free(s);
}

static int dir_open(const char *url, const struct ws_source_options *options, struct ws_source **out,
                    struct ws_error *err)
{
    char *root;
    int rc = ws_below_root(options->below, url + 4, &root, err);
    if (rc < 0)
        return rc;
    struct dir_source *s = calloc(1, sizeof(*s));
    if (!s) {
        free(root);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    s->root = root;
    const char *slash = strrchr(root, '/');
    s->base = strdup(slash[1] ? slash + 1 : "root");
    s->head.url = strdup(url);
    s->below = options->below ? strdup(options->below) : NULL;
    s->head.ops = &ws_dir_ops;
    s->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->hashing, NULL);
    if (!s->base || !s->head.url || !s->below != !options->below || s->inotify < 0) {
        dir_close(&s->head);
        return ws_error_set(err, ENOMEM, "cannot watch %s: no memory or no inotify instances left", url);
    }
    *out = &s->head;
    return 0;
}

/* What is below the root is opened from there, step by step: others may write to it. */
static int open_in(const struct dir_source *s, const char *path, bool folder, struct stat *st,
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

/* --- what is there --- */

struct scan {
    struct dir_source *source;
    int root;
    struct version *found;
    size_t n;
    struct ws_error err; /* why it cannot tell what is there */
};

static void fail(struct scan *k, int code, const char *path)
{
    if (!k->err.code) /* ENOENT would be said of a model that the source has not got */
        ws_error_set(&k->err, code == ENOENT ? ESTALE : code, "cannot look at %s: %s", path, strerror(code));
}

/* One that has nothing to do with what is looked at. */
static bool is_shortage(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOMEM;
}

static bool is_number(const char *name, uint64_t *out)
{
    return !(name[0] == '0' && name[1]) && ws_text_u64(name, out) == 0;
}

/* Its writer is at work: the next scan finds more of it. */
static bool comes_by_itself(int code)
{
    return code == ENOENT || code == ENOTDIR || code == EBADMSG || code == ESTALE;
}

/* What cannot be read does not come by itself, and every scan finds it again. */
static void complain(struct dir_source *s, const char *where, const struct ws_error *err)
{
    char text[sizeof(err->text) + PATH_MAX];
    snprintf(text, sizeof(text), "left out%s%s: %s", where ? " in " : "", where ? where : "", err->text);
    const uint64_t hash = ws_hash(text, strlen(text));
    for (size_t i = 0; i < MAX_TOLD; i++)
        if (s->told[i] == hash)
            return;
    s->told[s->n_told++ % MAX_TOLD] = hash;
    ws_log(WS_LOG_WARN, "dir", "%s", text);
}

static void watch(struct scan *k, const char *path)
{
    (void)inotify_add_watch(k->source->inotify, path,
                            IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE |
                                IN_ONLYDIR);
}

/* Are its files those that were hashed? Asked only of what was. */
static bool is_as_hashed(int folder, const struct version *v)
{
    for (size_t i = 0; v->manifest && i < v->manifest->n_files; i++) {
        struct stat st;
        if (fstatat(folder, v->manifest->files[i].name, &st, 0) != 0)
            return false;
        struct ws_stamp now = ws_stamp_of(&st);
        if (!ws_stamp_is(&now, &v->stamps[i]))
            return false;
    }
    return true;
}

/* What an earlier scan found at this path, when nothing changed since. */
static bool reuse(struct scan *k, int folder, const char *path, const struct stat *st, struct version *out)
{
    for (size_t i = 0; i < k->source->n_versions; i++) {
        struct version *v = &k->source->versions[i];
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
    const char *path = k->source->root;
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

/* An entry may be read twice while somebody renames others. */
static bool is_found(const struct scan *k, const char *path)
{
    for (size_t i = 0; i < k->n; i++)
        if (strcmp(k->found[i].path, path) == 0)
            return true;
    return false;
}

/* folder: the open folder; taken over. */
static void add_version(struct scan *k, const char *model, uint64_t number, int fd, const char *path)
{
    struct version v = {0};
    struct ws_folder *folder = NULL;
    struct ws_error err = {0};
    struct stat st;
    if (fstat(fd, &st) != 0 || !ws_name_is_model(model) || is_found(k, path)) {
        close(fd);
        return;
    }
    watch(k, path);
    if (reuse(k, fd, path, &st, &v)) {
        close(fd);
    } else {
        int rc = ws_folder_read(fd, path, k->source->below, &folder, &err);
        if (rc < 0) {
            if (is_shortage(-rc))
                fail(k, -rc, path);
            else if (!comes_by_itself(-rc))
                complain(k->source, NULL, &err);
            else
                ws_log(WS_LOG_DEBUG, "dir", "not a whole checkpoint yet: %s", err.text);
            return;
        }
        v = (struct version){.model = strdup(model),
                             .path = strdup(path),
                             .number = number,
                             .dev = st.st_dev,
                             .ino = st.st_ino,
                             .mtime = st.st_mtim};
        bool weights = false;
        for (size_t i = 0; i < folder->n_files; i++) {
            v.total_bytes += folder->files[i].size_bytes;
            weights |= folder->files[i].st != NULL;
        }
        ws_folder_free(folder);
        if (!weights) {
            free_version(&v);
            return;
        }
    }
    struct version *more = k->n < WS_MAX_VERSIONS ? realloc(k->found, (k->n + 1) * sizeof(v)) : NULL;
    if (more)
        k->found = more;
    if (!more || !v.model || !v.path) {
        ws_error_set(&err, E2BIG, "%s has more than %d checkpoints, the limit", k->source->root,
                     WS_MAX_VERSIONS);
        if (k->n < WS_MAX_VERSIONS)
            fail(k, ENOMEM, path);
        else
            complain(k->source, NULL, &err);
        if (!v.was)
            free_version(&v);
        return;
    }
    k->found[k->n++] = v;
}

/* visit takes the child's descriptor over. */
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
        int fd = k->source->below ? ws_below_open(k->source->below, child, true, &st, &err)
                                  : ws_entry_open(folder, e->d_name, true, &st, &err);
        if (fd >= 0)
            visit(k, fd, child, e->d_name);
        else if (is_shortage(-fd))
            fail(k, -fd, child);
        else if (!comes_by_itself(-fd))
            complain(k->source, path, &err);
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
        add_version(k, k->source->base, number, fd, path);
    } else {
        watch(k, path);
        each_folder(k, fd, path, visit_version);
        close(fd);
    }
}

static int by_model_and_number(const void *a, const void *b)
{
    const struct version *x = a, *y = b;
    int c = strcmp(x->model, y->model);
    return c ? c : x->number < y->number ? -1 : x->number > y->number;
}

static void look(struct scan *k)
{
    const char *path = k->source->root;
    struct stat st;
    struct ws_error err;
    k->root = open_in(k->source, path, true, &st, &err);
    if (k->root < 0) {
        fail(k, -k->root, path);
        if (k->root == -EPERM) /* it says more */
            k->err = err;
        return;
    }
    watch(k, path);
    if (has_weights(k)) {
        add_version(k, k->source->base, 1, k->root, path);
        return;
    }
    each_folder(k, k->root, path, visit_top);
    close(k->root);
}

/* Looks at the folders; the sequence number grows when something is different. Where it cannot tell, all
 * stays as it was. Caller holds lock. */
static int rescan(struct dir_source *s, struct ws_error *err)
{
    struct scan k = {.source = s};
    size_t reused = 0;
    look(&k);
    for (size_t i = 0; i < k.n; i++) {
        struct version *was = k.found[i].was;
        k.found[i].was = NULL;
        if (was && !k.err.code)
            *was = (struct version){0};
        else if (!was && k.err.code)
            free_version(&k.found[i]);
        reused += was != NULL;
    }
    if (k.err.code) {
        free(k.found);
        return ws_error_set(err, k.err.code, "%s", k.err.text);
    }
    if (k.n > 1)
        qsort(k.found, k.n, sizeof(k.found[0]), by_model_and_number);
    if (s->seq == 0 || s->n_versions != k.n || reused != k.n)
        s->seq++;
    for (size_t i = 0; i < s->n_versions; i++)
        free_version(&s->versions[i]);
    free(s->versions);
    s->versions = k.found;
    s->n_versions = k.n;
    return 0;
}

static json_t *list_models(struct dir_source *s, const char *wanted)
{
    json_t *models = json_array();
    for (size_t i = 0; i < s->n_versions;) {
        const char *model = s->versions[i].model;
        json_t *versions = json_array();
        uint64_t newest = 0;
        for (; i < s->n_versions && strcmp(s->versions[i].model, model) == 0; i++) {
            const struct version *v = &s->versions[i];
            newest = v->number;
            json_array_append_new(versions,
                                  json_pack("{s:I,s:s,s:s,s:I,s:I}", "version", (json_int_t)v->number, "run",
                                            WS_DIR_RUN, "digest", v->manifest ? v->manifest->digest : "",
                                            "bytes", (json_int_t)v->total_bytes, "created_ns",
                                            (json_int_t)v->mtime.tv_sec * 1000000000));
        }
        json_t *one = json_pack("{s:s,s:I,s:s,s:o}", "name", model, "newest", (json_int_t)newest, "run",
                                WS_DIR_RUN, "versions", versions);
        if (!wanted || strcmp(wanted, model) == 0)
            json_array_append(models, one);
        json_decref(one);
    }
    return json_pack("{s:I,s:o}", "seq", (json_int_t)s->seq, "models", models);
}

/* Waits for inotify up to ms; true when something happened. The events themselves do not matter. */
static bool wait_event(struct dir_source *s, unsigned ms)
{
    char events[4096];
    struct pollfd p = {.fd = s->inotify, .events = POLLIN};
    bool any = poll(&p, 1, (int)ms) > 0;
    while (read(s->inotify, events, sizeof(events)) > 0)
        any = true;
    return any;
}

static int dir_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                      const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    struct dir_source *s = (struct dir_source *)source;
    bool changed = true;
    int rc = 0;
    for (unsigned waited = 0;; waited += STEP_MS) {
        pthread_mutex_lock(&s->lock);
        if (changed || s->seq == 0)
            rc = rescan(s, err);
        bool done = rc < 0 || s->seq > since || waited >= timeout_ms || (cancel && atomic_load(cancel));
        if (done && rc == 0)
            *out = list_models(s, model);
        pthread_mutex_unlock(&s->lock);
        if (done)
            break;
        changed = wait_event(s, STEP_MS);
        if (changed)
            (void)poll(NULL, 0, SETTLE_MS);
    }
    return rc < 0 || *out ? rc : ws_error_set(err, ENOMEM, "no memory for the list of models");
}

/* --- manifests --- */

struct hash_job {
    struct ws_bundle_file *file;
    int fd;
    int error;
};

static void hash_block(void *arg, size_t i)
{
    struct hash_job *j = arg;
    const size_t n = ws_block_len(j->file, i);
    unsigned char *buffer = malloc(n);
    const ssize_t got = buffer ? ws_file_read(j->fd, buffer, n, i * WS_BLOCK_BYTES) : -ENOMEM;
    if (got == (ssize_t)n)
        j->file->hashes[i] = ws_hash(buffer, n);
    else
        j->error = got < 0 ? (int)-got : ENODATA;
    free(buffer);
}

/* Of the files in the order of the folder, which is the manifest's. */
static int hash_folder(struct ws_manifest *m, const struct ws_folder *folder, struct ws_error *err)
{
    struct ws_workers *w = ws_workers_new(ws_cpu_cores(0), 5);
    int rc = w ? 0 : ws_error_set(err, ENOMEM, "no memory for workers");
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        const char *name = folder->files[i].path;
        struct hash_job j = {.file = &m->files[i], .fd = ws_folder_file_open(folder, &folder->files[i], err)};
        struct stat st;
        if (j.fd < 0) {
            rc = j.fd;
            break;
        }
        ws_workers_run(w, hash_block, &j, j.file->n_blocks);
        struct ws_stamp now = fstat(j.fd, &st) == 0 ? ws_stamp_of(&st) : (struct ws_stamp){0};
        if (!j.error && !ws_stamp_is(&now, &folder->files[i].stamp))
            rc = ws_error_set(err, ESTALE, "%s was written to while it was hashed: let its writer finish",
                              name);
        if (j.error)
            rc = ws_error_set(err, j.error == ENODATA ? ESTALE : j.error, "cannot hash %s: %s", name,
                              j.error == ENODATA ? "it shrank meanwhile" : strerror(j.error));
        close(j.fd);
    }
    ws_workers_free(w);
    return rc;
}

static int make_manifest(const struct dir_source *s, struct version *v, struct ws_manifest **out,
                         struct ws_error *err)
{
    struct ws_folder *folder;
    struct ws_manifest *m = NULL;
    struct stat st;
    int fd = open_in(s, v->path, true, &st, err);
    int rc = fd < 0 ? fd : ws_folder_read(fd, v->path, s->below, &folder, err);
    if (rc < 0)
        return rc;
    v->stamps = calloc(folder->n_files, sizeof(*v->stamps));
    rc = v->stamps ? ws_manifest_new(&m, v->model, v->number, WS_DIR_RUN, err)
                   : ws_error_set(err, ENOMEM, "no memory for a manifest");
    for (size_t i = 0; rc == 0 && i < folder->n_files; i++) {
        struct ws_bundle_file *f;
        v->stamps[i] = folder->files[i].stamp;
        rc = ws_manifest_add(m, folder->files[i].name, folder->files[i].size_bytes,
                             folder->files[i].st ? folder->files[i].st->data_begin : 0, &f, err);
    }
    if (rc == 0)
        rc = hash_folder(m, folder, err);
    ws_folder_free(folder);
    if (rc < 0) {
        ws_manifest_free(m);
        return rc;
    }
    m->created_ns = (uint64_t)v->mtime.tv_sec * 1000000000 + (uint64_t)v->mtime.tv_nsec;
    ws_manifest_seal(m);
    *out = m;
    return 0;
}

static struct version *find_version(struct dir_source *s, const char *model, uint64_t number)
{
    for (size_t i = 0; i < s->n_versions; i++)
        if (s->versions[i].number == number && strcmp(s->versions[i].model, model) == 0)
            return &s->versions[i];
    return NULL;
}

static int dir_manifest(struct ws_source *source, const char *model, uint64_t number, const char *run,
                        const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    (void)cancel;
    struct dir_source *s = (struct dir_source *)source;
    struct version copy = {0};
    int rc = 0;
    (void)run;
    pthread_mutex_lock(&s->hashing);
    pthread_mutex_lock(&s->lock);
    if (s->seq == 0)
        rc = rescan(s, err);
    struct version *v = find_version(s, model, number);
    if (rc < 0)
        v = NULL;
    else if (!v)
        rc = ws_error_set(err, ENOENT, "%s has no checkpoint %s/%" PRIu64, s->head.url, model, number);
    else if (v->manifest)
        rc = ws_manifest_copy(v->manifest, out);
    else
        copy = (struct version){
            .model = strdup(v->model), .path = strdup(v->path), .number = number, .mtime = v->mtime};
    pthread_mutex_unlock(&s->lock);
    if (rc == 0 && copy.path && copy.model) {
        rc = make_manifest(s, &copy, out, err);
        pthread_mutex_lock(&s->lock);
        v = find_version(s, model, number);
        if (rc == 0 && v && !v->manifest) {
            if (ws_manifest_copy(*out, &v->manifest))
                v->manifest = NULL; /* hashed again next time */
            free(v->stamps);
            v->stamps = copy.stamps;
            copy.stamps = NULL;
        }
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&s->hashing);
    free(copy.model);
    free(copy.path);
    free(copy.stamps);
    return rc;
}

/* --- bytes --- */

static int dir_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct dir_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    l->head.source = source;
    l->fd = -1;
    *out = &l->head;
    return 0;
}

static void dir_lane_close(struct ws_lane *lane)
{
    struct dir_lane *l = (struct dir_lane *)lane;
    if (l->fd >= 0)
        close(l->fd);
    free(l->open_path);
    free(l);
}

/* Nothing is between the file and us: what has another hash now was another file when it was hashed. */
static int was_changed(const struct dir_lane *l, const struct ws_manifest *m, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG,
                        "%s has changed since %s/%" PRIu64 " was offered: write other weights into a folder "
                        "of a new number, or drop the version to take what is there now",
                        l->open_path, m->model, m->version);
}

static int open_file(struct dir_lane *l, const struct ws_manifest *m, const struct ws_bundle_file *f,
                     struct ws_error *err)
{
    struct dir_source *s = (struct dir_source *)l->head.source;
    char path[PATH_MAX] = "";
    struct stat st;
    pthread_mutex_lock(&s->lock);
    const struct version *v = find_version(s, m->model, m->version);
    if (v)
        snprintf(path, sizeof(path), "%s/%s", v->path, f->name);
    pthread_mutex_unlock(&s->lock);
    if (!path[0])
        return ws_error_set(err, ESTALE, "%s/%" PRIu64 " is gone from %s", m->model, m->version, s->head.url);
    if (!l->open_path || strcmp(l->open_path, path) != 0) {
        if (l->fd >= 0)
            close(l->fd);
        free(l->open_path);
        l->open_path = NULL;
        l->fd = open_in(s, path, false, &st, err);
        if (l->fd < 0)
            return l->fd == -ENOENT ? ws_error_set(err, ESTALE, "%s is gone", path) : l->fd;
        l->open_path = strdup(path);
    }
    if (fstat(l->fd, &st) != 0)
        return ws_error_set(err, errno, "cannot stat %s: %s", path, strerror(errno));
    if ((uint64_t)st.st_size != f->size_bytes)
        return was_changed(l, m, err);
    return 0;
}

static int dir_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct dir_lane *l = (struct dir_lane *)lane;
    const struct ws_bundle_file *file = &f->manifest->files[f->file];
    int rc = open_file(l, f->manifest, file, err);
    for (size_t i = f->first; rc == 0 && i < f->first + f->n; i++) {
        const size_t n = ws_block_len(file, i);
        unsigned char *dst = f->dst + i * WS_BLOCK_BYTES;
        if (f->cancel && atomic_load(f->cancel))
            return ws_error_set(err, ECANCELED, "the transfer was stopped");
        const ssize_t got = ws_file_read(l->fd, dst, n, i * WS_BLOCK_BYTES);
        if (got < 0)
            return ws_error_set(err, (int)-got, "cannot read %s: %s", l->open_path, strerror((int)-got));
        ws_fetch_came(f, (size_t)got);
        if (got < (ssize_t)n)
            return was_changed(l, f->manifest, err);
        const uint64_t hash = ws_hash(dst, n);
        if (hash != file->hashes[i])
            rc = was_changed(l, f->manifest, err);
        else if (f->block(f->arg, i, hash))
            rc = ws_error_set(err, ECANCELED, "the transfer was stopped");
    }
    return rc;
}

const struct ws_transport_ops ws_dir_ops = {
    .name = "dir",
    .schemes = (const char *const[]){"dir:", NULL},
    .open = dir_open,
    .close = dir_close,
    .models = dir_models,
    .manifest = dir_manifest,
    .lane_open = dir_lane_open,
    .lane_close = dir_lane_close,
    .fetch = dir_fetch,
};
