/* An archive (archive.h) as a source: dir:DIR where DIR/v1/models is. A version that is listed and cannot be
 * read is damaged, and the error names its file; one that is no longer listed was dropped. New versions show by
 * the listing's file, which is checked a few times a second: that works over network file systems, too. */
#include "transports/base/below.h"
#include "transports/base/file.h"
#include "transports/base/name.h"
#include "transports/delta/stream.h"
#include "transports/dir/archive.h"
#include "transports/dir/archive_listing.h"
#include "transports/protocol/api.h"
#include "transports/sign/proof_path.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_MS     250
#define PIECE_BYTES (1UL << 20)

struct archive_source {
    struct ws_source head;
    char root[WS_ARCHIVE_ROOT_BYTES];
    char *below; /* nothing else is opened; NULL: anything */
};

struct archive_lane {
    struct ws_lane head;
    int fd;
    char open_path[WS_ARCHIVE_PATH_BYTES];
    unsigned char *piece; /* of a delta's stream */
};

static void archive_close(struct ws_source *source)
{
    struct archive_source *s = (struct archive_source *)source;
    free(s->head.url);
    free(s->below);
    free(s);
}

static int archive_open(const char *url, const struct ws_source_options *options, struct ws_source **out,
                        struct ws_error *err)
{
    char *root;
    int rc = ws_below_root(options->below, url + 4, &root, err);
    if (rc < 0)
        return rc;
    if (strlen(root) >= WS_ARCHIVE_ROOT_BYTES) {
        free(root);
        return ws_error_set(err, ENAMETOOLONG, "cannot use %s as a source: %s", url, strerror(ENAMETOOLONG));
    }
    struct archive_source *s = calloc(1, sizeof(*s));
    if (s) {
        snprintf(s->root, sizeof(s->root), "%s", root);
        s->head.url = strdup(url);
        s->below = options->below ? strdup(options->below) : NULL;
        s->head.ops = &ws_archive_ops;
    }
    free(root);
    if (!s || !s->head.url || !s->below != !options->below) {
        if (s)
            archive_close(&s->head);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    *out = &s->head;
    return 0;
}

/* --- what is there --- */

/* Copies the entry of a version. -ENOENT: there was none yet; -ESTALE: it is no longer listed. */
static int find_entry(const struct archive_source *s, const char *model, uint64_t version,
                      const char *lineage, struct ws_archive_entry *out, struct ws_error *err)
{
    struct ws_archive_listing listing;
    uint64_t newest = 0;
    int rc = ws_archive_listing_read(s->root, s->below, &listing, err);
    if (rc < 0)
        return rc;
    const struct ws_archive_model *m = ws_archive_listing_find_model(&listing, model);
    const struct ws_archive_entry *e = ws_archive_listing_find(&listing, model, version, lineage);
    for (size_t i = 0; m && i < m->entries.len; i++)
        if (m->entries.ptr[i].id.version > newest)
            newest = m->entries.ptr[i].id.version;
    if (e)
        *out = *e;
    else if (version > newest)
        rc = ws_error_set(err, ENOENT, "the archive %s has no version %s/%" PRIu64, s->root, model, version);
    else
        rc = ws_error_set(err, ESTALE, "the archive %s has no version %s/%" PRIu64 " any more", s->root,
                          model, version);
    ws_archive_listing_free(&listing);
    return rc;
}

/* Why a file of a version could not be read: the version was dropped, or the archive is damaged. */
static int unreadable(const struct archive_source *s, const char *model, uint64_t version,
                      const char *lineage, const char *path, int code, struct ws_error *err)
{
    struct ws_archive_entry e;
    int rc = code == ENOENT ? find_entry(s, model, version, lineage, &e, err) : 0;
    if (rc < 0)
        return rc;
    return ws_error_set(err, code == ENOENT ? EBADMSG : code, "the archive is damaged: cannot read %s: %s",
                        path, strerror(code));
}

static int archive_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                          const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    const struct archive_source *s = (struct archive_source *)source;
    char path[WS_ARCHIVE_PATH_BYTES];
    struct stat seen = {0}, now = {0};
    ws_archive_path(path, s->root, NULL, UINT64_MAX, "models");
    for (unsigned waited = 0;; waited += STEP_MS) {
        bool over = waited >= timeout_ms || (cancel && atomic_load(cancel));
        if (stat(path, &now) < 0)
            now = (struct stat){0}; /* reading it says why */
        if (waited == 0 || over || now.st_ino == 0 || now.st_ino != seen.st_ino ||
            now.st_mtim.tv_sec != seen.st_mtim.tv_sec || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec) {
            struct ws_archive_listing listing;
            int rc = ws_archive_listing_read(s->root, s->below, &listing, err);
            if (rc < 0)
                return rc;
            seen = now;
            if (listing.seq != since || over)
                *out = ws_archive_listing_json(&listing, model);
            bool done = listing.seq != since || over;
            ws_archive_listing_free(&listing);
            if (done)
                return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for the list of models");
        }
        (void)poll(NULL, 0, STEP_MS);
    }
}

