#include "transports/dir/archive.h"
#include "transports/base/below.h"
#include "transports/base/clock.h"
#include "transports/base/file.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/delta/listing.h"
#include "transports/delta/stream.h"
#include "transports/dir/archive_listing.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES (1UL << 20)
#define SPARE_BYTES (1UL << 20) /* of a disk: for manifests and listings */

struct ws_archive {
    char root[WS_ARCHIVE_ROOT_BYTES];
    int lock;
    struct ws_archive_listing listing;
    unsigned char *buffer; /* of one block */
};

bool ws_archive_is_at(const char *dir)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    struct stat st;
    if (strlen(dir) >= WS_ARCHIVE_ROOT_BYTES)
        return false;
    ws_archive_path(path, dir, NULL, UINT64_MAX, "models");
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* --- files --- */

static int failed(struct ws_error *err, const char *what, const char *path)
{
    int code = errno;
    return ws_error_set(err, code, "cannot %s %s: %s", what, path, strerror(code));
}

static int create(const char *path, struct ws_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd < 0 ? failed(err, "make", path) : fd;
}

/* Durable, and out of the page cache: a trainer node has better uses for that memory. */
static int finish_file(int fd, const char *path, int rc, struct ws_error *err)
{
    if (rc == 0 && fsync(fd) < 0)
        rc = failed(err, "write", path);
    if (rc == 0)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(fd) < 0 && rc == 0)
        rc = failed(err, "write", path);
    return rc;
}

static int write_file(const char *path, const void *bytes, size_t n, struct ws_error *err)
{
    int fd = create(path, err);
    if (fd < 0)
        return fd;
    return finish_file(fd, path, ws_file_write(fd, bytes, n) < 0 ? failed(err, "write", path) : 0, err);
}

static int sync_folder(const char *path, struct ws_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed(err, "open", path);
    /* Some network file systems do not know this; their renames are durable. */
    int rc = fsync(fd) < 0 && errno != EINVAL && errno != ENOTSUP ? failed(err, "write", path) : 0;
    close(fd);
    return rc;
}

static int make_folder(const char *path, struct ws_error *err)
{
    return mkdir(path, 0755) < 0 && errno != EEXIST ? failed(err, "make", path) : 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st;
    (void)f;
    return (type == FTW_DP ? rmdir(path) : unlink(path)) < 0 && errno != ENOENT ? -1 : 0;
}

static int remove_tree(const char *path, struct ws_error *err)
{
    return nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) < 0 && errno != ENOENT
               ? failed(err, "remove", path)
               : 0;
}

/* --- the listing --- */

static int replace_listing(const struct ws_archive *a, const char *model, const char *name,
                           struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], beside[WS_ARCHIVE_PATH_BYTES], hidden[32];
    json_t *json = ws_archive_listing_json(&a->listing, model);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    int rc = text ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    json_decref(json);
    snprintf(hidden, sizeof(hidden), ".%s.new", name);
    ws_archive_path(path, a->root, model, UINT64_MAX, name);
    ws_archive_path(beside, a->root, model, UINT64_MAX, hidden);
    if (rc == 0) {
        (void)unlink(beside);
        rc = write_file(beside, text, strlen(text), err);
    }
    if (rc == 0 && rename(beside, path) < 0)
        rc = failed(err, "replace", path);
    if (rc < 0)
        (void)unlink(beside);
    free(text);
    return rc;
}

/* A number that was not used before, also where an archive was deleted and made anew. */
static uint64_t next_seq(uint64_t seq)
{
    const uint64_t now = ws_clock_day_ns() / 1000;
    return now > seq ? now : seq + 1;
}

