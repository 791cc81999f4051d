#include "transports/tcp/body.h"
#include "transports/simd/copy.h"
#include "transports/tcp/manifest_text.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HASHES_IN_HEADER 64 /* of a range with more blocks the manifest alone has the hashes */

struct ws_tcp_body {
    struct ws_tcp_body *next, *prev; /* guarded by the list's lock */
    struct ws_tcp_bodies *bodies;
    const struct ws_http_incoming *in; /* while it is answered */
    struct ws_lease *lease;
    bool names_lineage; /* so does the URL, which means these bytes for ever */
    char *text;         /* the manifest, where the catalog keeps none */
    size_t file;        /* what is sent, while it arrives */
    uint64_t begin, end;
    /* What was sent of the last block before it was here: [some_begin, some_end) of the file, by an attempt (0: nothing). */
    uint64_t some_begin, some_end, attempt;
    struct ws_hasher *some_hash; /* NULL: none was needed yet */
    /* guarded by the list's lock */
    int sock;       /* -1 once the connection has ended */
    bool suspended; /* until what was requested arrives */
};

void ws_tcp_bodies_init(struct ws_tcp_bodies *s, const struct ws_catalog *catalog)
{
    *s = (struct ws_tcp_bodies){.catalog = catalog};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->arrived, NULL);
}

void ws_tcp_bodies_destroy(struct ws_tcp_bodies *s)
{
    assert(!s->first);
    pthread_cond_destroy(&s->arrived);
    pthread_mutex_destroy(&s->lock);
}

/* With the list's lock. */
static void resume(struct ws_tcp_body *b)
{
    b->suspended = false;
    ws_http_resume(b->in);
    pthread_cond_broadcast(&b->bodies->arrived);
}

static bool any_is_suspended(const struct ws_tcp_bodies *s)
{
    for (const struct ws_tcp_body *b = s->first; b; b = b->next)
        if (b->suspended)
            return true;
    return false;
}

