/* dir: a folder of checkpoints as a source (dir_scan.h says what a version is there). New ones show by inotify.
 * The folder has no hashes: they are computed for the first manifest that is requested (dir_manifest.h). */
#include "transports/dir/dir.h"
#include "transports/base/below.h"
#include "transports/base/file.h"
#include "transports/dir/dir_manifest.h"
#include "transports/dir/dir_scan.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETTLE_MS 200 /* files of a checkpoint come one after the other */
#define STEP_MS   250

struct dir_source {
    struct ws_source head;
    pthread_mutex_t hashing; /* one manifest at a time; taken before lock */
    pthread_mutex_t lock;
    struct ws_dir_scan scan; /* guarded by lock, as dir_scan.h says */
};

struct dir_lane {
    struct ws_lane head;
    int fd;
    char *open_path;
};

static void dir_close(struct ws_source *source)
{
    struct dir_source *s = (struct dir_source *)source;
    ws_dir_scan_free(&s->scan);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->hashing);
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
    s->head.url = strdup(url);
    s->head.ops = &ws_dir_ops;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->hashing, NULL);
    rc = ws_dir_scan_init(&s->scan, root, options->below);
    if (rc < 0 || !s->head.url) {
        dir_close(&s->head);
        return ws_error_set(err, ENOMEM, "cannot watch %s: no memory or no inotify instances left", url);
    }
    *out = &s->head;
    return 0;
}

/* --- what is there --- */

static json_t *list_models(const struct ws_dir_scan *s, const char *wanted)
{
    json_t *models = json_array();
    for (size_t i = 0; i < s->versions.len;) {
        const char *model = s->versions.ptr[i].model;
        json_t *versions = json_array();
        uint64_t newest = 0;
        for (; i < s->versions.len && strcmp(s->versions.ptr[i].model, model) == 0; i++) {
            const struct ws_dir_version *v = &s->versions.ptr[i];
            newest = v->number;
            json_array_append_new(versions,
                                  json_pack("{s:I,s:s,s:s,s:I,s:I}", "version", (json_int_t)v->number, "run",
                                            WS_DIR_LINEAGE, "digest", v->manifest ? v->manifest->digest : "",
                                            "bytes", (json_int_t)v->total_bytes, "created_ns",
                                            (json_int_t)v->mtime.tv_sec * 1000000000));
        }
        json_t *one = json_pack("{s:s,s:I,s:s,s:o}", "name", model, "newest", (json_int_t)newest, "run",
                                WS_DIR_LINEAGE, "versions", versions);
        if (!wanted || strcmp(wanted, model) == 0)
            json_array_append(models, one);
        json_decref(one);
    }
    return json_pack("{s:I,s:o}", "seq", (json_int_t)s->seq, "models", models);
}

static int dir_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                      const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    struct dir_source *s = (struct dir_source *)source;
    bool changed = true;
    int rc = 0;
    for (unsigned waited = 0;; waited += STEP_MS) {
        pthread_mutex_lock(&s->lock);
        if (changed || s->scan.seq == 0)
            rc = ws_dir_scan(&s->scan, err);
        bool done = rc < 0 || s->scan.seq > since || waited >= timeout_ms || (cancel && atomic_load(cancel));
        if (done && rc == 0)
            *out = list_models(&s->scan, model);
        pthread_mutex_unlock(&s->lock);
        if (done)
            break;
        changed = ws_dir_scan_wait(&s->scan, STEP_MS);
        if (changed)
            (void)poll(NULL, 0, SETTLE_MS);
    }
    return rc < 0 || *out ? rc : ws_error_set(err, ENOMEM, "no memory for the list of models");
}

/* What ws_dir_manifest reads of a version, for use without the lock. */
static int copy_version(const struct ws_dir_version *v, struct ws_dir_version *out, struct ws_error *err)
{
    *out = (struct ws_dir_version){
        .model = strdup(v->model), .path = strdup(v->path), .number = v->number, .mtime = v->mtime};
    return out->model && out->path ? 0 : ws_error_set(err, ENOMEM, "no memory for a manifest");
}

/* One version is hashed at a time. */
static int begin_hashing(struct dir_source *s, const atomic_bool *cancel, struct ws_error *err)
{
    struct timespec until;
    do {
        if (cancel && atomic_load(cancel))
            return ws_error_set(err, ECANCELED, "the wait for a manifest was stopped");
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += STEP_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
    } while (pthread_mutex_timedlock(&s->hashing, &until) != 0);
    return 0;
}

static int dir_manifest(struct ws_source *source, const char *model, uint64_t number, const char *lineage,
                        const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    struct dir_source *s = (struct dir_source *)source;
    struct ws_dir_version copy = {0};
    (void)lineage;
    int rc = begin_hashing(s, cancel, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&s->lock);
    if (s->scan.seq == 0)
        rc = ws_dir_scan(&s->scan, err);
    struct ws_dir_version *v = ws_dir_scan_find(&s->scan, model, number);
    if (rc < 0)
        v = NULL;
    else if (!v)
        rc = ws_error_set(err, ENOENT, "%s has no checkpoint %s/%" PRIu64, s->head.url, model, number);
    else if (v->manifest)
        rc = ws_manifest_copy(v->manifest, out);
    else
        rc = copy_version(v, &copy, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0 && copy.path) {
        rc = ws_dir_manifest(&s->scan, &copy, cancel, out, err);
        pthread_mutex_lock(&s->lock);
        v = ws_dir_scan_find(&s->scan, model, number);
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

/* Nothing lies between the file and its reader: a file with another hash has been written to. */
static int was_changed(const struct dir_lane *l, const struct ws_manifest *m, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG,
                        "%s has changed since %s/%" PRIu64 " was offered: write other weights into a folder "
                        "of a new number, or drop the version to take what is there now",
                        l->open_path, m->model, m->version);
}

static int open_file(struct dir_lane *l, const struct ws_manifest *m, const struct ws_manifest_file *f,
                     struct ws_error *err)
{
    struct dir_source *s = (struct dir_source *)l->head.source;
    char path[PATH_MAX] = "";
    struct stat st;
    pthread_mutex_lock(&s->lock);
    const struct ws_dir_version *v = ws_dir_scan_find(&s->scan, m->model, m->version);
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
        l->fd = ws_dir_scan_open(&s->scan, path, false, &st, err);
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
    const struct ws_manifest_file *file = &f->manifest->files[f->file];
    int rc = open_file(l, f->manifest, file, err);
    for (size_t i = f->first; rc == 0 && i < f->first + f->n; i++) {
        const size_t n = ws_manifest_block_bytes(file, i);
        unsigned char *dst = ws_fetch_dst(f, i);
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
