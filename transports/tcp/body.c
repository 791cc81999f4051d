#include "transports/tcp/body.h"
#include "transports/http/door.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HASHES_IN_HEADER 64           /* more blocks than this in a range: the manifest has them */
#define PIECE_BYTES      (512U << 10) /* copied at a time while a version arrives */

struct ws_tcp_body {
    struct ws_tcp_body *next, *prev; /* guarded by the list's lock */
    struct ws_tcp_bodies *bodies;
    struct MHD_Connection *connection;
    struct ws_hold *hold;
    bool of_a_run; /* the URL names the lineage: it means these bytes for ever */
    char *text;    /* the manifest, where the catalog keeps none */
    size_t file;   /* what is sent, while it arrives */
    uint64_t begin;
    /* guarded by the list's lock */
    int sock;       /* -1 once the connection has ended */
    bool suspended; /* until what was asked for arrives */
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
    MHD_resume_connection(b->connection);
    pthread_cond_broadcast(&b->bodies->arrived);
}

static bool is_one_suspended(const struct ws_tcp_bodies *s)
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
        if (b->suspended && catalog->ops->forget(catalog->self, b->hold))
            resume(b);
    while (is_one_suspended(s)) /* those that are being answered just now */
        pthread_cond_wait(&s->arrived, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void ws_tcp_bodies_closed(struct ws_tcp_bodies *s, struct MHD_Connection *c)
{
    int sock = ws_http_connection_socket(c);
    pthread_mutex_lock(&s->lock);
    for (struct ws_tcp_body *b = s->first; b; b = b->next)
        if (b->sock == sock)
            b->sock = -1;
    pthread_mutex_unlock(&s->lock);
}

static void peer_name(struct MHD_Connection *c, char out[96])
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    if (info && info->client_addr)
        (void)getnameinfo(info->client_addr,
                          info->client_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                                   : sizeof(struct sockaddr_in),
                          host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, 96, "tcp %.64s:%.8s", host, port);
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

int ws_tcp_body_new(struct ws_tcp_body **out, struct ws_tcp_bodies *s, struct MHD_Connection *c,
                    const struct ws_api_request *q, struct ws_error *err)
{
    char holder[96];
    struct ws_tcp_body *b = calloc(1, sizeof(*b));
    if (!b)
        return ws_error_set(err, ENOMEM, "no memory for a response");
    b->bodies = s;
    b->connection = c;
    b->of_a_run = q->run[0] != 0;
    b->sock = ws_http_connection_socket(c);
    peer_name(c, holder);
    link_in(b);
    int rc = s->catalog->ops->hold(s->catalog->self, q->model, q->version, q->run[0] ? q->run : NULL, holder,
                                   cut, b, &b->hold, err);
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
    catalog->ops->drop(catalog->self, b->hold);
    free(b->text);
    free(b);
}

static void free_body(void *arg) /* libmicrohttpd reads its memory no more */
{
    ws_tcp_body_free(arg);
}

const struct ws_hold *ws_tcp_body_hold(const struct ws_tcp_body *b)
{
    return b->hold;
}

static void on_arrival(void *arg)
{
    struct ws_tcp_body *b = arg;
    struct ws_tcp_bodies *s = b->bodies;
    pthread_mutex_lock(&s->lock);
    resume(b);
    pthread_mutex_unlock(&s->lock);
}

int ws_tcp_body_here(struct ws_tcp_body *b, size_t file, size_t first, size_t n, struct ws_error *err)
{
    struct ws_tcp_bodies *s = b->bodies;
    const struct ws_catalog *c = s->catalog;
    int rc = c->ops->here ? c->ops->here(c->self, b->hold, file, first, n, NULL, NULL, err) : 1;
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&s->lock);
    if (s->stop) {
        rc = ws_error_set(err, EAGAIN, "the server ends");
    } else { /* suspended before it is asked for, since the answer may come at once */
        b->suspended = true;
        MHD_suspend_connection(b->connection);
        if (c->ops->here(c->self, b->hold, file, first, n, on_arrival, b, NULL) != 0)
            resume(b); /* it has come meanwhile, or never will: it is looked at again */
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void ws_tcp_body_tag(const struct ws_tcp_body *b, bool of_manifest, char out[WS_TCP_TAG_BYTES])
{
    const struct ws_manifest *m = b->hold->manifest;
    if (of_manifest) /* its time is not part of the digest */
        snprintf(out, WS_TCP_TAG_BYTES, "\"%s-%" PRIx64 "\"", m->digest, m->created_ns);
    else
        snprintf(out, WS_TCP_TAG_BYTES, "\"%s\"", m->digest);
}

/* The number alone may mean another lineage tomorrow: then it is asked about each time. */
static void add_headers(struct MHD_Response *r, const struct ws_tcp_body *b, bool of_manifest, bool settled)
{
    char tag[WS_TCP_TAG_BYTES];
    ws_tcp_body_tag(b, of_manifest, tag);
    if (settled)
        (void)MHD_add_response_header(r, "ETag", tag);
    (void)MHD_add_response_header(r, "Cache-Control",
                                  !settled      ? "no-store"
                                  : b->of_a_run ? "public, max-age=31536000, immutable"
                                                : "no-cache");
    (void)MHD_add_response_header(r, "X-Wsync-Run", b->hold->manifest->run);
}

static struct MHD_Response *respond(struct ws_tcp_body *b, const void *data, uint64_t size)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback_cls(size, (void *)(uintptr_t)data, free_body, b);
    if (!r)
        ws_tcp_body_free(b);
    return r;
}

struct MHD_Response *ws_tcp_body_unchanged(struct ws_tcp_body *b, bool of_manifest)
{
    static const unsigned char nothing[1];
    struct MHD_Response *r = respond(b, nothing, 0);
    if (r)
        add_headers(r, b, of_manifest, true);
    return r;
}

static bool is_growing(const json_t *deltas)
{
    const char *growing = ws_delta_state_name(WS_DELTA_GROWING);
    const json_t *one;
    size_t i;
    json_array_foreach(deltas, i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "state")), growing) == 0)
            return true;
    }
    return false;
}

