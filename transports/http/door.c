#include "transports/http/door.h"
#include "transports/http/acceptor.h"
#include "transports/http/listen.h"
#include <errno.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ws_http_door {
    int sock;
    unsigned most;
    atomic_uint inside;
    char *address;
    struct MHD_Daemon *daemon;
    struct ws_acceptor *acceptor;
};

static bool has_room(void *self)
{
    struct ws_http_door *d = self;
    return atomic_load(&d->inside) < d->most;
}

static void came(void *self, int sock)
{
    struct ws_http_door *d = self;
    struct sockaddr_storage peer;
    socklen_t n = sizeof(peer);
    if (getpeername(sock, (struct sockaddr *)&peer, &n) != 0) {
        close(sock); /* he has gone already */
        return;
    }
    atomic_fetch_add(&d->inside, 1);
    if (MHD_add_connection(d->daemon, sock, (struct sockaddr *)&peer, n) != MHD_YES) /* it is closed then */
        atomic_fetch_sub(&d->inside, 1);
}

void ws_http_door_left(struct ws_http_door *d)
{
    atomic_fetch_sub(&d->inside, 1);
}

int ws_http_door_new(struct ws_http_door **out, const char *address, bool beyond_loopback, unsigned most,
                     unsigned *port, struct ws_error *err)
{
    struct ws_http_door *d = calloc(1, sizeof(*d));
    if (!d || !(d->address = strdup(address))) {
        free(d);
        return ws_error_set(err, ENOMEM, "no memory for an HTTP server");
    }
    d->most = most;
    const int rc = ws_http_listen(address, beyond_loopback, &d->sock, port, err);
    if (rc < 0) {
        free(d->address);
        free(d);
        return rc;
    }
    *out = d;
    return 0;
}

int ws_http_door_open(struct ws_http_door *d, struct MHD_Daemon *daemon, struct ws_error *err)
{
    d->daemon = daemon;
    const int rc = ws_acceptor_new(&d->acceptor, &(struct ws_acceptor_options){.listener = d->sock,
                                                                               .part = "http",
                                                                               .name = d->address,
                                                                               .came = came,
                                                                               .has_room = has_room,
                                                                               .self = d});
    if (rc == 0)
        return 0;
    MHD_stop_daemon(daemon);
    d->daemon = NULL;
    return ws_error_set(err, -rc, "cannot start the thread that listens on %s: %s", d->address,
                        strerror(-rc));
}

void ws_http_door_free(struct ws_http_door *d)
{
    if (!d)
        return;
    ws_acceptor_free(d->acceptor);
    close(d->sock);
    if (d->daemon)
        MHD_stop_daemon(d->daemon); /* its last connections leave */
    free(d->address);
    free(d);
}
