#include "transports/ipc/serve.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include "transports/http/acceptor.h"
#include "transports/http/status.h"
#include "transports/ipc/frame.h"
#include "transports/ipc/listener.h"
#include "transports/protocol/api.h"
#include "transports/protocol/listing.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PEER_PIDFD      77 /* SO_PEERPIDFD, Linux 6.5 */
#define LEASE_KEY_BYTES (WS_MAX_NAME + WS_LINEAGE_CHARS + 32)

/* What a peer holds by a map request. */
struct lease {
    SLIST_ENTRY(lease) entry;
    struct ws_lease *lease;
    char key[LEASE_KEY_BYTES];
};

struct client {
    LIST_ENTRY(client) entry; /* guarded by the server's lock */
    struct ws_ipc_server *server;
    int sock;
    pthread_t thread;
    struct ws_ipc_peer peer;
    SLIST_HEAD(leases, lease) leases; /* the connection's thread only */
    bool ended;                       /* guarded by the server's lock: the thread may be joined */
};

struct ws_ipc_server {
    struct ws_catalog catalog;
    const struct ws_ipc_handler *handler;
    void *handler_self;
    struct ws_ipc_listener listener;
    struct ws_acceptor *acceptor;
    atomic_bool stop;
    _Atomic uint64_t logged_ns; /* when a refusal was logged last */
    atomic_uint unlogged;       /* refusals since */
    pthread_mutex_t lock;
    pthread_cond_t woken; /* the catalog changed, or the server stops */
    /* guarded by lock */
    LIST_HEAD(clients, client) clients;
    unsigned n_clients;
};

static json_t *error_reply(int code, const char *text)
{
    return json_pack("{s:i,s:s,s:s}", "status", (int)ws_http_status(-code), "errno", ws_errno_name(code),
                     "error", text);
}

static json_t *good_reply(json_t *body) /* steals body */
{
    return json_pack("{s:i,s:o}", "status", 200, "body", body ? body : json_null());
}

/* --- long polls --- */