/* models comes last: it is what counts when a crash comes in between. */
static int write_listings(struct ws_archive *a, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < a->listing.n_models; i++) {
        ws_archive_path(path, a->root, a->listing.models[i].name, UINT64_MAX, NULL);
        rc = make_folder(path, err);
        if (rc == 0)
            rc = replace_listing(a, a->listing.models[i].name, "events", err);
        if (rc == 0)
            rc = sync_folder(path, err);
    }
    if (rc == 0)
        rc = replace_listing(a, NULL, "events", err);
    if (rc == 0)
        rc = replace_listing(a, NULL, "models", err);
    ws_archive_path(path, a->root, NULL, UINT64_MAX, NULL);
    return rc == 0 ? sync_folder(path, err) : rc;
}

static int write_listing(struct ws_archive *a, struct ws_error *err)
{
    a->listing.seq = next_seq(a->listing.seq);
    return write_listings(a, err);
}

/* --- versions that go --- */

struct gone {
    size_t n;
    uint64_t numbers[WS_MAX_VERSIONS];
};

/* Takes an entry, and what hangs on it, out of the listing in memory. */
static void unlist(struct ws_archive_model *m, size_t i, struct gone *gone)
{
    struct ws_mark mark = m->entries[i].mark;
    gone->numbers[gone->n++] = mark.version;
    ws_archive_listing_remove(m, i);
    for (size_t k = 0; k < m->n;) {
        if (!ws_mark_is(&m->entries[k].base, &mark)) {
            k++;
            continue;
        }
        unlist(m, k, gone);
        k = 0;
    }
}

/* After the listing was written without them. What cannot be removed is tried again at the next opening. */
static void remove_versions(struct ws_archive *a, const char *model, const struct gone *gone)
{
    for (size_t i = 0; i < gone->n; i++) {
        char path[WS_ARCHIVE_PATH_BYTES], hidden[WS_ARCHIVE_PATH_BYTES], name[40];
        struct ws_error err = {0};
        snprintf(name, sizeof(name), ".gone-%" PRIu64, gone->numbers[i]);
        ws_archive_path(path, a->root, model, gone->numbers[i], NULL);
        ws_archive_path(hidden, a->root, model, UINT64_MAX, name);
        if (rename(path, hidden) < 0)
            memcpy(hidden, path, sizeof(hidden));
        if (remove_tree(hidden, &err) < 0)
            ws_log(WS_LOG_WARN, "archive", "a version that was dropped is still on the disk: %s", err.text);
    }
}

/* The number is about to be written: who has it, with other content, goes. */
static int make_way(struct ws_archive *a, const struct ws_manifest *m, struct ws_error *err)
{
    struct ws_archive_model *model = ws_archive_model(&a->listing, m->model);
    struct gone *gone = calloc(1, sizeof(*gone));
    int rc = gone ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    for (size_t i = 0; rc == 0 && model && i < model->n; i++) {
        if (model->entries[i].mark.version != m->version)
            continue;
        unlist(model, i, gone);
        break;
    }
    if (rc == 0 && gone->n > 0)
        rc = write_listing(a, err);
    if (rc == 0)
        remove_versions(a, m->model, gone);
    free(gone);
    return rc;
}

int ws_archive_keep(struct ws_archive *a, const char *model, unsigned keep, struct ws_error *err)
{
    struct ws_archive_model *m = ws_archive_model(&a->listing, model);
    struct gone *gone = calloc(1, sizeof(*gone));
    unsigned n_anchors = 0;
    int rc = gone ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    assert(keep > 0);
    for (size_t i = 0; rc == 0 && m && i < m->n; i++)
        n_anchors += ws_archive_is_anchor(&m->entries[i]);
    for (size_t i = 0; rc == 0 && m && i < m->n && n_anchors > keep;) {
        if (!ws_archive_is_anchor(&m->entries[i])) {
            i++;
            continue;
        }
        unlist(m, i, gone);
        n_anchors--;
        i = 0;
    }
    if (rc == 0 && gone->n > 0)
        rc = write_listing(a, err);
    if (rc == 0)
        remove_versions(a, model, gone);
    free(gone);
    return rc;
}

/* --- opening --- */

