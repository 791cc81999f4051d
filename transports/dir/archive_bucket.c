/* A bucket of an object store as an archive's store: what is a file in a folder is an object of the same name below the
 * prefix. Three things differ.
 *
 * There is no rename: a version's objects are written under the names at which readers look for them, its manifest
 * last. What has no manifest is no version. A version that goes loses its manifest first.
 *
 * There are no locks: v1/.writer says who writes. Whoever opens the archive takes it over, so that a restarted agent
 * need not wait; who wrote before sees that before it makes anything visible, and stops. When the other one has ended,
 * it goes on from the listing that it finds. The listing is replaced only where it still is what this writer knows
 * (If-Match), by stores that can do that, and say what it is (ETag).
 *
 * Readers list nothing: they know names by v1/models, which is asked for with the ETag that was there before. Only who
 * opens it to write lists keys, to remove what a crash left, and to list what is whole and was not listed any more. A
 * list that is behind makes that incomplete, and no more. */
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/base/vector.h"
#include "transports/delta/listing.h"
#include "transports/dir/archive_store.h"
#include "transports/s3/object.h"
#include "transports/s3/upload.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define POLL_MS          2000 /* each costs a request */
#define WRITER           "v1/.writer"
#define MAX_WRITER_BYTES (4UL << 10)
#define LISTING          "v1/models"

struct bucket {
    struct ws_archive_store head;
    struct ws_s3_bucket *s3;
    char id[33]; /* of this writer; empty: it does not write */
    /* Of a writer: the listing as it was last read or written here; empty: there was none. */
    char listing_etag[128];
    bool is_unconditional; /* the store has no conditional writes */
};

struct reader {
    struct ws_archive_reader head;
    struct ws_http_client *http; /* its own: bytes are copied and hashed on the client's thread */
};

struct file {
    struct ws_archive_file head;
    struct ws_s3_upload *upload;
};

static struct ws_s3_bucket *s3_of(const struct ws_archive_store *s)
{
    return ((const struct bucket *)s)->s3;
}

static const char *key_of(const struct ws_archive_store *s, const char *path)
{
    return path + strlen(s->root) + 1;
}

static void bucket_release(struct bucket *s);

static void bucket_close(struct ws_archive_store *store)
{
    struct bucket *s = (struct bucket *)store;
    bucket_release(s);
    ws_s3_bucket_free(s->s3);
    free(s);
}

