#include "transports/http/listener.h"
#include "transports/http/acceptor.h"
#include "transports/http/listen.h"
#include <errno.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ws_http_listener {
    int sock;
    struct ws_http_listener_hooks hooks;
    atomic_uint n_connections;
    char *address;
    struct MHD_Daemon *daemon;
    struct ws_acceptor *acceptor;
};

static bool has_room(void *self)
{
    struct ws_http_listener *l = self;
    return l->hooks.has_room(l->hooks.self, atomic_load(&l->n_connections));
}

static void look(void *self)
{
    struct ws_http_listener *l = self;
    l->hooks.looks(l->hooks.self);
}

static void accept_connection(void *self, int sock)
{
    struct ws_http_listener *l = self;
    struct sockaddr_storage peer;
    socklen_t n = sizeof(peer);
    if (getpeername(sock, (struct sockaddr *)&peer, &n) != 0) {
        close(sock); /* the client has gone already */
        return;
    }
    atomic_fetch_add(&l->n_connections, 1);
    if (MHD_add_connection(l->daemon, sock, (struct sockaddr *)&peer, n) != MHD_YES) /* it is closed then */
        atomic_fetch_sub(&l->n_connections, 1);
}

void ws_http_listener_closed(struct ws_http_listener *l)
{
    atomic_fetch_sub(&l->n_connections, 1);
}

int ws_http_listener_new(struct ws_http_listener **out, const char *address, bool beyond_loopback,
                         unsigned *port, struct ws_error *err)
{
    struct ws_http_listener *l = calloc(1, sizeof(*l));
    if (!l || !(l->address = strdup(address))) {
        free(l);
        return ws_error_set(err, ENOMEM, "no memory for an HTTP server");
    }
    const int rc = ws_http_listen(address, beyond_loopback, &l->sock, port, err);
    if (rc < 0) {
        free(l->address);
        free(l);
        return rc;
    }
    *out = l;
    return 0;
}

int ws_http_listener_start(struct ws_http_listener *l, const struct ws_http_listener_hooks *hooks,
                           struct MHD_Daemon *daemon, struct ws_error *err)
{
    l->hooks = *hooks;
    l->daemon = daemon;
    const int rc = ws_acceptor_new(&l->acceptor, &(struct ws_acceptor_options){.listener = l->sock,
                                                                               .part = "http",
                                                                               .name = l->address,
                                                                               .came = accept_connection,
                                                                               .has_room = has_room,
                                                                               .looks = look,
                                                                               .self = l});
    if (rc == 0)
        return 0;
    MHD_stop_daemon(daemon);
    l->daemon = NULL;
    return ws_error_set(err, -rc, "cannot start the thread that listens on %s: %s", l->address,
                        strerror(-rc));
}

void ws_http_listener_free(struct ws_http_listener *l)
{
    if (!l)
        return;
    ws_acceptor_free(l->acceptor);
    close(l->sock);
    if (l->daemon)
        MHD_stop_daemon(l->daemon); /* closes its last connections, which counts them down here */
    free(l->address);
    free(l);
}
