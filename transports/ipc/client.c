#include "transports/ipc/client.h"
#include "transports/base/limits.h"
#include "transports/http/status.h"
#include "transports/ipc/frame.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int ws_ipc_probe(const char *path, int *sock, struct ws_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strncmp(path, "unix:", 5) == 0)
        path += 5;
    if (strlen(path) >= sizeof(address.sun_path) || path[0] == 0)
        return ws_error_set(err, EINVAL, "'%s' is no path of a unix socket: 1 to %zu bytes", path,
                            sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (path[0] != '/')
        return ws_error_set(err, EINVAL, "'%.200s' is no unix socket: write unix:/PATH", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ws_error_set(err, errno, "cannot make a unix socket: %s", strerror(errno));
    const struct timeval limit = {.tv_sec = WS_CONNECT_TIMEOUT_MS / 1000}, none = {0};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit,
                     sizeof(limit)); /* the queue of one that is stopped is full */
    int connected = connect(fd, (struct sockaddr *)&address, sizeof(address));
    int code = connected == 0 ? 0 : errno == EAGAIN ? ETIMEDOUT : errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
    if (connected != 0) {
        close(fd);
        return ws_error_set(err, code,
                            "cannot reach the agent at unix:%s: %s; is 'wsync agent --socket %s' running?",
                            path, strerror(code), path);
    }
    *sock = fd;
    return 0;
}

int ws_ipc_connect_to(const char *path, const struct ws_ipc_account *named, int *sock, struct ws_error *err)
{
    const char *bare = strncmp(path, "unix:", 5) == 0 ? path + 5 : path;
    int rc = ws_ipc_check_folder(bare, named, err);
    if (rc == 0)
        rc = ws_ipc_probe(bare, sock, err);
    if (rc == 0 && (rc = ws_ipc_check_peer(*sock, bare, named, err)) < 0)
        close(*sock);
    return rc;
}

int ws_ipc_connect(const char *path, int *sock, struct ws_error *err)
{
    return ws_ipc_connect_to(path, NULL, sock, err);
}

/* The rest of the descriptors of a large reply. */
static int recv_more(int sock, json_t *reply, int *fds, size_t max_fds, size_t *n_fds, struct ws_error *err)
{
    bool more = json_is_true(json_object_get(reply, "more"));
    while (more) {
        json_t *next;
        size_t n = 0;
        size_t room = max_fds - *n_fds > WS_MAX_FDS_PER_FRAME ? WS_MAX_FDS_PER_FRAME : max_fds - *n_fds;
        int rc = ws_frame_recv(sock, WS_REPLY_TIMEOUT_MS, &next, fds + *n_fds, room, &n, err);
        if (rc < 0)
            return rc;
        *n_fds += n;
        more = json_is_true(json_object_get(next, "more"));
        json_decref(next);
    }
    return 0;
}

int ws_ipc_request_send_leased(int sock, const char *method, const char *path, const json_t *body_in,
                               const int *fds_in, size_t n_fds_in, bool *lost, struct ws_error *err)
{
    *lost = false;
    const char *query = strchr(path, '?');
    json_t *request =
        json_pack("{s:s,s:s%,s:s}", "method", method, "path", path,
                  query ? (size_t)(query - path) : strlen(path), "query", query ? query + 1 : "");
    if (request && body_in)
        json_object_set(request, "body", (json_t *)(uintptr_t)body_in);
    if (!request)
        return ws_error_set(err, ENOMEM, "no memory for a request");
    int rc = ws_frame_send(sock, request, fds_in, n_fds_in, WS_REPLY_TIMEOUT_MS, err);
    json_decref(request);
    *lost = rc < 0 && rc != -E2BIG && rc != -ENOMEM; /* part of it was sent */
    return rc;
}

int ws_ipc_request_send(int sock, const char *method, const char *path, const json_t *body_in,
                        const int *fds_in, size_t n_fds_in, struct ws_error *err)
{
    bool lost;
    int rc = ws_ipc_request_send_leased(sock, method, path, body_in, fds_in, n_fds_in, &lost, err);
    if (lost)
        (void)shutdown(sock, SHUT_RDWR);
    return rc;
}

int ws_ipc_reply_recv_leased(int sock, int64_t timeout_ms, json_t **body_out, int *fds, size_t max_fds,
                             size_t *n_fds, bool *lost, struct ws_error *err)
{
    size_t n = 0;
    json_t *reply = NULL;
    int rc = ws_frame_recv(sock, timeout_ms, &reply, fds,
                           max_fds < WS_MAX_FDS_PER_FRAME ? max_fds : WS_MAX_FDS_PER_FRAME, &n, err);
    if (body_out)
        *body_out = NULL;
    if (rc == 0)
        rc = recv_more(sock, reply, fds, max_fds, &n, err);
    *lost = rc < 0;
    if (rc == 0) {
        json_int_t status = json_integer_value(json_object_get(reply, "status"));
        if (status < 200 || status >= 300) {
            const char *name = json_string_value(json_object_get(reply, "errno"));
            const char *text = json_string_value(json_object_get(reply, "error"));
            int code = name ? ws_errno_from_name(name) : 0;
            if (code <= 0)
                code = ws_errno_from_http((unsigned)status);
            rc = ws_error_set(err, code > 0 ? code : EPROTO, "%s",
                              text ? text : "the agent refused without a reason");
        } else if (body_out) {
            *body_out = json_incref(json_object_get(reply, "body"));
        }
    }
    json_decref(reply);
    if (rc < 0 && n > 0) {
        ws_frame_close_fds(fds, n);
        n = 0;
    }
    if (n_fds)
        *n_fds = n;
    else
        ws_frame_close_fds(fds, n);
    return rc;
}

int ws_ipc_reply_recv(int sock, int64_t timeout_ms, json_t **body_out, int *fds, size_t max_fds,
                      size_t *n_fds, struct ws_error *err)
{
    bool lost;
    int rc = ws_ipc_reply_recv_leased(sock, timeout_ms, body_out, fds, max_fds, n_fds, &lost, err);
    if (lost) /* what comes late is no answer to the next request */
        (void)shutdown(sock, SHUT_RDWR);
    return rc;
}

int ws_ipc_call(int sock, const char *method, const char *path, const json_t *body_in, const int *fds_in,
                size_t n_fds_in, int64_t timeout_ms, json_t **body_out, int *fds, size_t max_fds,
                size_t *n_fds, struct ws_error *err)
{
    if (body_out)
        *body_out = NULL;
    if (n_fds)
        *n_fds = 0;
    int rc = ws_ipc_request_send(sock, method, path, body_in, fds_in, n_fds_in, err);
    return rc == 0 ? ws_ipc_reply_recv(sock, timeout_ms, body_out, fds, max_fds, n_fds, err) : rc;
}
