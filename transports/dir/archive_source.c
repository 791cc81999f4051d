/* An archive (archive.h) as a source: dir:DIR where DIR/v1/models is, s3://BUCKET/PREFIX. A version that is listed and
 * cannot be read is damaged, and the error names its file; one that is no longer listed was dropped. New versions show
 * by the listing's file, which is looked at a few times a second in a folder, and every two seconds in a bucket: that
 * works over network file systems, too.
 *
 * A listing that is older than the one that was read before is a store's that has not caught up: it is not used, unless
 * it stays. */
#include "transports/base/below.h"
#include "transports/base/clock.h"
#include "transports/base/name.h"
#include "transports/delta/stream.h"
#include "transports/dir/archive.h"
#include "transports/dir/archive_listing.h"
#include "transports/dir/archive_store.h"
#include "transports/protocol/api.h"
#include "transports/s3/place.h"
#include "transports/sign/proof_path.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#define STEP_MS     250
#define PIECE_BYTES (1UL << 20)
#define OLDER_MS    60000 /* an older listing is believed when it is still there after so long */

struct archive_source {
    struct ws_source head;
    struct ws_archive_store *store;
    pthread_mutex_t lock;
    /* guarded by lock: the listing's file as it was read last */
    char *text; /* NULL: not yet */
    size_t n;
    uint64_t seq;
    char stamp[WS_ARCHIVE_STAMP_BYTES];
    uint64_t older_ms; /* since when an older one is there; 0: it is not */
};

struct archive_lane {
    struct ws_lane head;
    struct ws_archive_reader *reader;
    unsigned char *piece; /* of a delta's stream */
};

static void archive_close(struct ws_source *source)
{
    struct archive_source *s = (struct archive_source *)source;
    ws_archive_store_close(s->store);
    pthread_mutex_destroy(&s->lock);
    free(s->head.url);
    free(s->text);
    free(s);
}

static int open_store(const char *url, const struct ws_source_options *o, struct ws_archive_store **out,
                      struct ws_error *err)
{
    const struct ws_archive_store_options options = {
        .below = o->below, .insecure = o->insecure, .ca_file = o->ca_file, .stop = o->stop};
    char *root = NULL;
    if (ws_s3_is_url(url))
        return ws_archive_store_open(out, url, &options, err);
    int rc = ws_below_root(o->below, url + 4, &root, err);
    if (rc == 0)
        rc = ws_archive_store_open(out, root, &options, err);
    free(root);
    return rc;
}

static int archive_open(const char *url, const struct ws_source_options *options, struct ws_source **out,
                        struct ws_error *err)
{
    struct archive_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a source");
    pthread_mutex_init(&s->lock, NULL);
    s->head.url = strdup(url);
    s->head.ops = &ws_archive_ops;
    int rc = s->head.url ? open_store(url, options, &s->store, err)
                         : ws_error_set(err, ENOMEM, "no memory for a source");
    if (rc < 0) {
        archive_close(&s->head);
        return rc;
    }
    *out = &s->head;
    return 0;
}

/* --- what is there --- */

/* Under lock. The text is taken over, or freed. */
static void keep_text(struct archive_source *s, char *text, size_t n, uint64_t seq,
                      const char stamp[WS_ARCHIVE_STAMP_BYTES])
{
    const uint64_t now = ws_clock_ms();
    const bool is_older = s->text && seq < s->seq;
    if (is_older && !s->older_ms)
        s->older_ms = now;
    if (is_older && now - s->older_ms < OLDER_MS) {
        free(text);
        return;
    }
    free(s->text);
    s->text = text;
    s->n = n;
    s->seq = seq;
    s->older_ms = 0;
    memcpy(s->stamp, stamp, WS_ARCHIVE_STAMP_BYTES);
}

/* The listing as it is now. The caller frees it. */
static int read_listing(struct archive_source *s, const atomic_bool *cancel, struct ws_archive_listing *out,
                        struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], stamp[WS_ARCHIVE_STAMP_BYTES], *text;
    size_t n;
    *out = (struct ws_archive_listing){0};
    ws_archive_path(path, s->store->root, NULL, UINT64_MAX, "models");
    pthread_mutex_lock(&s->lock);
    memcpy(stamp, s->stamp, sizeof(stamp));
    pthread_mutex_unlock(&s->lock);
    int rc = s->store->ops->get(s->store, path, WS_MAX_REPLY_BYTES, stamp, cancel, &text, &n, err);
    if (rc == 0 && text)
        rc = ws_archive_listing_parse(text, n, path, out, err);
    if (rc < 0) {
        free(text);
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    if (text)
        keep_text(s, text, n, out->seq, stamp);
    else
        s->older_ms = 0; /* the one that was read last is there again */
    char *copy = strndup(s->text ? s->text : "", s->n);
    n = s->n;
    pthread_mutex_unlock(&s->lock);
    ws_archive_listing_free(out);
    rc = copy ? ws_archive_listing_parse(copy, n, path, out, err)
              : ws_error_set(err, ENOMEM, "no memory for a listing");
    free(copy);
    return rc;
}

