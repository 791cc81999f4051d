#include "transports/dir/archive.h"
#include "transports/base/below.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/delta/stream.h"
#include "transports/dir/archive_files.h"
#include "transports/dir/archive_listing.h"
#include "transports/dir/archive_version.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SPARE_BYTES (1UL << 20) /* of a disk: for manifests and listings */

struct ws_archive {
    char root[WS_ARCHIVE_ROOT_BYTES];
    int lock;
    struct ws_archive_listing listing;
    unsigned char *buffer; /* of one block */
};

bool ws_archive_exists(const char *dir)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    struct stat st;
    if (strlen(dir) >= WS_ARCHIVE_ROOT_BYTES)
        return false;
    ws_archive_path(path, dir, NULL, UINT64_MAX, "models");
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
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
        rc = ws_archive_files_write(beside, text, strlen(text), err);
    }
    if (rc == 0 && rename(beside, path) < 0)
        rc = ws_archive_files_error(err, "replace", path);
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

/* The file "models" comes last: it counts when a crash comes in between. */
static int write_listings(struct ws_archive *a, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < a->listing.models.len; i++) {
        ws_archive_path(path, a->root, a->listing.models.ptr[i].name, UINT64_MAX, NULL);
        rc = ws_archive_files_make_folder(path, err);
        if (rc == 0)
            rc = replace_listing(a, a->listing.models.ptr[i].name, "events", err);
        if (rc == 0)
            rc = ws_archive_files_sync(path, err);
    }
    if (rc == 0)
        rc = replace_listing(a, NULL, "events", err);
    if (rc == 0)
        rc = replace_listing(a, NULL, "models", err);
    ws_archive_path(path, a->root, NULL, UINT64_MAX, NULL);
    return rc == 0 ? ws_archive_files_sync(path, err) : rc;
}

static int write_listing(struct ws_archive *a, struct ws_error *err)
{
    a->listing.seq = next_seq(a->listing.seq);
    return write_listings(a, err);
}

/* --- versions that are dropped --- */

struct dropped {
    size_t n;
    uint64_t numbers[WS_MAX_VERSIONS];
};

/* Takes an entry, and what hangs on it, out of the listing in memory. */
static void unlist(struct ws_archive_model *m, size_t i, struct dropped *dropped)
{
    struct ws_version_id id = m->entries.ptr[i].id;
    dropped->numbers[dropped->n++] = id.version;
    ws_archive_listing_remove(m, i);
    for (size_t k = 0; k < m->entries.len;) {
        if (!ws_version_id_equal(&m->entries.ptr[k].base, &id)) {
            k++;
            continue;
        }
        unlist(m, k, dropped);
        k = 0;
    }
}

/* The listing was written without them. What cannot be removed is removed at the next opening. */
static void remove_versions(struct ws_archive *a, const char *model, const struct dropped *dropped)
{
    for (size_t i = 0; i < dropped->n; i++) {
        char path[WS_ARCHIVE_PATH_BYTES], hidden[WS_ARCHIVE_PATH_BYTES], name[40];
        struct ws_error err = {0};
        snprintf(name, sizeof(name), ".gone-%" PRIu64, dropped->numbers[i]);
        ws_archive_path(path, a->root, model, dropped->numbers[i], NULL);
        ws_archive_path(hidden, a->root, model, UINT64_MAX, name);
        if (rename(path, hidden) < 0)
            memcpy(hidden, path, sizeof(hidden));
        if (ws_archive_files_remove_tree(hidden, &err) < 0)
            ws_log(WS_LOG_WARN, "archive", "a version that was dropped is still on the disk: %s", err.text);
    }
}

