#include "backends/trainer/astraflow/zmq_notify.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define LINGER_MS 5000

struct ws_zmq_notify {
    void *socket;
    char endpoint[64];
};

/* Its codes are errno's and some of its own above them. */
static int zmq_failed(const struct ws_zmq_notify *d, const char *what, struct ws_error *err)
{
    int code = zmq_errno();
    return ws_error_set(err, code > 0 && code < ZMQ_HAUSNUMERO ? code : EIO, "%s %s: %s", what, d->endpoint,
                        zmq_strerror(code));
}

int ws_zmq_notify_new(struct ws_zmq_notify **out, void *zmq, const char *endpoint, struct ws_error *err)
{
    struct ws_zmq_notify *d = calloc(1, sizeof(*d));
    const int connected_only = 1, send_ms = WS_CONNECT_TIMEOUT_MS, linger = 0;
    if (!d)
        return ws_error_set(err, ENOMEM, "no memory for a ZMQ socket");
    snprintf(d->endpoint, sizeof(d->endpoint), "%s", endpoint);
    d->socket = zmq_socket(zmq, ZMQ_PUSH);
    if (!d->socket || zmq_setsockopt(d->socket, ZMQ_IMMEDIATE, &connected_only, sizeof(int)) != 0 ||
        zmq_setsockopt(d->socket, ZMQ_SNDTIMEO, &send_ms, sizeof(int)) != 0 ||
        zmq_setsockopt(d->socket, ZMQ_LINGER, &linger, sizeof(int)) != 0 ||
        zmq_connect(d->socket, endpoint) != 0) {
        int rc = zmq_failed(d, "no ZMQ connection to", err);
        ws_zmq_notify_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

int ws_zmq_notify_send(struct ws_zmq_notify *d, struct ws_error *err)
{
    char rank[12];
    const int linger = LINGER_MS;
    int n = snprintf(rank, sizeof(rank), "%d", WS_ASTRAFLOW_RANK), rc;
    do /* both frames or none: the second never waits */
        rc = zmq_send(d->socket, rank, (size_t)n, ZMQ_SNDMORE);
    while (rc < 0 && zmq_errno() == EINTR);
    if (rc < 0 && zmq_errno() == EAGAIN)
        return ws_error_set(err, ETIMEDOUT, "%s does not answer ZMQ", d->endpoint);
    if (rc < 0 || zmq_send(d->socket, "0", 1, 0) < 0)
        return zmq_failed(d, "cannot tell over ZMQ", err);
    (void)zmq_setsockopt(d->socket, ZMQ_LINGER, &linger, sizeof(int));
    return 0;
}

void ws_zmq_notify_free(struct ws_zmq_notify *d)
{
    if (!d)
        return;
    if (d->socket)
        (void)zmq_close(d->socket);
    free(d);
}