static bool is_left_over(const struct ws_archive *a, const char *model, const char *name)
{
    uint64_t number;
    if (name[0] == '.')
        return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return ws_text_u64(name, &number) == 0 && !ws_archive_entry(&a->listing, model, number, NULL);
}

/* What a crash left: folders that were never listed, and those that were to be removed. */
static void clean_model(const struct ws_archive *a, const char *model)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, a->root, model, UINT64_MAX, NULL);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct ws_error err = {0};
        if (!is_left_over(a, model, e->d_name))
            continue;
        ws_archive_path(path, a->root, model, UINT64_MAX, e->d_name);
        ws_log(WS_LOG_INFO, "archive", "removing what was never finished path=%s", path);
        if (remove_tree(path, &err) < 0)
            ws_log(WS_LOG_WARN, "archive", "%s", err.text);
    }
    if (d)
        closedir(d);
}

static void clean(const struct ws_archive *a)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, a->root, NULL, UINT64_MAX, NULL);
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (ws_name_is_offered(e->d_name) && e->d_name[0] != '.')
            clean_model(a, e->d_name);
    if (d)
        closedir(d);
}

static int lock_it(struct ws_archive *a, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, a->root, NULL, UINT64_MAX, ".lock");
    a->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (a->lock < 0)
        return failed(err, "open", path);
    if (flock(a->lock, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return ws_error_set(err, EBUSY,
                            "another process writes the archive %s (an agent's --archive, or wsync save); "
                            "wait for it, or use another folder",
                            a->root);
    return 0;
}

int ws_archive_open(struct ws_archive **out, const char *dir, struct ws_error *err)
{
    struct ws_archive *a = calloc(1, sizeof(*a));
    char path[WS_ARCHIVE_PATH_BYTES];
    int rc = 0;
    if (!a || !(a->buffer = aligned_alloc(WS_PAGE_BYTES, WS_BLOCK_BYTES))) {
        free(a);
        return ws_error_set(err, ENOMEM, "no memory for an archive");
    }
    a->lock = -1;
    if ((size_t)snprintf(a->root, sizeof(a->root), "%s", dir) >= sizeof(a->root))
        rc = ws_error_set(err, ENAMETOOLONG, "the path of an archive has at most %d bytes",
                          WS_ARCHIVE_ROOT_BYTES - 1);
    bool is_new = rc == 0 && !ws_archive_is_at(dir);
    if (rc == 0)
        rc = make_folder(dir, err);
    ws_archive_path(path, a->root, NULL, UINT64_MAX, NULL);
    if (rc == 0)
        rc = make_folder(path, err);
    if (rc == 0)
        rc = lock_it(a, err);
    if (rc == 0 && !is_new)
        rc = ws_archive_listing_read(a->root, NULL, &a->listing, err);
    if (rc == 0 && !is_new)
        clean(a);
    if (rc == 0) /* all say the same again, and nothing is new */
        rc = is_new ? write_listing(a, err) : write_listings(a, err);
    if (rc < 0) {
        ws_archive_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void ws_archive_close(struct ws_archive *a)
{
    if (!a)
        return;
    if (a->lock >= 0)
        close(a->lock);
    ws_archive_listing_free(&a->listing);
    free(a->buffer);
    free(a);
}

/* --- adding --- */

bool ws_archive_has(const struct ws_archive *a, const struct ws_manifest *m, unsigned *depth)
{
    const struct ws_archive_entry *e = ws_archive_entry(&a->listing, m->model, m->version, m->run);
    if (!e || strcmp(e->digest, m->digest) != 0)
        return false;
    *depth = 0;
    while (e && !ws_archive_is_anchor(e) && ++*depth <= WS_MAX_OFFERS)
        e = ws_archive_entry(&a->listing, m->model, e->base.version, e->base.run);
    return true;
}

static bool is_stopped(const struct ws_archive_work *w)
{
    return w && w->stop && atomic_load(w->stop);
}

static void tell_written(const struct ws_archive_work *w, uint64_t bytes)
{
    if (w && w->written)
        w->written(w->arg, bytes);
}

static int stopped(const struct ws_manifest *m, struct ws_error *err)
{
    return ws_error_set(err, ECANCELED, "the writing of %s/%" PRIu64 " was stopped", m->model, m->version);
}

/* Looked at first, so that a full disk costs nothing but a sentence. */
static int check_room(const struct ws_archive *a, const struct ws_manifest *m, uint64_t bytes,
                      struct ws_error *err)
{
    struct statvfs fs;
    if (statvfs(a->root, &fs) < 0)
        return failed(err, "look at", a->root);
    uint64_t has = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes + SPARE_BYTES <= has)
        return 0;
    return ws_error_set(err, ENOSPC,
                        "%s/%" PRIu64 " needs %" PRIu64 " bytes in the archive %s, and %" PRIu64
                        " are free; make room there, or keep fewer anchors",
                        m->model, m->version, bytes, a->root, has);
}

static int write_blocks(struct ws_archive *a, const struct ws_manifest *m, size_t file, int fd,
                        const struct ws_archive_work *work, const char *path, struct ws_error *err)
{
    const struct ws_bundle_file *f = &m->files[file];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->n_blocks; i++) {
        const size_t n = ws_block_len(f, i);
        if (is_stopped(work))
            return stopped(m, err);
        rc = work->block(work->arg, file, i, a->buffer, err);
        if (rc == 0 && ws_hash(a->buffer, n) != f->hashes[i])
            rc = ws_error_set(err, EBADMSG,
                              "block %zu of %s/%" PRIu64 "/%s has bytes that are not the manifest's", i,
                              m->model, m->version, f->name);
        for (size_t at = 0; rc == 0 && at < n; at += PIECE_BYTES) {
            const size_t more = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
            if (is_stopped(work))
                return stopped(m, err);
            if (ws_file_write(fd, a->buffer + at, more) < 0)
                rc = failed(err, "write", path);
            else
                tell_written(work, more);
        }
    }
    return rc;
}

static int write_files(struct ws_archive *a, const struct ws_manifest *m, const char *folder,
                       const struct ws_archive_work *work, struct ws_error *err)
{
    char files[WS_ARCHIVE_PATH_BYTES], path[WS_ARCHIVE_PATH_BYTES];
    snprintf(files, sizeof(files), "%s/files", folder);
    int rc = make_folder(files, err);
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        snprintf(path, sizeof(path), "%s/%s", files, m->files[i].name);
        int fd = create(path, err);
        if (fd < 0)
            return fd;
        rc = finish_file(fd, path, write_blocks(a, m, i, fd, work, path, err), err);
    }
    return rc == 0 ? sync_folder(files, err) : rc;
}

