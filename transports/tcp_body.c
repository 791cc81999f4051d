#include "transports/tcp_body.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HASHES_IN_HEADER 64 /* more blocks than this in a range: the manifest has them */

struct ws_tcp_body {
    struct ws_tcp_body *next, *prev; /* guarded by the list's lock */
    struct ws_tcp_bodies *bodies;
    struct ws_hold *hold;
    int sock; /* -1 once the connection has ended; guarded by the list's lock */
};

void ws_tcp_bodies_init(struct ws_tcp_bodies *s, const struct ws_catalog *catalog)
{
    *s = (struct ws_tcp_bodies){.catalog = catalog};
    pthread_mutex_init(&s->lock, NULL);
}

void ws_tcp_bodies_destroy(struct ws_tcp_bodies *s)
{
    assert(!s->first);
    pthread_mutex_destroy(&s->lock);
}

int ws_tcp_connection_socket(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

void ws_tcp_bodies_closed(struct ws_tcp_bodies *s, struct MHD_Connection *c)
{
    int sock = ws_tcp_connection_socket(c);
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
    b->sock = ws_tcp_connection_socket(c);
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

static void add_headers(struct MHD_Response *r, const struct ws_manifest *m, const char *type, bool forever)
{
    char tag[48];
    snprintf(tag, sizeof(tag), "\"%s\"", m->digest);
    (void)MHD_add_response_header(r, "Content-Type", type);
    if (forever)
        (void)MHD_add_response_header(r, "ETag", tag);
    (void)MHD_add_response_header(r, "Cache-Control",
                                  forever ? "public, max-age=31536000, immutable" : "no-store");
    (void)MHD_add_response_header(r, "X-Wsync-Run", m->run);
}

static struct MHD_Response *respond(struct ws_tcp_body *b, const void *data, uint64_t size, const char *type)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback_cls(size, (void *)(uintptr_t)data, free_body, b);
    if (!r) {
        ws_tcp_body_free(b);
        return NULL;
    }
    add_headers(r, b->hold->manifest, type, true);
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

struct MHD_Response *ws_tcp_body_manifest(struct ws_tcp_body *b, json_t *deltas)
{
    const size_t n = b->hold->manifest_json_bytes - 1; /* without the last brace */
    char *list = json_dumps(deltas, JSON_COMPACT), *text = NULL;
    int len = list ? asprintf(&text, "%.*s,\"deltas\":%s}", (int)n, b->hold->manifest_json, list) : -1;
    struct MHD_Response *r = NULL;
    free(list);
    if (len > 0) {
        r = MHD_create_response_from_buffer((size_t)len, text, MHD_RESPMEM_MUST_FREE);
        if (r)
            add_headers(r, b->hold->manifest, "application/json", !is_growing(deltas));
        else
            free(text);
    }
    json_decref(deltas);
    ws_tcp_body_free(b);
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

struct MHD_Response *ws_tcp_body_range(struct ws_tcp_body *b, const struct ws_bundle_file *f, uint64_t begin,
                                       uint64_t end)
{
    static const unsigned char nothing[1];
    struct ws_region *region = b->hold->regions[f - b->hold->manifest->files];
    const unsigned char *data = region ? ws_region_data(region) + begin : nothing;
    struct MHD_Response *r = respond(b, data, end - begin, "application/octet-stream");
    if (!r)
        return NULL;
    (void)MHD_add_response_header(r, "Accept-Ranges", "bytes");
    add_hashes(r, f, begin, end);
    return r;
}
