/* A publisher's requests to its agent, and what becomes of the connection when that goes. */
#include "backends/trainer/publisher_state.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *ws_publisher_agent(const char *asked)
{
    const char *agent = asked ? asked : getenv("WSYNC_AGENT");
    return agent && *agent ? agent : "unix:/run/wsync/agent.sock";
}

static void hang_up(struct wsync_publisher *p)
{
    close(p->sock);
    p->sock = -1;
}

bool ws_publisher_is_connected(struct wsync_publisher *p)
{
    struct pollfd end = {.fd = p->sock, .events = POLLRDHUP};
    if (p->sock >= 0 && poll(&end, 1, 0) == 0)
        return true;
    if (p->sock >= 0)
        hang_up(p);
    ws_publisher_forget(p);
    return false;
}

/* What went wrong with the connection or the agent, in a publisher's words. */
static int explain(struct wsync_publisher *p, const char *verb, int rc, struct ws_error *err)
{
    struct ws_error said = *err;
    switch (-rc) {
    case ECONNRESET:
    case EPIPE:
        hang_up(p);
        return ws_error_set(err, ECONNRESET,
                            "the agent at %s ended during '%s': when one runs there again, the next offload "
                            "connects to it and goes on (%.200s)",
                            p->agent, verb, said.text);
    case EBADMSG:
        hang_up(p);
        return ws_error_set(
            err, EPROTO,
            "what listens at %s is no agent of this release (%s): %.200s; use agent and libwsync of "
            "one release",
            p->agent, WS_VERSION, said.text);
    case EMFILE: /* half of an answer is lost */
        hang_up(p);
        return rc;
    case ENOENT:
    case EOPNOTSUPP:
        return ws_error_set(
            err, EPROTO,
            "the agent at %s does not know '%s': it is of another release than this libwsync, %s "
            "(%.200s); use agent and libwsync of one release",
            p->agent, verb, WS_VERSION, said.text);
    default:
        return rc;
    }
}

static int request(struct wsync_publisher *p, const char *verb, json_t *body, const int *fds_in, size_t n_in,
                   json_t **reply, int *fds, size_t max, size_t *n, struct ws_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (p->pid != getpid()) {
        json_decref(body);
        return ws_error_set(
            err, EPERM,
            "this publisher was opened by process %d, of which this one, %d, is a fork: open one here",
            (int)p->pid, (int)getpid());
    }
    if (!body)
        return ws_error_set(err, ENOMEM, "no memory for a request");
    int rc =
        p->sock < 0
            ? ws_error_set(err, ENOTCONN,
                           "there is no connection to the agent at %s, which has ended: the next offload "
                           "connects to the one that runs there then",
                           p->agent)
            : ws_ipc_call(p->sock, "POST", path, body, fds_in, n_in, reply, fds, max, n, err);
    json_decref(body);
    return rc < 0 ? explain(p, verb, rc, err) : 0;
}

int ws_publisher_call(struct wsync_publisher *p, const char *verb, json_t *body, json_t **reply, int *fds,
                      size_t max, size_t *n, struct ws_error *err)
{
    return request(p, verb, body, NULL, 0, reply, fds, max, n, err);
}

int ws_publisher_send(struct wsync_publisher *p, const char *verb, json_t *body, const int *fds, size_t n,
                      struct ws_error *err)
{
    return request(p, verb, body, fds, n, NULL, NULL, 0, NULL, err);
}