static int write_stream(struct ws_archive *a, const struct ws_manifest *m, struct ws_delta *delta,
                        const char *folder, const struct ws_archive_work *work, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    struct ws_delta_writer w;
    ssize_t n = 0;
    snprintf(path, sizeof(path), "%s/delta", folder);
    int fd = create(path, err);
    if (fd < 0)
        return fd;
    int rc = ws_delta_writer_init(&w, delta, 0, 1);
    if (rc < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for the stream of a delta");
    while (rc == 0 && (n = ws_delta_write(&w, a->buffer, PIECE_BYTES)) > 0) {
        if (is_stopped(work))
            rc = stopped(m, err);
        else if (ws_file_write(fd, a->buffer, (size_t)n) < 0)
            rc = failed(err, "write", path);
        else
            tell_written(work, (uint64_t)n);
    }
    ws_delta_writer_free(&w);
    return finish_file(fd, path, rc, err);
}

/* The chain back to the anchor: this link, and those of the base. A file is one stream: "parts":1. */
static int chain_of(struct ws_archive *a, const char *model, const struct ws_delta *d, json_t *chain,
                    struct ws_error *err)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    json_t *mine = ws_delta_offer_json(d), *theirs, *one;
    size_t n, i;
    json_object_set_new(mine, "parts", json_integer(1));
    json_array_append_new(chain, mine);
    ws_archive_path(path, a->root, model, l->base.version, "deltas");
    int rc = ws_below_read(NULL, path, WS_MAX_REPLY_BYTES, &text, &n, err);
    if (rc < 0)
        return rc;
    json_t *file = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    theirs = json_object_get(file, "deltas");
    if (!json_is_array(theirs))
        rc = ws_error_set(err, EBADMSG, "%s is damaged: it is no list of deltas", path);
    json_array_foreach(theirs, i, one)
    {
        json_array_append(chain, one);
    }
    json_decref(file);
    if (rc == 0 && json_array_size(chain) > WS_MAX_OFFERS)
        rc = ws_error_set(err, E2BIG, "a chain of deltas has at most %d links; write %s/%" PRIu64 " whole",
                          WS_MAX_OFFERS, model, l->target.version);
    return rc;
}