void ws_tcp_bodies_stop(struct ws_tcp_bodies *s)
{
    const struct ws_catalog *catalog = s->catalog;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    for (struct ws_tcp_body *b = s->first; b; b = b->next)
        if (b->suspended && catalog->ops->forget(catalog->self, b->lease))
            resume(b);
    while (any_is_suspended(s)) /* those whose `arrived` is just being called */
        pthread_cond_wait(&s->arrived, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void ws_tcp_bodies_closed(struct ws_tcp_bodies *s, int sock)
{
    pthread_mutex_lock(&s->lock);
    for (struct ws_tcp_body *b = s->first; b; b = b->next)
        if (b->sock == sock)
            b->sock = -1;
    pthread_mutex_unlock(&s->lock);
}

static void link_in(struct ws_tcp_body *b)
{
    struct ws_tcp_bodies *s = b->bodies;
    pthread_mutex_lock(&s->lock);
    b->next = s->first;
    if (s->first)
        s->first->prev = b;
    s->first = b;
    pthread_mutex_unlock(&s->lock);
}

static void unlink_from(struct ws_tcp_body *b)
{
    struct ws_tcp_bodies *s = b->bodies;
    pthread_mutex_lock(&s->lock);
    if (b->prev)
        b->prev->next = b->next;
    else
        s->first = b->next;
    if (b->next)
        b->next->prev = b->prev;
    pthread_mutex_unlock(&s->lock);
}

static void cut(void *arg)
{
    struct ws_tcp_body *b = arg;
    pthread_mutex_lock(&b->bodies->lock);
    if (b->sock >= 0)
        (void)shutdown(b->sock, SHUT_RDWR); /* under the lock: the number cannot be another's by now */
    pthread_mutex_unlock(&b->bodies->lock);
}

int ws_tcp_body_new(struct ws_tcp_body **out, struct ws_tcp_bodies *s, const struct ws_http_incoming *in,
                    const struct ws_api_request *q, struct ws_error *err)
{
    char peer[96], holder[128];
    struct ws_tcp_body *b = calloc(1, sizeof(*b));
    if (!b)
        return ws_error_set(err, ENOMEM, "no memory for a response");
    b->bodies = s;
    b->in = in;
    b->names_lineage = q->lineage[0] != 0;
    b->sock = ws_http_socket(in);
    ws_http_peer(in, peer);
    snprintf(holder, sizeof(holder), "tcp %s", peer);
    link_in(b);
    int rc = s->catalog->ops->lease(s->catalog->self, q->model, q->version, q->lineage[0] ? q->lineage : NULL,
                                    holder, cut, b, &b->lease, err);
    if (rc < 0) {
        unlink_from(b);
        free(b);
        return rc;
    }
    *out = b;
    return 0;
}

void ws_tcp_body_free(struct ws_tcp_body *b)
{
    const struct ws_catalog *catalog = b->bodies->catalog;
    unlink_from(b);
    catalog->ops->release(catalog->self, b->lease);
    ws_hasher_free(b->some_hash);
    free(b->text);
    free(b);
}

static void free_body(void *arg) /* libmicrohttpd reads its memory no more */
{
    ws_tcp_body_free(arg);
}

const struct ws_lease *ws_tcp_body_lease(const struct ws_tcp_body *b)
{
    return b->lease;
}

static void on_arrival(void *arg)
{
    struct ws_tcp_body *b = arg;
    struct ws_tcp_bodies *s = b->bodies;
    pthread_mutex_lock(&s->lock);
    resume(b);
    pthread_mutex_unlock(&s->lock);
}

/* Suspends the response until what is asked for has arrived: blocks, or, where from is not NULL, more of one. */
static int suspend(struct ws_tcp_body *b, size_t file, size_t first, size_t n, const uint64_t *from,
                   struct ws_error *err)
{
    struct ws_tcp_bodies *s = b->bodies;
    const struct ws_catalog *c = s->catalog;
    struct ws_some some = {.attempt = b->attempt};
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->stop) {
        rc = ws_error_set(err, EAGAIN, "the server ends");
    } else { /* suspended before the request, since it may arrive at once */
        b->suspended = true;
        ws_http_suspend(b->in);
        if ((from ? c->ops->some(c->self, b->lease, file, first, *from, &some, on_arrival, b, NULL)
                  : c->ops->here(c->self, b->lease, file, first, n, on_arrival, b, NULL)) != 0)
            resume(b); /* it has arrived meanwhile, or never will: the next call sees which */
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int ws_tcp_body_here(struct ws_tcp_body *b, size_t file, size_t first, size_t n, struct ws_error *err)
{
    const struct ws_catalog *c = b->bodies->catalog;
    int rc = c->ops->here ? c->ops->here(c->self, b->lease, file, first, n, NULL, NULL, err) : 1;
    return rc ? rc : suspend(b, file, first, n, NULL, err);
}

/* May bytes of the block at `at` be sent before it is here? Only to who gets its last ones as well, which wait for its hash:
 * a range that ends within the block would be over, and taken for good. */
static bool may_send_some(const struct ws_tcp_body *b, size_t file, uint64_t at, uint64_t end)
{
    const size_t block = (size_t)(at / WS_BLOCK_BYTES);
    const uint64_t block_end =
        block * WS_BLOCK_BYTES + ws_manifest_block_bytes(&b->lease->manifest->files[file], block);
    return b->bodies->catalog->ops->some && !b->lease->read && end >= block_end;
}

int ws_tcp_body_begins(struct ws_tcp_body *b, size_t file, uint64_t at, uint64_t end, struct ws_error *err)
{
    const struct ws_catalog *c = b->bodies->catalog;
    const size_t block = (size_t)(at / WS_BLOCK_BYTES);
    const uint64_t from = at % WS_BLOCK_BYTES;
    struct ws_some some = {0};
    if (!may_send_some(b, file, at, end))
        return ws_tcp_body_here(b, file, block, 1, err);
    int rc = c->ops->some(c->self, b->lease, file, block, from, &some, NULL, NULL, err);
    return rc ? rc : suspend(b, file, block, 1, &from, err);
}

void ws_tcp_body_tag(const struct ws_tcp_body *b, bool of_manifest, char out[WS_TCP_TAG_BYTES])
{
    const struct ws_manifest *m = b->lease->manifest;
    if (of_manifest) /* its time is not part of the digest */
        snprintf(out, WS_TCP_TAG_BYTES, "\"%s-%" PRIx64 "\"", m->digest, m->created_ns);
    else
        snprintf(out, WS_TCP_TAG_BYTES, "\"%s\"", m->digest);
}

/* A version's number alone may mean another lineage tomorrow, so caches revalidate it each time. final: what is
 * sent will not change. */
static void add_headers(struct MHD_Response *r, const struct ws_tcp_body *b, bool of_manifest, bool final)
{
    char tag[WS_TCP_TAG_BYTES];
    ws_tcp_body_tag(b, of_manifest, tag);
    if (final)
        ws_http_body_header(r, "ETag", tag);
    ws_http_body_header(r, "Cache-Control",
                        !final             ? "no-store"
                        : b->names_lineage ? "public, max-age=31536000, immutable"
                                           : "no-cache");
    ws_http_body_header(r, "X-Wsync-Run", b->lease->manifest->lineage);
}

struct MHD_Response *ws_tcp_body_unchanged(struct ws_tcp_body *b, bool of_manifest)
{
    static const unsigned char nothing[1];
    struct MHD_Response *r = ws_http_body(nothing, 0, free_body, b);
    if (r)
        add_headers(r, b, of_manifest, true);
    return r;
}

struct MHD_Response *ws_tcp_body_manifest(struct ws_tcp_body *b, json_t *deltas)
{
    const bool final = deltas && !ws_tcp_any_grows(deltas);
    struct MHD_Response *r = NULL;
    size_t n = 0;
    b->text = ws_tcp_manifest_text(b->lease, deltas, &n);
    json_decref(deltas);
    if (b->text)
        r = ws_http_body(b->text, n, free_body, b);
    else
        ws_tcp_body_free(b);
    if (!r)
        return NULL;
    ws_http_body_header(r, "Content-Type", "application/json");
    add_headers(r, b, true, final);
    return r;
}

static void add_hashes(struct MHD_Response *r, const struct ws_manifest_file *f, uint64_t begin, uint64_t end)
{
    char text[HASHES_IN_HEADER * 17 + 1];
    size_t first = (size_t)((begin + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES), n = 0;
    for (size_t i = first; i < f->n_blocks && i * WS_BLOCK_BYTES + ws_manifest_block_bytes(f, i) <= end;
         i++, n++) {
        if (n == HASHES_IN_HEADER)
            return;
        snprintf(text + n * 17, 18, "%016" PRIx64 ",", f->hashes[i]);
    }
    if (n > 0) {
        text[n * 17 - 1] = 0;
        ws_http_body_header(r, "X-Wsync-XXH3", text);
    }
}

static const unsigned char *bytes_at(const struct ws_tcp_body *b, size_t file, uint64_t at)
{
    static const unsigned char nothing[1];
    struct ws_region *region = b->lease->regions[file];
    return region ? ws_region_data(region) + at : nothing;
}

/* The block is here. Is it what was sent of it before? */
static bool is_as_sent(struct ws_tcp_body *b)
{
    const uint64_t n = b->some_end - b->some_begin;
    const bool same =
        b->attempt == 0 || ws_hash(bytes_at(b, b->file, b->some_begin), n) == ws_hasher_digest(b->some_hash);
    b->attempt = 0;
    return same;
}

/* Was that sent of a block that is not here, or will be? False: no memory. */
static bool note_some(struct ws_tcp_body *b, uint64_t attempt, uint64_t at, const void *bytes, uint64_t n)
{
    if (!b->some_hash && !(b->some_hash = ws_hasher_new()))
        return false;
    if (b->attempt == 0) {
        ws_hasher_reset(b->some_hash);
        b->some_begin = at;
    }
    b->attempt = attempt;
    b->some_end = at + n;
    ws_hasher_add(b->some_hash, bytes, n);
    return true;
}

/* The next bytes of a block that is arriving, as far as they have come. */
static ssize_t read_some(struct ws_tcp_body *b, uint64_t at, char *out, size_t max)
{
    const struct ws_catalog *c = b->bodies->catalog;
    const size_t block = (size_t)(at / WS_BLOCK_BYTES);
    const uint64_t from = at % WS_BLOCK_BYTES;
    struct ws_some some = {.attempt = b->attempt}, again;
    int rc = c->ops->some(c->self, b->lease, b->file, block, from, &some, NULL, NULL, NULL);
    if (rc == 1 && (!b->lease->regions[b->file] || (some.is_here && !is_as_sent(b))))
        return WS_HTTP_STREAM_FAILS;
    if (rc == 1) {
        const uint64_t n = some.n - from < max ? some.n - from : max;
        memcpy(out, bytes_at(b, b->file, at), n);
        if (some.is_here)
            return (ssize_t)n;
        again = some;
        rc = c->ops->some(c->self, b->lease, b->file, block, from, &again, NULL, NULL, NULL);
        if (rc == 1)
            return note_some(b, some.attempt, at, out, n) ? (ssize_t)n : WS_HTTP_STREAM_FAILS;
    }
    if (rc == 0)
        rc = suspend(b, b->file, block, 1, &from, NULL);
    return rc < 0 ? WS_HTTP_STREAM_FAILS : 0;
}

/* The next bytes of a version that is arriving, or whose bytes are gathered, up to the block's end. Called when more can
 * be sent. */
static ssize_t read_on(void *arg, uint64_t pos, char *out, size_t max)
{
    struct ws_tcp_body *b = arg;
    const struct ws_manifest_file *f = &b->lease->manifest->files[b->file];
    uint64_t at = b->begin + pos;
    size_t block = (size_t)(at / WS_BLOCK_BYTES);
    if (may_send_some(b, b->file, at, b->end))
        return read_some(b, at, out, max);
    int rc = ws_tcp_body_here(b, b->file, block, 1, NULL);
    if (rc < 0)
        return WS_HTTP_STREAM_FAILS;
    if (rc == 0)
        return 0; /* suspended */
    size_t left = (size_t)(block * WS_BLOCK_BYTES + ws_manifest_block_bytes(f, block) - at);
    size_t n = max < left ? max : left;
    if (b->lease->read)
        b->lease->read(b->lease, b->file, at, n, out);
    else
        memcpy(out, bytes_at(b, b->file, at), n);
    return (ssize_t)n;
}

static struct MHD_Response *respond_by_pieces(struct ws_tcp_body *b, size_t file, uint64_t begin,
                                              uint64_t end)
{
    b->file = file;
    b->begin = begin;
    b->end = end;
    return ws_http_stream(end - begin, read_on, free_body, b);
}

struct MHD_Response *ws_tcp_body_range(struct ws_tcp_body *b, const struct ws_manifest_file *f,
                                       uint64_t begin, uint64_t end)
{
    const struct ws_catalog *c = b->bodies->catalog;
    size_t file = (size_t)(f - b->lease->manifest->files), first = (size_t)(begin / WS_BLOCK_BYTES);
    size_t n = ws_manifest_count_blocks(end) - first;
    bool whole = end == begin ||
                 (!b->lease->read &&
                  (!c->ops->here || c->ops->here(c->self, b->lease, file, first, n, NULL, NULL, NULL) == 1));
    struct MHD_Response *r = whole ? ws_http_body(bytes_at(b, file, begin), end - begin, free_body, b)
                                   : respond_by_pieces(b, file, begin, end);
    if (!r)
        return NULL;
    ws_http_body_header(r, "Content-Type", "application/octet-stream");
    ws_http_body_header(r, "Accept-Ranges", "bytes");
    add_headers(r, b, false, true);
    add_hashes(r, f, begin, end);
    return r;
}