static int bucket_open(const char *root, const struct ws_archive_store_options *o,
                       struct ws_archive_store **out, struct ws_error *err)
{
    const struct ws_s3_options options = {.insecure = o->insecure, .ca_file = o->ca_file, .stop = o->stop};
    struct bucket *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for an archive");
    s->head.ops = &ws_archive_bucket_ops;
    snprintf(s->head.root, sizeof(s->head.root), "%s", root);
    for (size_t n = strlen(root); n > 0 && root[n - 1] == '/'; n--)
        s->head.root[n - 1] = 0;
    int rc = ws_s3_bucket_open(&s->s3, s->head.root, &options, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *out = &s->head;
    return 0;
}

static void write_unconditionally(struct bucket *s)
{
    if (!s->is_unconditional)
        ws_log(WS_LOG_WARN, "archive",
               "the store of %s has no conditional writes: what two processes write there in the same moment "
               "may be listed late",
               s->head.root);
    s->is_unconditional = true;
}

/* --- reading --- */

static int bucket_get(struct ws_archive_store *s, const char *path, size_t most,
                      char stamp[WS_ARCHIVE_STAMP_BYTES], const atomic_bool *cancel, char **text, size_t *n,
                      struct ws_error *err)
{
    struct bucket *b = (struct bucket *)s;
    const bool is_base = b->id[0] && !stamp && strcmp(key_of(s, path), LISTING) == 0;
    if (is_base) /* of what is written next */
        b->listing_etag[0] = 0;
    const int rc = ws_s3_get(s3_of(s), key_of(s, path), most, is_base ? b->listing_etag : stamp, false,
                             cancel, text, n, err);
    if (rc == 0 && is_base && !b->listing_etag[0]) /* a condition on what is there cannot be said */
        write_unconditionally(b);
    return rc;
}

static int bucket_reader_open(struct ws_archive_store *s, struct ws_archive_reader **out,
                              struct ws_error *err)
{
    struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a lane");
    r->head.store = s;
    int rc = ws_http_client_new(&r->http, err);
    if (rc < 0) {
        free(r);
        return rc;
    }
    *out = &r->head;
    return 0;
}

static void bucket_reader_close(struct ws_archive_reader *reader)
{
    struct reader *r = (struct reader *)reader;
    ws_http_client_free(r->http);
    free(r);
}

struct receipt {
    const struct ws_archive_sink *sink;
    int rc;
    struct ws_error err;
};

static int on_bytes(void *arg, const char *bytes, size_t n)
{
    struct receipt *t = arg;
    while (n > 0) {
        size_t room;
        unsigned char *to = t->sink->room(t->sink->arg, &room);
        const size_t piece = n < room ? n : room;
        memcpy(to, bytes, piece);
        if ((t->rc = t->sink->came(t->sink->arg, piece, &t->err)))
            return 1;
        bytes += piece;
        n -= piece;
    }
    return 0;
}

static int bucket_read(struct ws_archive_reader *reader, const char *path, uint64_t at, uint64_t n,
                       const struct ws_archive_sink *sink, struct ws_error *err)
{
    struct reader *r = (struct reader *)reader;
    struct ws_archive_store *s = r->head.store;
    struct receipt t = {.sink = sink};
    struct ws_s3_reply reply;
    int rc = 0;
    if (n == UINT64_MAX && (rc = ws_s3_size(s3_of(s), key_of(s, path), sink->cancel, &n, err)) < 0)
        return rc;
    if (n == 0)
        return 0;
    rc = ws_s3_call(s3_of(s),
                    &(struct ws_s3_request){.key = key_of(s, path),
                                            .came = on_bytes,
                                            .arg = &t,
                                            .first = at,
                                            .n = n,
                                            .cancel = sink->cancel,
                                            .http = r->http},
                    &reply, err);
    ws_s3_reply_release(&reply);
    if (t.rc && err)
        *err = t.err;
    return t.rc ? t.rc : rc;
}

/* --- who writes --- */

static int put_writer(struct bucket *s, struct ws_error *err)
{
    char host[256] = "", text[512];
    (void)gethostname(host, sizeof(host) - 1);
    for (char *p = host; *p; p++)
        if (*p == '"' || *p == '\\')
            *p = '?';
    if (ws_text_random(s->id, 16) < 0)
        return ws_error_set(err, EIO, "no random numbers");
    snprintf(text, sizeof(text), "{\"writer\":\"%s\",\"host\":\"%s\",\"pid\":%ld}\n", s->id, host,
             (long)getpid());
    int rc = ws_s3_put(s->s3, WRITER, text, strlen(text), NULL, err);
    if (rc < 0)
        s->id[0] = 0;
    return rc;
}

/* 1: this one; 0: none; -EBUSY: another one, which the error names. */
static int find_writer(struct bucket *s, bool is_once, struct ws_error *err)
{
    char *text;
    size_t n;
    int rc = ws_s3_get(s->s3, WRITER, MAX_WRITER_BYTES, NULL, is_once, NULL, &text, &n, err);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    json_t *json = ws_archive_json(text, n);
    const char *id = json_string_value(json_object_get(json, "writer"));
    const char *host = json_string_value(json_object_get(json, "host"));
    if (id && s->id[0] && strcmp(id, s->id) == 0)
        rc = 1;
    else
        rc = ws_error_set(
            err, EBUSY,
            "another process writes the archive %s by now (process %lld of %s): give each writer a "
            "prefix of its own, or end that one",
            s->head.root, (long long)json_integer_value(json_object_get(json, "pid")),
            host ? host : "an unknown host");
    json_decref(json);
    free(text);
    return rc;
}

static int bucket_acquire(struct ws_archive_store *store, struct ws_error *err)
{
    struct bucket *s = (struct bucket *)store;
    struct ws_error other = {0};
    int rc = find_writer(s, false, &other);
    if (rc == -EBUSY)
        ws_log(WS_LOG_WARN, "archive", "taken over: %s", other.text);
    else if (rc < 0)
        return ws_error_set(err, -rc, "%s", other.text);
    return put_writer(s, err);
}

static int bucket_hold(struct ws_archive_store *store, struct ws_error *err)
{
    struct bucket *s = (struct bucket *)store;
    int rc = find_writer(s, false, err);
    if (rc == 0)
        return ws_error_set(err, ESTALE, "another process has written the archive %s meanwhile",
                            s->head.root);
    return rc < 0 ? rc : 0;
}

static void bucket_release(struct bucket *s)
{
    struct ws_error err = {0};
    if (s->id[0] && find_writer(s, true, NULL) == 1 && ws_s3_remove(s->s3, WRITER, true, &err) < 0)
        ws_log(WS_LOG_WARN, "archive", "%s", err.text);
}

/* --- writing --- */

/* Between a look at who writes and this there is a moment in which another process may have taken the archive over. */
static int put_listing(struct bucket *s, const char *key, const void *bytes, size_t n, struct ws_error *err)
{
    int rc = s->is_unconditional ? -EOPNOTSUPP : ws_s3_put_if(s->s3, key, bytes, n, s->listing_etag, err);
    if (rc == -ESTALE)
        return ws_error_set(err, ESTALE, "another process has written the archive %s at the same moment",
                            s->head.root);
    if (rc == -EOPNOTSUPP || (rc == 0 && !s->listing_etag[0]))
        write_unconditionally(s);
    if (rc != -EOPNOTSUPP)
        return rc;
    return ws_s3_put(s->s3, key, bytes, n, NULL, err);
}

static int bucket_put(struct ws_archive_store *s, const char *path, const void *bytes, size_t n,
                      struct ws_error *err)
{
    const char *key = key_of(s, path);
    if (strcmp(key, LISTING) == 0)
        return put_listing((struct bucket *)s, key, bytes, n, err);
    return ws_s3_put(s3_of(s), key, bytes, n, NULL, err);
}

static int bucket_begin(struct ws_archive_store *s, const char *model, uint64_t number,
                        char folder[WS_ARCHIVE_PATH_BYTES], struct ws_error *err)
{
    (void)err;
    ws_archive_path(folder, s->root, model, number, NULL);
    return 0;
}

static int bucket_file_new(struct ws_archive_store *s, const char *path, uint64_t size,
                           const atomic_bool *stop, struct ws_archive_file **out, struct ws_error *err)
{
    struct file *f = calloc(1, sizeof(*f));
    if (!f)
        return ws_error_set(err, ENOMEM, "no memory for a file");
    f->head.store = s;
    int rc = ws_s3_upload_new(&f->upload, s3_of(s), key_of(s, path), size, stop, err);
    if (rc < 0) {
        free(f);
        return rc;
    }
    *out = &f->head;
    return 0;
}

static int bucket_file_write(struct ws_archive_file *file, const void *bytes, size_t n, struct ws_error *err)
{
    return ws_s3_upload_write(((struct file *)file)->upload, bytes, n, err);
}

/* What is there under its name by now may be of another process, which has taken the archive over. */
static int bucket_file_end(struct ws_archive_file *file, int rc, struct ws_error *err)
{
    struct ws_s3_upload *u = ((struct file *)file)->upload;
    rc = ws_s3_upload_flush(u, rc, err);
    if (rc == 0)
        rc = bucket_hold(file->store, err);
    rc = ws_s3_upload_end(u, rc, err);
    free(file);
    return rc;
}

static int bucket_commit(struct ws_archive_store *s, const char *model, uint64_t number, struct ws_error *err)
{
    (void)s;
    (void)model;
    (void)number;
    (void)err;
    return 0; /* by its manifest */
}

static int remove_one(struct ws_archive_store *s, const struct ws_manifest *m, const char *what, bool is_once,
                      struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    ws_archive_path(path, s->root, m->model, m->version, what);
    return ws_s3_remove(s3_of(s), key_of(s, path), is_once, err);
}

/* The manifest first. All that such a version may have, so that nothing is listed. */
static int remove_objects(struct ws_archive_store *s, const struct ws_manifest *m, bool is_once,
                          struct ws_error *err)
{
    static const char *const names[] = {"manifest", "deltas", "delta", "signature"};
    char what[WS_MAX_NAME + 8];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(names) / sizeof(names[0]); i++)
        rc = remove_one(s, m, names[i], is_once, err);
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        snprintf(what, sizeof(what), "files/%s", m->files[i].name);
        rc = remove_one(s, m, what, is_once, err);
    }
    return rc;
}