/* How much of the text is before its end, or before its last bracket where it ends in another way. */
static size_t without(const char *text, size_t len, const char *end)
{
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0 ? len - n : len - 1;
}

/* The manifest's text with the list of deltas in the place of its empty one; malloc'ed. NULL: no memory. */
static char *with_deltas(const struct ws_hold *hold, const json_t *deltas, size_t *n)
{
    char *own = NULL, *list = deltas ? json_dumps(deltas, JSON_COMPACT) : strdup("[]"), *text = NULL;
    const char *whole = hold->manifest_json, *end = "," WS_MANIFEST_NO_DELTAS "}";
    size_t len = hold->manifest_json_bytes;
    int bytes = -1;
    if (list && !whole && ws_manifest_to_json(hold->manifest, &own, &len, NULL) == 0)
        whole = own;
    if (list && whole)
        bytes = asprintf(&text, "%.*s,\"deltas\":%s}", (int)without(whole, len, end), whole, list);
    free(list);
    free(own);
    *n = bytes > 0 ? (size_t)bytes : 0;
    return bytes > 0 ? text : NULL;
}

struct MHD_Response *ws_tcp_body_manifest(struct ws_tcp_body *b, json_t *deltas)
{
    const bool settled = deltas && !is_growing(deltas);
    struct MHD_Response *r = NULL;
    size_t n = 0;
    b->text = with_deltas(b->hold, deltas, &n);
    json_decref(deltas);
    if (b->text)
        r = respond(b, b->text, n);
    else
        ws_tcp_body_free(b);
    if (!r)
        return NULL;
    (void)MHD_add_response_header(r, "Content-Type", "application/json");
    add_headers(r, b, true, settled);
    return r;
}

static void add_hashes(struct MHD_Response *r, const struct ws_bundle_file *f, uint64_t begin, uint64_t end)
{
    char text[HASHES_IN_HEADER * 17 + 1];
    size_t first = (size_t)((begin + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES), n = 0;
    for (size_t i = first; i < f->n_blocks && i * WS_BLOCK_BYTES + ws_block_len(f, i) <= end; i++, n++) {
        if (n == HASHES_IN_HEADER)
            return;
        snprintf(text + n * 17, 18, "%016" PRIx64 ",", f->hashes[i]);
    }
    if (n > 0) {
        text[n * 17 - 1] = 0;
        (void)MHD_add_response_header(r, "X-Wsync-XXH3", text);
    }
}

static const unsigned char *bytes_at(const struct ws_tcp_body *b, size_t file, uint64_t at)
{
    static const unsigned char nothing[1];
    struct ws_region *region = b->hold->regions[file];
    return region ? ws_region_data(region) + at : nothing;
}

/* The next bytes of what arrives, as far as the block goes. Called by libmicrohttpd when it can send more. */
static ssize_t read_on(void *arg, uint64_t pos, char *out, size_t max)
{
    struct ws_tcp_body *b = arg;
    const struct ws_bundle_file *f = &b->hold->manifest->files[b->file];
    uint64_t at = b->begin + pos;
    size_t block = (size_t)(at / WS_BLOCK_BYTES);
    int rc = ws_tcp_body_here(b, b->file, block, 1, NULL);
    if (rc < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (rc == 0)
        return 0; /* suspended */
    size_t left = (size_t)(block * WS_BLOCK_BYTES + ws_block_len(f, block) - at);
    size_t n = max < left ? max : left;
    memcpy(out, bytes_at(b, b->file, at), n);
    return (ssize_t)n;
}

static struct MHD_Response *respond_while_it_arrives(struct ws_tcp_body *b, size_t file, uint64_t begin,
                                                     uint64_t end)
{
    b->file = file;
    b->begin = begin;
    struct MHD_Response *r =
        MHD_create_response_from_callback(end - begin, PIECE_BYTES, read_on, b, free_body);
    if (!r)
        ws_tcp_body_free(b);
    return r;
}

struct MHD_Response *ws_tcp_body_range(struct ws_tcp_body *b, const struct ws_bundle_file *f, uint64_t begin,
                                       uint64_t end)
{
    const struct ws_catalog *c = b->bodies->catalog;
    size_t file = (size_t)(f - b->hold->manifest->files), first = (size_t)(begin / WS_BLOCK_BYTES);
    size_t n = ws_blocks_of(end) - first;
    bool whole = end == begin || !c->ops->here ||
                 c->ops->here(c->self, b->hold, file, first, n, NULL, NULL, NULL) == 1;
    struct MHD_Response *r = whole ? respond(b, bytes_at(b, file, begin), end - begin)
                                   : respond_while_it_arrives(b, file, begin, end);
    if (!r)
        return NULL;
    (void)MHD_add_response_header(r, "Content-Type", "application/octet-stream");
    (void)MHD_add_response_header(r, "Accept-Ranges", "bytes");
    add_headers(r, b, false, true);
    add_hashes(r, f, begin, end);
    return r;
}