static int archive_manifest(struct ws_source *source, const char *model, uint64_t version,
                            const char *lineage, const atomic_bool *cancel, struct ws_manifest **out,
                            struct ws_error *err)
{
    (void)cancel;
    const struct archive_source *s = (struct archive_source *)source;
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    struct ws_archive_entry e;
    size_t n;
    int rc = find_entry(s, model, version, lineage, &e, err);
    if (rc < 0)
        return rc;
    ws_archive_path(path, s->root, model, version, "manifest");
    rc = ws_below_read(s->below, path, WS_MAX_MANIFEST_BYTES, &text, &n, err);
    if (rc < 0)
        return unreadable(s, model, version, lineage, path, -rc, err);
    rc = ws_manifest_from_json(text, n, out, err);
    free(text);
    if (rc < 0) {
        (void)ws_error_prefix(err, "the archive is damaged: %s", path);
    } else if (strcmp((*out)->digest, e.digest) != 0) {
        ws_manifest_free(*out);
        *out = NULL;
        rc = ws_error_set(err, EBADMSG, "the archive is damaged: %s is not what is listed", path);
    }
    return rc;
}

static int archive_deltas(struct ws_source *source, const char *model, const struct ws_version_id *version,
                          const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES],
                          size_t *n, struct ws_error *err)
{
    (void)cancel;
    const struct archive_source *s = (struct archive_source *)source;
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    struct ws_archive_entry e;
    size_t bytes;
    int rc = find_entry(s, model, version->version, version->lineage, &e, err);
    if (rc < 0 || ws_archive_entry_is_anchor(&e))
        return rc;
    ws_archive_path(path, s->root, model, version->version, "deltas");
    rc = ws_below_read(s->below, path, WS_MAX_REPLY_BYTES, &text, &bytes, err);
    if (rc < 0)
        return unreadable(s, model, version->version, version->lineage, path, -rc, err);
    json_t *file = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (!json_is_array(json_object_get(file, "deltas")) ||
        ws_delta_listing_read(json_object_get(file, "deltas"), out, n) < 0)
        rc = ws_error_set(err, EBADMSG, "the archive is damaged: %s is no list of deltas", path);
    json_decref(file);
    return rc;
}

/* Of the API's other requests it answers the one for a signature, as a web server would: whatever the query says, the
 * version has one. */
static int archive_call(struct ws_source *source, const char *method, const char *request, const json_t *body,
                        json_t **reply, struct ws_error *err)
{
    const struct archive_source *s = (struct archive_source *)source;
    char path[WS_ARCHIVE_PATH_BYTES], plain[WS_API_PATH_BYTES], *text;
    struct ws_api_request q;
    struct ws_archive_entry e;
    size_t n;
    const size_t at = strcspn(request, "?");
    snprintf(plain, sizeof(plain), "%.*s", (int)at, request);
    if (strcmp(method, "GET") != 0 || body || at >= sizeof(plain) ||
        ws_api_parse(plain, request[at] ? request + at + 1 : NULL, &q, err) < 0 || !q.has_version ||
        strcmp(q.verb, WS_PROOF_VERB) != 0)
        return ws_error_set(err, ENOTSUP, "%s is no agent: it answers no %s", s->head.url, request);
    int rc = find_entry(s, q.model, q.version, q.lineage[0] ? q.lineage : NULL, &e, err);
    if (rc < 0)
        return rc;
    ws_archive_path(path, s->root, q.model, q.version, "signature");
    rc = ws_below_read(s->below, path, WS_MAX_REPLY_BYTES, &text, &n, err);
    if (rc < 0)
        return ws_error_set(err, ENOENT, "the archive %s has no signature of %s/%" PRIu64, s->root, q.model,
                            q.version);
    *reply = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    return *reply ? 0 : ws_error_set(err, EBADMSG, "the archive is damaged: %s is no JSON", path);
}

/* --- bytes --- */

static int archive_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct archive_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    l->head.source = source;
    l->fd = -1;
    *out = &l->head;
    return 0;
}

static void archive_lane_close(struct ws_lane *lane)
{
    struct archive_lane *l = (struct archive_lane *)lane;
    if (l->fd >= 0)
        close(l->fd);
    free(l->piece);
    free(l);
}