/* Copies the entry of a version. -ENOENT: there was none yet; -ESTALE: it is no longer listed. */
static int find_entry(struct archive_source *s, const char *model, uint64_t version, const char *lineage,
                      const atomic_bool *cancel, struct ws_archive_entry *out, struct ws_error *err)
{
    struct ws_archive_listing listing;
    uint64_t newest = 0;
    int rc = read_listing(s, cancel, &listing, err);
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
        rc = ws_error_set(err, ENOENT, "the archive %s has no version %s/%" PRIu64, s->store->root, model,
                          version);
    else
        rc = ws_error_set(err, ESTALE, "the archive %s has no version %s/%" PRIu64 " any more",
                          s->store->root, model, version);
    ws_archive_listing_free(&listing);
    return rc;
}

/* Why a file of a version is not there: the version was dropped, or the archive is damaged. */
static int is_missing(struct archive_source *s, const char *model, uint64_t version, const char *lineage,
                      const char *path, struct ws_error *err)
{
    struct ws_archive_entry e;
    int rc = find_entry(s, model, version, lineage, NULL, &e, err);
    return rc < 0 ? rc
                  : ws_error_set(err, EBADMSG, "the archive is damaged: cannot read %s: %s", path,
                                 strerror(ENOENT));
}

/* A small file of a version that is listed. */
static int read_file(struct archive_source *s, const char *model, uint64_t version, const char *lineage,
                     const char *path, size_t most, const atomic_bool *cancel, char **text, size_t *n,
                     struct ws_error *err)
{
    int rc = s->store->ops->get(s->store, path, most, NULL, cancel, text, n, err);
    if (rc == -ENOENT)
        return is_missing(s, model, version, lineage, path, err);
    if (rc == -EBADMSG || rc == -EIO)
        (void)ws_error_prefix(err, "the archive is damaged");
    return rc;
}

/* --- requests --- */

static int archive_models(struct ws_source *source, const char *model, uint64_t since, unsigned timeout_ms,
                          const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    struct archive_source *s = (struct archive_source *)source;
    for (unsigned waited = 0;; waited += STEP_MS) {
        const bool over = waited >= timeout_ms || (cancel && atomic_load(cancel));
        if (waited % s->store->ops->poll_ms == 0 || over) {
            struct ws_archive_listing listing;
            int rc = read_listing(s, cancel, &listing, err);
            if (rc < 0)
                return rc;
            const bool done = listing.seq != since || over;
            if (done)
                *out = ws_archive_listing_json(&listing, model);
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
    struct archive_source *s = (struct archive_source *)source;
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    struct ws_archive_entry e;
    size_t n;
    int rc = find_entry(s, model, version, lineage, cancel, &e, err);
    if (rc < 0)
        return rc;
    ws_archive_path(path, s->store->root, model, version, "manifest");
    rc = read_file(s, model, version, lineage, path, WS_MAX_MANIFEST_BYTES, cancel, &text, &n, err);
    if (rc < 0)
        return rc;
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
    struct archive_source *s = (struct archive_source *)source;
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    struct ws_archive_entry e;
    size_t bytes;
    int rc = find_entry(s, model, version->version, version->lineage, cancel, &e, err);
    if (rc < 0 || ws_archive_entry_is_anchor(&e))
        return rc;
    ws_archive_path(path, s->store->root, model, version->version, "deltas");
    rc = read_file(s, model, version->version, version->lineage, path, WS_MAX_REPLY_BYTES, cancel, &text,
                   &bytes, err);
    if (rc < 0)
        return rc;
    json_t *file = ws_archive_json(text, bytes);
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
    struct archive_source *s = (struct archive_source *)source;
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
    int rc = find_entry(s, q.model, q.version, q.lineage[0] ? q.lineage : NULL, NULL, &e, err);
    if (rc < 0)
        return rc;
    ws_archive_path(path, s->store->root, q.model, q.version, "signature");
    rc = s->store->ops->get(s->store, path, WS_MAX_REPLY_BYTES, NULL, NULL, &text, &n, err);
    if (ws_source_is_away(rc) || rc == -ECANCELED)
        return rc;
    if (rc < 0)
        return ws_error_set(err, ENOENT, "the archive %s has no signature of %s/%" PRIu64, s->store->root,
                            q.model, q.version);
    *reply = ws_archive_json(text, n);
    free(text);
    return *reply ? 0 : ws_error_set(err, EBADMSG, "the archive is damaged: %s is no JSON", path);
}

/* --- bytes --- */

static int archive_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct archive_source *s = (struct archive_source *)source;
    struct archive_lane *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    l->head.source = source;
    int rc = s->store->ops->reader_open(s->store, &l->reader, err);
    if (rc < 0) {
        free(l);
        return rc;
    }
    *out = &l->head;
    return 0;
}

static void archive_lane_close(struct ws_lane *lane)
{
    struct archive_lane *l = (struct archive_lane *)lane;
    const struct archive_source *s = (struct archive_source *)lane->source;
    s->store->ops->reader_close(l->reader);
    free(l->piece);
    free(l);
}

/* Blocks of a file, one after the other, into the memory where they belong. */
struct block_sink {
    const struct ws_fetch *fetch;
    const struct ws_manifest_file *file;
    const char *path;
    size_t block, at; /* at: bytes of the block that are there */
};

static unsigned char *block_room(void *arg, size_t *n)
{
    const struct block_sink *k = arg;
    *n = ws_manifest_block_bytes(k->file, k->block) - k->at;
    return ws_fetch_dst(k->fetch, k->block) + k->at;
}

static int is_damaged(const struct block_sink *k, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG,
                        "the archive is damaged: block %zu of %s has bytes that are not the manifest's",
                        k->block, k->path);
}