static bool has_hung_up(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

bool ws_ipc_peer_is_dead(const struct ws_ipc_peer *peer)
{
    struct pollfd p = {.fd = peer->pidfd, .events = POLLIN};
    return peer->pidfd >= 0 && poll(&p, 1, 0) > 0;
}

bool ws_ipc_peer_is_gone(const struct ws_ipc_peer *peer)
{
    return has_hung_up(peer->sock) || ws_ipc_peer_is_dead(peer);
}

static void wait_for_change(struct client *c, const struct ws_api_request *q)
{
    struct ws_ipc_server *s = c->server;
    const uint64_t end = ws_clock_ns() + q->timeout_ms * WS_MS_NS;
    while (!atomic_load(&s->stop) && s->catalog.ops->seq(s->catalog.self) <= q->since &&
           !has_hung_up(c->sock)) {
        const uint64_t now = ws_clock_ns(), look = now + WS_SECOND_NS; /* after the peer */
        if (now >= end)
            return;
        pthread_mutex_lock(&s->lock);
        if (!atomic_load(&s->stop) && s->catalog.ops->seq(s->catalog.self) <= q->since)
            (void)ws_cond_wait_until(&s->woken, &s->lock, look < end ? look : end);
        pthread_mutex_unlock(&s->lock);
    }
}

/* --- leases --- */

static void lease_key(char out[LEASE_KEY_BYTES], const struct ws_api_request *q)
{
    snprintf(out, LEASE_KEY_BYTES, "%s/%" PRIu64 "/%s", q->model, q->version, q->lineage);
}

static void drop_lease(struct client *c, struct lease *l)
{
    SLIST_REMOVE(&c->leases, l, lease, entry);
    c->server->catalog.ops->release(c->server->catalog.self, l->lease);
    free(l);
}

static int send_map(struct client *c, const struct ws_lease *lease, bool copies)
{
    int fds[WS_MAX_FDS_PER_FRAME];
    size_t n = 0, sent = 0;
    struct ws_error err = {0};
    int rc = 0;
    json_t *body = json_loadb(lease->manifest_json, lease->manifest_json_bytes, 0, NULL);
    json_t *reply = body ? good_reply(body) : NULL;
    for (size_t i = 0; rc == 0 && i < lease->manifest->n_files; i++) {
        if (!lease->regions[i])
            continue;
        if (n == WS_MAX_FDS_PER_FRAME) {
            json_t *frame = sent ? json_pack("{s:b}", "more", 1) : json_copy(reply);
            json_object_set_new(frame, "more", json_true());
            rc = ws_frame_send(c->sock, frame, fds, n, WS_REPLY_TIMEOUT_MS, &err);
            json_decref(frame);
            for (size_t k = 0; k < n; k++)
                close(fds[k]);
            sent += n;
            n = 0;
        }
        if (rc == 0)
            rc = ws_region_open(lease->regions[i], copies ? WS_REGION_COPY : WS_REGION_READ, &fds[n], &err);
        if (rc == 0)
            n++;
    }
    if (rc == 0 && reply) {
        json_t *last = sent ? json_pack("{s:b}", "more", 0) : json_incref(reply);
        rc = ws_frame_send(c->sock, last, fds, n, WS_REPLY_TIMEOUT_MS, &err);
        json_decref(last);
    }
    for (size_t k = 0; k < n; k++)
        close(fds[k]);
    json_decref(reply);
    return reply ? rc : -ENOMEM;
}

/* A lease of a version, which may have to be made first. */
static int lease_version(struct client *c, const struct ws_api_request *q, const char *holder,
                         struct ws_lease **out, struct ws_error *err)
{
    const struct ws_catalog *cat = &c->server->catalog;
    const uint64_t end = ws_clock_ms() + WS_MADE_MS;
    for (;;) {
        struct ws_api_request wait = {.since = cat->ops->seq(cat->self)}; /* before looking */
        int rc = cat->ops->lease(cat->self, q->model, q->version, q->lineage[0] ? q->lineage : NULL, holder,
                                 NULL, NULL, out, err);
        const uint64_t now = ws_clock_ms();
        if (rc != -EINPROGRESS)
            return rc;
        if (now >= end || atomic_load(&c->server->stop) || has_hung_up(c->sock))
            return ws_error_set(err, ETIMEDOUT, "%s/%" PRIu64 " was not made in time", q->model, q->version);
        wait.timeout_ms = (unsigned)(end - now);
        wait_for_change(c, &wait);
    }
}

/* Sends its own reply, since that has descriptors. */
static int serve_map(struct client *c, const struct ws_api_request *q, struct ws_error *err)
{
    const struct ws_catalog *cat = &c->server->catalog;
    char holder[64];
    if (!q->copy && !ws_region_leases_work())
        return ws_error_set(err, EOPNOTSUPP,
                            "the kernel grants the agent no leases, so that it cannot see who reads its "
                            "memory: it is only copied, which a mount of wsync 0.1.0 cannot do: name the "
                            "agent's http:// address to that, too, or mount with this agent's wsync");
    struct lease *l = calloc(1, sizeof(*l));
    if (!l)
        return ws_error_set(err, ENOMEM, "no memory for a lease");
    snprintf(holder, sizeof(holder), "ipc pid %d%s", (int)c->peer.pid,
             q->copy || q->copies ? "" : " of wsync 0.1.0");
    int rc = lease_version(c, q, holder, &l->lease, err);
    if (rc < 0) {
        free(l);
        return rc;
    }
    lease_key(l->key, q);
    SLIST_INSERT_HEAD(&c->leases, l, entry);
    if (!q->copy && cat->ops->lend && (rc = cat->ops->lend(cat->self, l->lease, q->copies, err)) < 0) {
        drop_lease(c, l);
        return rc;
    }
    return send_map(c, l->lease, q->copy) < 0
               ? ws_error_set(err, ECONNABORTED, "the descriptors could not be sent")
               : 0;
}

static void serve_unmap(struct client *c, const struct ws_api_request *q)
{
    char key[LEASE_KEY_BYTES];
    lease_key(key, q);
    struct lease *l = SLIST_FIRST(&c->leases);
    while (l && strcmp(l->key, key) != 0)
        l = SLIST_NEXT(l, entry);
    if (l)
        drop_lease(c, l);
}

/* --- requests --- */

/* What the peer's account may do with the catalog. */
static int check_route(const struct client *c, const char *method, const char *path,
                       const struct ws_api_request *q, struct ws_error *err)
{
    const struct ws_catalog *cat = &c->server->catalog;
    const struct ws_api_route *r =
        ws_api_route_find(cat->ops->routes ? cat->ops->routes(cat->self) : NULL, method, path, q);
    if (!r)
        return q->kind == WS_API_OTHER
                   ? cat->ops->no_route(cat->self, method, path, err)
                   : ws_error_set(err, EOPNOTSUPP, "%.200s is not served by %.16s", path, method);
    return ws_identity_check(&c->peer.who, r->role, ws_api_route_model(r, q), path, err);
}

static int serve_catalog(struct client *c, const char *method, const char *path, const char *query,
                         const json_t *body, json_t **reply, struct ws_error *err)
{
    const struct ws_catalog *cat = &c->server->catalog;
    struct ws_api_request q;
    json_t *out = NULL;
    char *text = NULL;
    int rc = ws_api_parse(path, query, &q, err);
    if (rc == 0)
        rc = check_route(c, method, path, &q, err);
    if (rc < 0)
        return rc;
    switch (q.kind) {
    case WS_API_EVENTS:
        if (q.mount_id[0] && cat->ops->seen)
            cat->ops->seen(cat->self, &c->peer.who, q.mount_id, q.timeout_ms);
        wait_for_change(c, &q);
        /* fall through */
    case WS_API_MODELS:
        rc = cat->ops->models(cat->self, q.model[0] ? q.model : NULL, &out, err);
        if (rc == 0)
            ws_listing_split(out);
        break;
    case WS_API_MANIFEST: {
        struct ws_lease *lease;
        rc = lease_version(c, &q, "manifest", &lease, err);
        if (rc == 0) {
            out = json_loadb(lease->manifest_json, lease->manifest_json_bytes, 0, NULL);
            cat->ops->release(cat->self, lease);
        }
        break;
    }
    case WS_API_DELTAS: /* there is nothing to save where no byte is copied */
        out = json_pack("{s:[]}", "deltas");
        break;
    case WS_API_DELTA:
    case WS_API_FILE:
        return ws_error_set(err, EOPNOTSUPP, "bytes do not travel by the unix socket: ask for /map");
    case WS_API_MAP:
        return serve_map(c, &q, err);
    case WS_API_UNMAP:
        serve_unmap(c, &q);
        break;
    case WS_API_OTHER:
        json_object_del((json_t *)(uintptr_t)body, "hold_ms"); /* nothing is held here */
        rc = cat->ops->route(cat->self, &c->peer.who, method, path, query, body, &out, &text, err);
        if (rc == 0 && text)
            out = json_string(text);
        free(text);
        break;
    }
    if (rc == 0)
        *reply = good_reply(out);
    return rc;
}

/* Refusals are logged, but not as fast as a client can cause them. */
static void log_refusal(const struct client *c, const char *method, const char *path,
                        const struct ws_error *err)
{
    struct ws_ipc_server *s = c->server;
    const uint64_t now = ws_clock_ns();
    uint64_t last = atomic_load(&s->logged_ns);
    char to[WS_IDENTITY_CHARS + 200], why[WS_ERROR_TEXT + 40];
    if (now - last < WS_SECOND_NS || !atomic_compare_exchange_strong(&s->logged_ns, &last, now)) {
        atomic_fetch_add(&s->unlogged, 1);
        return;
    }
    snprintf(to, sizeof(to), "%.16s %.200s", method, path);
    snprintf(why, sizeof(why), "%.440s; %u more since the entry before", err->text,
             atomic_exchange(&s->unlogged, 0));
    ws_audit_log_write(&(struct ws_audit_entry){.what = "refused",
                                                .who = c->peer.who.name,
                                                .from = c->peer.who.from,
                                                .to = to,
                                                .outcome = WS_AUDIT_REFUSED,
                                                .error = why});
}

static int serve_one(struct client *c, const json_t *request, const int *fds, size_t n_fds)
{
    struct ws_ipc_server *s = c->server;
    const char *method = json_string_value(json_object_get(request, "method"));
    const char *path = json_string_value(json_object_get(request, "path"));
    const char *query = json_string_value(json_object_get(request, "query"));
    json_t *body = json_object_get(request, "body");
    struct ws_error err = {0};
    json_t *reply = NULL;
    int out[WS_MAX_FDS_PER_CALL];
    size_t n_out = 0;
    int rc;
    if (!method || !path)
        rc = ws_error_set(&err, EINVAL, "a request has a method and a path");
    else if (s->handler && strncmp(path, "/v1/local/", 10) == 0) {
        json_t *answer = NULL;
        rc = s->handler->call(s->handler_self, &c->peer, method, path, body, fds, n_fds, &answer, out,
                              WS_MAX_FDS_PER_CALL, &n_out, &err);
        if (rc == 0)
            reply = good_reply(answer);
        else
            json_decref(answer);
    } else {
        rc = serve_catalog(c, method, path, query, body, &reply, &err);
    }
    if (rc == -ECONNABORTED)
        return rc;
    if (rc == -EPERM || rc == -EACCES)
        log_refusal(c, method, path, &err);
    if (rc < 0) {
        json_decref(reply);
        reply = error_reply(-rc, err.text);
    }
    rc = reply ? ws_frame_send_many(c->sock, reply, out, n_out, WS_REPLY_TIMEOUT_MS, &err)
               : 0; /* no reply: map sent its own */
    json_decref(reply);
    for (size_t i = 0; i < n_out; i++)
        close(out[i]);
    return rc;
}

/* What follows a malformed message need not begin where a message begins: the connection ends. */
static void refuse_message(struct client *c, const struct ws_error *why)
{
    struct ws_error err = {0};
    json_t *reply = error_reply(why->code, why->text);
    if (reply && ws_frame_send(c->sock, reply, NULL, 0, WS_REPLY_TIMEOUT_MS, &err) < 0)
        ws_log(WS_LOG_DEBUG, "ipc", "the refusal did not reach pid=%d: %s", (int)c->peer.pid, err.text);
    json_decref(reply);
    (void)shutdown(c->sock, SHUT_RDWR);
}

static void *serve_client(void *arg)
{
    struct client *c = arg;
    struct ws_ipc_server *s = c->server;
    struct ws_error err = {0};
    while (!atomic_load(&s->stop)) {
        json_t *request;
        int fds[WS_MAX_FDS_PER_FRAME];
        size_t n = 0;
        int rc = ws_frame_recv(c->sock, -1, &request, fds, WS_MAX_FDS_PER_FRAME, &n, &err);
        if (rc < 0) {
            if (rc != -ECONNRESET)
                ws_log(WS_LOG_WARN, "ipc", "the connection failed pid=%d: %s", (int)c->peer.pid, err.text);
            if (rc == -EBADMSG)
                refuse_message(c, &err);
            break;
        }
        rc = serve_one(c, request, fds, n);
        json_decref(request);
        for (size_t i = 0; i < n; i++)
            close(fds[i]);
        if (rc < 0)
            break;
    }
    while (!SLIST_EMPTY(&c->leases))
        drop_lease(c, SLIST_FIRST(&c->leases));
    if (s->handler && s->handler->gone)
        s->handler->gone(s->handler_self, &c->peer);
    pthread_mutex_lock(&s->lock);
    c->ended = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Joins connections that ended; all of them when the server stops. */
static void reap(struct ws_ipc_server *s, bool all)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct client *c = LIST_FIRST(&s->clients);
        while (c && !c->ended && !all)
            c = LIST_NEXT(c, entry);
        if (c) {
            LIST_REMOVE(c, entry);
            s->n_clients--;
        }
        pthread_mutex_unlock(&s->lock);
        if (!c)
            return;
        (void)shutdown(c->sock, SHUT_RDWR);
        pthread_join(c->thread, NULL);
        close(c->sock);
        if (c->peer.pidfd >= 0)
            close(c->peer.pidfd);
        free(c);
    }
}