static int write_chain(struct ws_archive *a, const struct ws_manifest *m, const struct ws_delta *d,
                       const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    json_t *chain = json_array();
    int rc = d ? chain_of(a, m->model, d, chain, err) : 0;
    json_t *all = json_pack("{s:o}", "deltas", chain);
    char *text = rc == 0 && all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    snprintf(path, sizeof(path), "%s/deltas", folder);
    if (rc == 0)
        rc = text ? write_file(path, text, strlen(text), err)
                  : ws_error_set(err, ENOMEM, "no memory for a list of deltas");
    free(text);
    return rc;
}

/* All of a version's files, in a folder that nobody looks at. */
static int write_version(struct ws_archive *a, const struct ws_archive_version *v, struct ws_delta *d,
                         const char *folder, const struct ws_archive_work *work, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    const struct ws_manifest *m = v->manifest;
    snprintf(path, sizeof(path), "%s/manifest", folder);
    if (mkdir(folder, 0755) < 0)
        return failed(err, "make", folder);
    int rc = d ? write_stream(a, m, d, folder, work, err) : write_files(a, m, folder, work, err);
    if (rc == 0)
        rc = write_chain(a, m, d, folder, err);
    if (rc == 0)
        rc = write_file(path, v->json, v->json_bytes, err);
    return rc == 0 ? sync_folder(folder, err) : rc;
}

static int list_version(struct ws_archive *a, const struct ws_manifest *m, const struct ws_delta *d,
                        struct ws_error *err)
{
    struct ws_archive_entry e = {
        .mark = ws_mark_of(m->version, m->run), .bytes = m->total_bytes, .created_ns = m->created_ns};
    memcpy(e.digest, m->digest, sizeof(e.digest));
    if (d)
        e.base = ws_delta_link(d)->base;
    int rc = ws_archive_listing_add(&a->listing, m->model, &e, err);
    if (rc < 0)
        return rc;
    rc = write_listing(a, err);
    if (rc < 0) {
        struct ws_archive_model *model = ws_archive_model(&a->listing, m->model);
        for (size_t i = 0; i < model->n; i++)
            if (model->entries[i].mark.version == m->version)
                ws_archive_listing_remove(model, i);
        if (write_listing(a, NULL) < 0) /* the one that is there may list it: it stays readable, then */
            ws_log(WS_LOG_WARN, "archive", "the listing of %s could not be written", a->root);
    }
    return rc;
}