static int open_file(struct archive_lane *l, const char *path)
{
    const struct archive_source *s = (struct archive_source *)l->head.source;
    struct stat st;
    if (l->fd >= 0 && strcmp(l->open_path, path) == 0)
        return 0;
    if (l->fd >= 0)
        close(l->fd);
    snprintf(l->open_path, sizeof(l->open_path), "%s", path);
    l->fd = ws_below_open(s->below, path, false, &st, NULL);
    return l->fd < 0 ? l->fd : 0;
}

static int archive_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct archive_lane *l = (struct archive_lane *)lane;
    const struct archive_source *s = (struct archive_source *)lane->source;
    const struct ws_manifest *m = f->manifest;
    const struct ws_manifest_file *file = &m->files[f->file];
    char what[WS_MAX_NAME + 8], path[WS_ARCHIVE_PATH_BYTES];
    snprintf(what, sizeof(what), "files/%s", file->name);
    ws_archive_path(path, s->root, m->model, m->version, what);
    int rc = open_file(l, path);
    for (size_t i = f->first; rc == 0 && i < f->first + f->n; i++) {
        unsigned char *dst = f->dst + i * WS_BLOCK_BYTES;
        const size_t n = ws_manifest_block_bytes(file, i);
        if (f->cancel && atomic_load(f->cancel))
            return ws_error_set(err, ECANCELED, "the transfer was stopped");
        ssize_t got = ws_file_read(l->fd, dst, n, i * WS_BLOCK_BYTES);
        ws_fetch_came(f, got < 0 ? 0 : (uint64_t)got);
        if (got < 0)
            rc = (int)got;
        else if ((size_t)got < n || ws_hash(dst, n) != file->hashes[i])
            return ws_error_set(
                err, EBADMSG, "the archive is damaged: block %zu of %s has bytes that are not the manifest's",
                i, path);
        else if (f->block(f->arg, i, file->hashes[i]))
            return ws_error_set(err, ECANCELED, "the transfer was stopped");
    }
    return rc < 0 ? unreadable(s, m->model, m->version, m->lineage, path, -rc, err) : 0;
}

/* The file is one stream: whatever part is requested, all of it is read. */
static int archive_delta(struct ws_lane *lane, const struct ws_delta_fetch *f, struct ws_error *err)
{
    struct archive_lane *l = (struct archive_lane *)lane;
    const struct archive_source *s = (struct archive_source *)lane->source;
    const struct ws_version_id *target = &f->link.target;
    char path[WS_ARCHIVE_PATH_BYTES];
    bool whole = false;
    ssize_t n = 0;
    ws_archive_path(path, s->root, f->model, target->version, "delta");
    int rc = open_file(l, path);
    if (rc < 0)
        return unreadable(s, f->model, target->version, target->lineage, path, -rc, err);
    struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(&f->link, f->n_blocks, &f->sink);
    if (!l->piece)
        l->piece = malloc(PIECE_BYTES);
    if (!r || !l->piece)
        rc = ws_error_set(err, ENOMEM, "no memory for a delta");
    for (uint64_t at = 0; rc == 0 && (n = ws_file_read(l->fd, l->piece, PIECE_BYTES, at)) > 0;
         at += (uint64_t)n) {
        if (f->cancel && atomic_load(f->cancel))
            rc = ws_error_set(err, ECANCELED, "the transfer was stopped");
        else
            rc = ws_delta_stream_read(r, l->piece, (size_t)n, err);
        if (rc > 0)
            rc = ws_error_set(err, ECANCELED, "the transfer was stopped");
        else if (rc == -EBADMSG)
            (void)ws_error_prefix(err, "the archive is damaged: %s", path);
    }
    if (rc == 0 && n < 0)
        rc = unreadable(s, f->model, target->version, target->lineage, path, (int)-n, err);
    if (rc == 0 && (!ws_delta_stream_reader_ended(r, &whole) || !whole))
        rc = ws_error_set(err, EBADMSG, "the archive is damaged: %s ends too early", path);
    ws_delta_stream_reader_free(r);
    return rc;
}

const struct ws_transport_ops ws_archive_ops = {
    .name = "archive",
    .schemes = (const char *const[]){NULL}, /* dir: where the folder is one */
    .open = archive_open,
    .close = archive_close,
    .models = archive_models,
    .manifest = archive_manifest,
    .lane_open = archive_lane_open,
    .lane_close = archive_lane_close,
    .fetch = archive_fetch,
    .deltas = archive_deltas,
    .delta = archive_delta,
    .call = archive_call,
};