/* The process that connected. Where the kernel cannot name it by the socket, its number does. If another
 * process has that number by now, the one that connected is dead, and its connection ends late, with the
 * other. */
static int open_pidfd(int sock, pid_t pid)
{
    int fd = -1;
    socklen_t len = sizeof(fd);
    if (getsockopt(sock, SOL_SOCKET, PEER_PIDFD, &fd, &len) == 0)
        return fd;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static void accept_client(void *self, int sock)
{
    struct ws_ipc_server *s = self;
    struct ucred cred = {0};
    socklen_t len = sizeof(cred);
    struct client *c = calloc(1, sizeof(*c));
    if (!c || s->n_clients >= WS_MAX_CLIENTS || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        ws_log(WS_LOG_WARN, "ipc", "a connection is refused clients=%u", s->n_clients);
        free(c);
        close(sock);
        return;
    }
    c->server = s;
    c->sock = c->peer.sock = sock;
    c->peer.pid = cred.pid;
    c->peer.uid = cred.uid;
    ws_identity_of_uid(cred.uid, &c->peer.who);
    snprintf(c->peer.who.from, sizeof(c->peer.who.from), "pid %d uid %u", (int)cred.pid, (unsigned)cred.uid);
    c->peer.pidfd = open_pidfd(sock, cred.pid);
    pthread_mutex_lock(&s->lock);
    if (ws_thread_start(&c->thread, serve_client, c) < 0) {
        pthread_mutex_unlock(&s->lock);
        if (c->peer.pidfd >= 0)
            close(c->peer.pidfd);
        free(c);
        close(sock);
        return;
    }
    LIST_INSERT_HEAD(&s->clients, c, entry);
    s->n_clients++;
    pthread_mutex_unlock(&s->lock);
}

/* A child that keeps the socket open does not keep what its parent held. */
static void disconnect_dead(struct ws_ipc_server *s)
{
    pthread_mutex_lock(&s->lock);
    for (struct client *c = LIST_FIRST(&s->clients); c; c = LIST_NEXT(c, entry))
        if (!c->ended && atomic_load(&c->peer.ends_with_process) && ws_ipc_peer_is_dead(&c->peer))
            (void)shutdown(c->sock, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}

static void sweep(void *self)
{
    disconnect_dead(self);
    reap(self, false);
}

int ws_ipc_server_new(struct ws_ipc_server **out, const char *path, gid_t gid,
                      const struct ws_catalog *catalog, const struct ws_ipc_handler *handler,
                      void *handler_self, struct ws_error *err)
{
    assert(!catalog->ops->here);
    struct ws_ipc_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ws_error_set(err, ENOMEM, "no memory for a server");
    int rc = ws_ipc_listener_open(&s->listener, path, gid, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    s->catalog = *catalog;
    s->handler = handler;
    s->handler_self = handler_self;
    pthread_mutex_init(&s->lock, NULL);
    ws_cond_init(&s->woken);
    rc = ws_acceptor_new(&s->acceptor, &(struct ws_acceptor_options){.listener = s->listener.fd,
                                                                     .part = "ipc",
                                                                     .name = path,
                                                                     .came = accept_client,
                                                                     .looks = sweep,
                                                                     .self = s});
    if (rc < 0) {
        ws_ipc_listener_close(&s->listener);
        pthread_cond_destroy(&s->woken);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return ws_error_set(err, EAGAIN, "cannot start the thread of the socket %s", path);
    }
    *out = s;
    return 0;
}

void ws_ipc_server_wake(struct ws_ipc_server *s)
{
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->woken);
    pthread_mutex_unlock(&s->lock);
}

void ws_ipc_server_free(struct ws_ipc_server *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    ws_ipc_server_wake(s);
    ws_acceptor_free(s->acceptor);
    reap(s, true);
    ws_ipc_listener_close(&s->listener);
    pthread_cond_destroy(&s->woken);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