static int add(struct ws_archive *a, const struct ws_archive_version *v, struct ws_delta *d, uint64_t bytes,
               const struct ws_archive_work *work, struct ws_error *err)
{
    const struct ws_manifest *m = v->manifest;
    char model[WS_ARCHIVE_PATH_BYTES], beside[WS_ARCHIVE_PATH_BYTES], path[WS_ARCHIVE_PATH_BYTES], name[40];
    unsigned depth;
    if (ws_archive_has(a, m, &depth))
        return 0;
    if (!ws_name_is_offered(m->model))
        return ws_error_set(err, EINVAL, "%s", WS_MODEL_NAME_RULE);
    snprintf(name, sizeof(name), ".new-%" PRIu64, m->version);
    ws_archive_path(model, a->root, m->model, UINT64_MAX, NULL);
    ws_archive_path(beside, a->root, m->model, UINT64_MAX, name);
    ws_archive_path(path, a->root, m->model, m->version, NULL);
    int rc = check_room(a, m, bytes + v->json_bytes, err);
    if (rc == 0)
        rc = make_folder(model, err);
    if (rc == 0)
        rc = remove_tree(beside, err);
    if (rc == 0)
        rc = write_version(a, v, d, beside, work, err);
    if (rc == 0)
        rc = make_way(a, m, err);
    if (rc == 0)
        rc = remove_tree(path, err); /* never listed */
    if (rc == 0 && rename(beside, path) < 0)
        rc = failed(err, "make", path);
    if (rc == 0)
        rc = sync_folder(model, err);
    if (rc == 0)
        rc = list_version(a, m, d, err);
    if (rc < 0 && remove_tree(beside, NULL) < 0)
        ws_log(WS_LOG_WARN, "archive", "what was begun is still on the disk path=%s", beside);
    return rc;
}

int ws_archive_add(struct ws_archive *a, const struct ws_archive_version *v,
                   const struct ws_archive_work *work, struct ws_error *err)
{
    assert(work && work->block);
    return add(a, v, NULL, v->manifest->total_bytes, work, err);
}

/* A mount makes a version of one with the same files only. */
static int check_base(const struct ws_archive *a, const struct ws_manifest *m, uint64_t base,
                      struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    struct ws_manifest *other = NULL;
    size_t n;
    ws_archive_path(path, a->root, m->model, base, "manifest");
    int rc = ws_below_read(NULL, path, WS_MAX_MANIFEST_BYTES, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = ws_manifest_from_json(text, n, &other, err);
    free(text);
    if (rc < 0) {
        (void)ws_error_prefix(err, "%s", path);
        return rc;
    }
    bool same = m->n_files == other->n_files;
    for (size_t i = 0; same && i < m->n_files; i++)
        same = m->files[i].size_bytes == other->files[i].size_bytes &&
               strcmp(m->files[i].name, other->files[i].name) == 0;
    ws_manifest_free(other);
    return same ? 0
                : ws_error_set(err, EINVAL,
                               "%s/%" PRIu64 " has other files than %" PRIu64 ": it is written whole",
                               m->model, m->version, base);
}

int ws_archive_add_delta(struct ws_archive *a, const struct ws_archive_version *v, struct ws_delta *d,
                         const struct ws_archive_work *work, struct ws_error *err)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    const struct ws_manifest *m = v->manifest;
    const struct ws_archive_entry *base =
        ws_archive_entry(&a->listing, m->model, l->base.version, l->base.run);
    assert(ws_delta_state(d) == WS_DELTA_WHOLE && strcmp(l->target_digest, m->digest) == 0);
    if (!base || strcmp(base->digest, l->base_digest) != 0)
        return ws_error_set(err, ENOENT,
                            "%s/%" PRIu64 " is a delta on %" PRIu64 ", which is not in the archive %s",
                            m->model, m->version, l->base.version, a->root);
    if (strcmp(l->base.run, m->run) != 0 || l->base.version >= m->version)
        return ws_error_set(err, EINVAL,
                            "%s/%" PRIu64 " does not follow %" PRIu64 " in its lineage: it is written whole",
                            m->model, m->version, l->base.version);
    int rc = check_base(a, m, l->base.version, err);
    if (rc < 0)
        return rc;
    return add(a, v, d, ws_delta_stream_bytes(d, 0, 1), work, err);
}