/* A version with this number is about to be written: the one that has it, with other content, is dropped. */
static int drop_number(struct ws_archive *a, const struct ws_manifest *m, struct ws_error *err)
{
    struct ws_archive_model *model = ws_archive_listing_find_model(&a->listing, m->model);
    struct dropped *dropped = calloc(1, sizeof(*dropped));
    int rc = dropped ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    for (size_t i = 0; rc == 0 && model && i < model->entries.len; i++) {
        if (model->entries.ptr[i].id.version != m->version)
            continue;
        unlist(model, i, dropped);
        break;
    }
    if (rc == 0 && dropped->n > 0)
        rc = write_listing(a, err);
    if (rc == 0)
        remove_versions(a, m->model, dropped);
    free(dropped);
    return rc;
}

int ws_archive_prune(struct ws_archive *a, const char *model, unsigned keep, struct ws_error *err)
{
    struct ws_archive_model *m = ws_archive_listing_find_model(&a->listing, model);
    struct dropped *dropped = calloc(1, sizeof(*dropped));
    unsigned n_anchors = 0;
    int rc = dropped ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    assert(keep > 0);
    for (size_t i = 0; rc == 0 && m && i < m->entries.len; i++)
        n_anchors += ws_archive_entry_is_anchor(&m->entries.ptr[i]);
    for (size_t i = 0; rc == 0 && m && i < m->entries.len && n_anchors > keep;) {
        if (!ws_archive_entry_is_anchor(&m->entries.ptr[i])) {
            i++;
            continue;
        }
        unlist(m, i, dropped);
        n_anchors--;
        i = 0;
    }
    if (rc == 0 && dropped->n > 0)
        rc = write_listing(a, err);
    if (rc == 0)
        remove_versions(a, model, dropped);
    free(dropped);
    return rc;
}

/* --- opening --- */

static bool is_left_over(const struct ws_archive *a, const char *model, const char *name)
{
    uint64_t number;
    if (name[0] == '.')
        return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return ws_text_u64(name, &number) == 0 && !ws_archive_listing_find(&a->listing, model, number, NULL);
}

/* Removes what a crash left: folders that were never listed, and those that were being removed. */
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
        if (ws_archive_files_remove_tree(path, &err) < 0)
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

static int acquire_lock(struct ws_archive *a, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, a->root, NULL, UINT64_MAX, ".lock");
    a->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, WS_ARCHIVE_FILE_MODE);
    if (a->lock < 0)
        return ws_archive_files_error(err, "open", path);
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
    bool is_new = rc == 0 && !ws_archive_exists(dir);
    if (rc == 0)
        rc = ws_archive_files_make_folder(dir, err);
    ws_archive_path(path, a->root, NULL, UINT64_MAX, NULL);
    if (rc == 0)
        rc = ws_archive_files_make_folder(path, err);
    if (rc == 0)
        rc = acquire_lock(a, err);
    if (rc == 0 && !is_new)
        rc = ws_archive_listing_read(a->root, NULL, &a->listing, err);
    if (rc == 0 && !is_new)
        clean(a);
    if (rc == 0) /* all listings agree again, and seq stays */
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
    const struct ws_archive_entry *e = ws_archive_listing_find(&a->listing, m->model, m->version, m->lineage);
    if (!e || strcmp(e->digest, m->digest) != 0)
        return false;
    *depth = 0;
    while (e && !ws_archive_entry_is_anchor(e) && ++*depth <= WS_MAX_DELTA_ENTRIES)
        e = ws_archive_listing_find(&a->listing, m->model, e->base.version, e->base.lineage);
    return true;
}

/* Checked before anything is written, so that a full disk costs nothing but a sentence. */
static int check_space(const struct ws_archive *a, const struct ws_manifest *m, uint64_t bytes,
                       struct ws_error *err)
{
    struct statvfs fs;
    if (statvfs(a->root, &fs) < 0)
        return ws_archive_files_error(err, "look at", a->root);
    uint64_t has = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes + SPARE_BYTES <= has)
        return 0;
    return ws_error_set(err, ENOSPC,
                        "%s/%" PRIu64 " needs %" PRIu64 " bytes in the archive %s, and %" PRIu64
                        " are free; make room there, or keep fewer anchors",
                        m->model, m->version, bytes, a->root, has);
}