/* Who writes by now may have written the same names; it removes what was begun here when it opens the archive. */
static void bucket_abandon(struct ws_archive_store *s, const struct ws_manifest *m)
{
    struct ws_error err = {0};
    const int rc = find_writer((struct bucket *)s, true, &err);
    if (rc != 1 || remove_objects(s, m, true, &err) < 0)
        ws_log(WS_LOG_WARN, "archive", "what was begun of %s/%" PRIu64 " is still in %s: %s", m->model,
               m->version, s->root, err.text);
}

static int read_manifest(struct ws_archive_store *s, const char *model, uint64_t number,
                         struct ws_manifest **out, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    size_t n;
    ws_archive_path(path, s->root, model, number, "manifest");
    int rc = bucket_get(s, path, WS_MAX_MANIFEST_BYTES, NULL, NULL, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = ws_manifest_from_json(text, n, out, err);
    free(text);
    if (rc < 0)
        return ws_error_prefix(err, "%s", path);
    if (strcmp((*out)->model, model) == 0 && (*out)->version == number)
        return 0;
    ws_manifest_free(*out);
    *out = NULL;
    return ws_error_set(err, EBADMSG, "%s is the manifest of another version", path);
}

static int bucket_remove(struct ws_archive_store *s, const char *model, uint64_t number, struct ws_error *err)
{
    struct ws_manifest *m;
    int rc = read_manifest(s, model, number, &m, err);
    if (rc < 0)
        return rc;
    rc = remove_objects(s, m, false, err);
    ws_manifest_free(m);
    return rc;
}

/* --- what a crash left --- */

struct stray {
    char *key;
    char model[WS_MAX_NAME + 1];
    uint64_t number;
};
WS_VECTOR(strays, struct stray);

struct search {
    const struct ws_archive_listing *listing;
    struct strays found;
};

/* v1/MODEL/NUMBER/... of a version that is not listed. */
static int on_key(void *arg, const char *key)
{
    struct search *q = arg;
    struct stray one = {0};
    const char *model = key + 3, *number, *rest;
    if (strncmp(key, "v1/", 3) != 0 || !(number = strchr(model, '/')) || !(rest = strchr(++number, '/')) ||
        (size_t)(number - model) > WS_MAX_NAME)
        return 0;
    char digits[24];
    snprintf(one.model, sizeof(one.model), "%.*s", (int)(number - 1 - model), model);
    snprintf(digits, sizeof(digits), "%.*s", (int)(rest - number), number);
    if (!ws_name_is_offered(one.model) || ws_text_u64(digits, &one.number) < 0 ||
        ws_archive_listing_find(q->listing, one.model, one.number, NULL))
        return 0;
    if (!(one.key = strdup(key)) || strays_append(&q->found, one) < 0) {
        free(one.key);
        return -ENOMEM;
    }
    return 0;
}

/* What it is a delta on, out of its chain; an anchor's is empty. */
static int read_base(struct ws_archive_store *s, const struct stray *one, struct ws_archive_entry *e,
                     struct ws_error *err)
{
    struct ws_delta_entry *entries = calloc(WS_MAX_DELTA_ENTRIES, sizeof(*entries));
    char path[WS_ARCHIVE_PATH_BYTES], *text = NULL;
    size_t n, n_entries = 0;
    ws_archive_path(path, s->root, one->model, one->number, "deltas");
    int rc = entries ? bucket_get(s, path, WS_MAX_REPLY_BYTES, NULL, NULL, &text, &n, err) : -ENOMEM;
    json_t *json = rc == 0 ? ws_archive_json(text, n) : NULL;
    if (rc == 0)
        rc = ws_delta_listing_read(json_object_get(json, "deltas"), entries, &n_entries);
    if (rc == 0 && n_entries > 0)
        e->base = entries[0].link.base;
    json_decref(json);
    free(text);
    free(entries);
    return rc;
}

/* Of an object alone: is it there, and as long as it should be (UINT64_MAX: no matter)? */
static int check_object(struct ws_archive_store *s, const struct ws_manifest *m, const char *what,
                        uint64_t bytes, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    uint64_t size;
    ws_archive_path(path, s->root, m->model, m->version, what);
    int rc = ws_s3_size(s3_of(s), key_of(s, path), NULL, &size, err);
    if (rc == 0 && bytes != UINT64_MAX && size != bytes)
        rc = ws_error_set(err, EBADMSG, "%s has %" PRIu64 " bytes, and not %" PRIu64, path, size, bytes);
    return rc;
}

/* Of a version with a manifest: are the bytes there, too? */
static int check_objects(struct ws_archive_store *s, const struct ws_manifest *m,
                         const struct ws_archive_entry *e, struct ws_error *err)
{
    char what[WS_MAX_NAME + 8];
    if (!ws_archive_entry_is_anchor(e))
        return check_object(s, m, "delta", UINT64_MAX, err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        snprintf(what, sizeof(what), "files/%s", m->files[i].name);
        rc = check_object(s, m, what, m->files[i].size_bytes, err);
    }
    return rc;
}

/* 1: it is whole, and listed now; 0: it has no manifest, which comes last; else it stays as it is. */
static int adopt(struct ws_archive_store *s, struct ws_archive_listing *listing, const struct stray *one,
                 bool has_manifest, struct ws_error *err)
{
    struct ws_manifest *m;
    int rc = read_manifest(s, one->model, one->number, &m, err);
    if (rc < 0)
        return rc == -ENOENT && !has_manifest ? 0 : rc;
    struct ws_archive_entry e = {.id = ws_version_id_make(m->version, m->lineage),
                                 .bytes = m->total_bytes,
                                 .created_ns = m->created_ns};
    memcpy(e.digest, m->digest, sizeof(e.digest));
    rc = read_base(s, one, &e, err);
    if (rc == 0)
        rc = check_objects(s, m, &e, err);
    ws_manifest_free(m);
    if (rc < 0)
        return rc;
    if (!ws_archive_entry_is_anchor(&e) &&
        !ws_archive_listing_find(listing, one->model, e.base.version, e.base.lineage))
        return ws_error_set(err, ENOENT, "it is a delta on %" PRIu64 ", which is not there", e.base.version);
    rc = ws_archive_listing_add(listing, one->model, &e, err);
    return rc < 0 ? rc : 1;
}

/* Bases come before what hangs on them: numbers rise in a lineage. */
static int compare(const void *a, const void *b)
{
    const struct stray *x = a, *y = b;
    const int by_model = strcmp(x->model, y->model);
    return by_model ? by_model : x->number < y->number ? -1 : x->number > y->number;
}

/* The objects [from, to) are all of one version. */
static void recover_version(struct ws_archive_store *s, struct ws_archive_listing *listing,
                            const struct strays *all, size_t from, size_t to)
{
    const struct stray *one = &all->ptr[from];
    struct ws_error err = {0};
    bool has_manifest = false; /* as the list of keys says */
    for (size_t i = from; i < to; i++)
        has_manifest = has_manifest || strcmp(strrchr(all->ptr[i].key, '/'), "/manifest") == 0;
    int rc = adopt(s, listing, one, has_manifest, &err);
    if (rc == 1)
        ws_log(WS_LOG_INFO, "archive", "listed what was whole and not listed model=%s version=%" PRIu64,
               one->model, one->number);
    else if (rc < 0)
        ws_log(WS_LOG_WARN, "archive", "not listed, and left in %s: %s/%" PRIu64 ": %s", s->root, one->model,
               one->number, err.text);
    else
        ws_log(WS_LOG_INFO, "archive", "removing what was never finished model=%s version=%" PRIu64,
               one->model, one->number);
    for (size_t i = from; rc == 0 && i < to; i++)
        if (ws_s3_remove(s3_of(s), all->ptr[i].key, true, &err) < 0)
            ws_log(WS_LOG_WARN, "archive", "%s", err.text);
}

static int bucket_recover(struct ws_archive_store *s, struct ws_archive_listing *listing,
                          struct ws_error *err)
{
    struct search q = {.listing = listing};
    struct ws_error why = {0};
    (void)err;
    int rc = ws_s3_list(s3_of(s), "v1/", on_key, &q, &why);
    if (rc < 0)
        ws_log(WS_LOG_WARN, "archive", "what a crash may have left in %s is not looked for: %s", s->root,
               rc == -ENOMEM ? "no memory" : why.text);
    if (q.found.len > 0)
        qsort(q.found.ptr, q.found.len, sizeof(q.found.ptr[0]), compare);
    for (size_t from = 0, to; rc == 0 && from < q.found.len; from = to) {
        for (to = from + 1; to < q.found.len && compare(&q.found.ptr[from], &q.found.ptr[to]) == 0;)
            to++;
        recover_version(s, listing, &q.found, from, to);
    }
    for (size_t i = 0; i < q.found.len; i++)
        free(q.found.ptr[i].key);
    strays_reset(&q.found);
    return 0;
}

const struct ws_archive_store_ops ws_archive_bucket_ops = {
    .poll_ms = POLL_MS,
    .is_in_place = true,
    .open = bucket_open,
    .close = bucket_close,
    .get = bucket_get,
    .reader_open = bucket_reader_open,
    .reader_close = bucket_reader_close,
    .read = bucket_read,
    .acquire = bucket_acquire,
    .hold = bucket_hold,
    .recover = bucket_recover,
    .put = bucket_put,
    .begin = bucket_begin,
    .file_new = bucket_file_new,
    .file_write = bucket_file_write,
    .file_end = bucket_file_end,
    .commit = bucket_commit,
    .abandon = bucket_abandon,
    .remove = bucket_remove,
};