static int block_came(void *arg, size_t n, struct ws_error *err)
{
    struct block_sink *k = arg;
    const struct ws_fetch *f = k->fetch;
    const unsigned char *block = ws_fetch_dst(f, k->block);
    const size_t size = ws_manifest_block_bytes(k->file, k->block);
    ws_fetch_came(f, n);
    if (f->pace)
        ws_pace_note(f->pace, ws_clock_ns());
    k->at += n;
    if (k->at < size)
        return 0;
    if (ws_hash(block, size) != k->file->hashes[k->block])
        return is_damaged(k, err);
    if (f->block(f->arg, k->block, k->file->hashes[k->block]))
        return ws_error_set(err, ECANCELED, "the transfer was stopped");
    k->block++;
    k->at = 0;
    return 0;
}

static int archive_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct archive_lane *l = (struct archive_lane *)lane;
    struct archive_source *s = (struct archive_source *)lane->source;
    const struct ws_manifest *m = f->manifest;
    const struct ws_manifest_file *file = &m->files[f->file];
    const size_t last = f->first + f->n - 1;
    const uint64_t from = f->first * WS_BLOCK_BYTES;
    char what[WS_MAX_NAME + 8], path[WS_ARCHIVE_PATH_BYTES];
    struct block_sink k = {.fetch = f, .file = file, .path = path, .block = f->first};
    const struct ws_archive_sink sink = {block_room, block_came, &k, f->cancel};
    snprintf(what, sizeof(what), "files/%s", file->name);
    ws_archive_path(path, s->store->root, m->model, m->version, what);
    int rc =
        s->store->ops->read(l->reader, path, from,
                            last * WS_BLOCK_BYTES + ws_manifest_block_bytes(file, last) - from, &sink, err);
    if (rc == -ENOENT)
        return is_missing(s, m->model, m->version, m->lineage, path, err);
    return rc == 0 && k.block <= last ? is_damaged(&k, err) : rc;
}

/* A stream of records, in pieces. */
struct stream_sink {
    struct archive_lane *lane;
    struct ws_delta_stream_reader *reader;
    const struct ws_delta_fetch *fetch;
    const char *path;
};

static unsigned char *stream_room(void *arg, size_t *n)
{
    *n = PIECE_BYTES;
    return ((struct stream_sink *)arg)->lane->piece;
}

static int stream_came(void *arg, size_t n, struct ws_error *err)
{
    struct stream_sink *k = arg;
    if (k->fetch->pace)
        ws_pace_note(k->fetch->pace, ws_clock_ns());
    int rc = ws_delta_stream_read(k->reader, k->lane->piece, n, err);
    if (rc == -EBADMSG)
        (void)ws_error_prefix(err, "the archive is damaged: %s", k->path);
    return rc > 0 ? ws_error_set(err, ECANCELED, "the transfer was stopped") : rc;
}

/* The file is one stream: whatever part is requested, all of it is read. */
static int archive_delta(struct ws_lane *lane, const struct ws_delta_fetch *f, struct ws_error *err)
{
    struct archive_lane *l = (struct archive_lane *)lane;
    struct archive_source *s = (struct archive_source *)lane->source;
    const struct ws_version_id *target = &f->link.target;
    char path[WS_ARCHIVE_PATH_BYTES];
    struct stream_sink k = {.lane = l, .fetch = f, .path = path};
    const struct ws_archive_sink sink = {stream_room, stream_came, &k, f->cancel};
    bool whole = false;
    int rc = 0;
    ws_archive_path(path, s->store->root, f->model, target->version, "delta");
    k.reader = ws_delta_stream_reader_new(&f->link, f->n_blocks, &f->sink);
    if (!l->piece)
        l->piece = malloc(PIECE_BYTES);
    if (!k.reader || !l->piece)
        rc = ws_error_set(err, ENOMEM, "no memory for a delta");
    if (rc == 0)
        rc = s->store->ops->read(l->reader, path, 0, UINT64_MAX, &sink, err);
    if (rc == -ENOENT)
        rc = is_missing(s, f->model, target->version, target->lineage, path, err);
    else if (rc == 0 && (!ws_delta_stream_reader_ended(k.reader, &whole) || !whole))
        rc = ws_error_set(err, EBADMSG, "the archive is damaged: %s ends too early", path);
    ws_delta_stream_reader_free(k.reader);
    return rc;
}

const struct ws_transport_ops ws_archive_ops = {
    .name = "archive",
    .schemes = (const char *const[]){"s3://", "gs://", NULL}, /* and dir: where the folder is one */
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