static int list_version(struct ws_archive *a, const struct ws_manifest *m, const struct ws_delta *d,
                        struct ws_error *err)
{
    struct ws_archive_entry e = {.id = ws_version_id_make(m->version, m->lineage),
                                 .bytes = m->total_bytes,
                                 .created_ns = m->created_ns};
    memcpy(e.digest, m->digest, sizeof(e.digest));
    if (d)
        e.base = ws_delta_link(d)->base;
    int rc = ws_archive_listing_add(&a->listing, m->model, &e, err);
    if (rc < 0)
        return rc;
    rc = write_listing(a, err);
    if (rc < 0) {
        struct ws_archive_model *model = ws_archive_listing_find_model(&a->listing, m->model);
        for (size_t i = 0; i < model->entries.len; i++)
            if (model->entries.ptr[i].id.version == m->version)
                ws_archive_listing_remove(model, i);
        if (write_listing(a, NULL) < 0) /* the old one may list it: it stays readable then */
            ws_log(WS_LOG_WARN, "archive", "the listing of %s could not be written", a->root);
    }
    return rc;
}

static int add(struct ws_archive *a, const struct ws_archive_version *v, struct ws_delta *d, uint64_t bytes,
               const struct ws_archive_hooks *hooks, struct ws_error *err)
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
    int rc = check_space(a, m, bytes + v->json_bytes, err);
    if (rc == 0)
        rc = ws_archive_files_make_folder(model, err);
    if (rc == 0)
        rc = ws_archive_files_remove_tree(beside, err);
    if (rc == 0)
        rc = ws_archive_version_write(&(struct ws_archive_write){a->root, a->buffer, v, d, hooks}, beside,
                                      err);
    if (rc == 0)
        rc = drop_number(a, m, err);
    if (rc == 0)
        rc = ws_archive_files_remove_tree(path, err); /* never listed */
    if (rc == 0 && rename(beside, path) < 0)
        rc = ws_archive_files_error(err, "make", path);
    if (rc == 0)
        rc = ws_archive_files_sync(model, err);
    if (rc == 0)
        rc = list_version(a, m, d, err);
    if (rc < 0 && ws_archive_files_remove_tree(beside, NULL) < 0)
        ws_log(WS_LOG_WARN, "archive", "what was begun is still on the disk path=%s", beside);
    return rc;
}

int ws_archive_add(struct ws_archive *a, const struct ws_archive_version *v,
                   const struct ws_archive_hooks *hooks, struct ws_error *err)
{
    assert(hooks && hooks->block);
    return add(a, v, NULL, v->manifest->total_bytes, hooks, err);
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
                         const struct ws_archive_hooks *hooks, struct ws_error *err)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    const struct ws_manifest *m = v->manifest;
    const struct ws_archive_entry *base =
        ws_archive_listing_find(&a->listing, m->model, l->base.version, l->base.lineage);
    assert(ws_delta_state(d) == WS_DELTA_WHOLE && strcmp(l->target_digest, m->digest) == 0);
    if (!base || strcmp(base->digest, l->base_digest) != 0)
        return ws_error_set(err, ENOENT,
                            "%s/%" PRIu64 " is a delta on %" PRIu64 ", which is not in the archive %s",
                            m->model, m->version, l->base.version, a->root);
    if (strcmp(l->base.lineage, m->lineage) != 0 || l->base.version >= m->version)
        return ws_error_set(err, EINVAL,
                            "%s/%" PRIu64 " does not follow %" PRIu64 " in its lineage: it is written whole",
                            m->model, m->version, l->base.version);
    int rc = check_base(a, m, l->base.version, err);
    if (rc < 0)
        return rc;
    return add(a, v, d, ws_delta_stream_bytes(d, 0, 1), hooks, err);
}
