#include "transports/http/server.h"
#include "transports/base/secret.h"
#include "transports/http/exchange.h"
#include "transports/http/listener.h"
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Of a connection, for what is not body: half as much again as the longest target, for its arguments and headers.
 * libmicrohttpd clears all of it after each request, so a mount that polls holds it all. */
#define HEAD_BYTES (24UL << 10)

static struct ws_http_connection *add_connection(struct ws_http_server *s, struct MHD_Connection *c, int sock)
{
    struct ws_http_connection *new = calloc(1, sizeof(*new));
    if (!new)
        return NULL;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    new->link = ws_http_connections_add(&s->links, sock, info ? info->client_addr : NULL);
    if (s->tls)
        new->credentials = ws_http_tls_use(s->tls, c);
    return new;
}

static void remove_connection(struct ws_http_server *s, struct ws_http_connection *c)
{
    if (!c)
        return;
    ws_http_connections_remove(&s->links, c->link);
    ws_http_tls_release(s->tls, c->credentials);
    free(c->certificate);
    free(c);
}

static void connection_event(void *cls, struct MHD_Connection *c, void **state,
                             enum MHD_ConnectionNotificationCode code)
{
    struct ws_http_server *s = cls;
    const int sock = ws_http_connection_socket(c), on = 1;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *state = add_connection(s, c, sock);
        (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        (void)setsockopt(sock, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        atomic_fetch_add(&s->connections, 1);
        return;
    }
    if (s->o.closed)
        s->o.closed(s->o.self, sock);
    remove_connection(s, *state);
    atomic_fetch_sub(&s->connections, 1);
    ws_http_listener_closed(s->listener);
}

/* --- starting --- */

static struct MHD_Daemon *start_daemon(struct ws_http_server *s)
{
    const bool tls = s->tls, blocks = s->o.n_threads == 0;
    const unsigned threads =
        blocks ? (unsigned)MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL
               : (unsigned)MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    const unsigned flags = threads | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC |
                           (tls ? (unsigned)MHD_USE_TLS : 0); /* the listener accepts for it */
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, tls ? (void *)(uintptr_t)ws_http_tls_first_cert(s->tls) : NULL},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, tls ? (void *)(uintptr_t)ws_http_tls_first_key(s->tls) : NULL},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3"},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem pool[] = {{MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)s->o.n_threads, NULL},
                                    {MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(
        flags, 0, NULL, NULL, ws_http_handle, s, MHD_OPTION_ARRAY, tls ? tls_options : &tls_options[3],
        MHD_OPTION_ARRAY, blocks ? &pool[1] : pool, MHD_OPTION_URI_LOG_CALLBACK, ws_http_begin, s,
        MHD_OPTION_NOTIFY_COMPLETED, ws_http_end, s, MHD_OPTION_NOTIFY_CONNECTION, connection_event, s,
        MHD_OPTION_CONNECTION_TIMEOUT, s->o.idle_seconds, MHD_OPTION_CONNECTION_LIMIT, (unsigned)INT_MAX,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_BYTES, MHD_OPTION_END);
}

static bool has_room(void *self, unsigned n_accepted)
{
    struct ws_http_server *s = self;
    const unsigned n = atomic_load(&s->connections);
    return ws_http_connections_have_room(&s->links, n_accepted > n ? n_accepted - n : 0);
}

static void look(void *self)
{
    ws_http_connections_look(&((struct ws_http_server *)self)->links);
}

static int start(struct ws_http_server *s, struct ws_error *err)
{
    const struct ws_http_server_options *o = &s->o;
    const struct ws_http_tls_files files = {o->tls_cert_file, o->tls_key_file, o->tls_client_ca_file};
    int rc = ws_http_tls_new(&s->tls, &files, err);
    if (rc == 0)
        rc = ws_access_new(&s->access, &o->access, err);
    if (rc == 0) {
        const bool asks = ws_access_asks(s->access) || ws_http_tls_has_client_ca(s->tls);
        rc = ws_http_listener_new(&s->listener, o->listen, asks || o->access.insecure, &s->port, err);
        if (rc == 0 && !asks)
            rc = ws_access_make_local(s->access, s->port, err);
    }
    if (rc < 0)
        return rc;
    struct MHD_Daemon *daemon = start_daemon(s);
    if (!daemon)
        return ws_error_set(err, EIO, "the HTTP server on %s did not start%s", o->listen,
                            s->tls ? "; are certificate and key right?" : "");
    return ws_http_listener_start(s->listener, &(struct ws_http_listener_hooks){has_room, look, s}, daemon,
                                  err);
}

int ws_http_server_new(struct ws_http_server **out, const struct ws_http_server_options *o,
                       struct ws_error *err)
{
    struct ws_http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for an HTTP server");
    s->o = *o;
    ws_http_connections_init(&s->links, o->max_connections, o->tls_cert_file);
    const int rc = start(s, err);
    if (rc < 0)
        ws_http_server_free(s);
    else
        *out = s;
    return rc;
}

unsigned ws_http_server_port(const struct ws_http_server *s)
{
    return s->port;
}

uint64_t ws_http_server_requests(const struct ws_http_server *s)
{
    return atomic_load(&s->requests);
}

uint64_t ws_http_server_refused(const struct ws_http_server *s, unsigned status)
{
    return atomic_load(status == MHD_HTTP_FORBIDDEN ? &s->forbidden : &s->unknown);
}

uint64_t ws_http_server_ended(const struct ws_http_server *s, enum ws_http_ending why)
{
    return atomic_load(&s->links.ended[why]);
}

unsigned ws_http_server_connections(const struct ws_http_server *s)
{
    return atomic_load(&s->connections);
}

uint64_t ws_http_server_certificate_end(const struct ws_http_server *s)
{
    return ws_http_tls_end(s->tls);
}

void ws_http_server_free(struct ws_http_server *s)
{
    if (!s)
        return;
    ws_access_end(s->access);
    ws_http_listener_free(s->listener);
    ws_http_connections_destroy(&s->links);
    ws_access_free(s->access);
    ws_http_tls_free(s->tls);
    free(s);
}
