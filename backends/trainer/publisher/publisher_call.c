/* A publisher's requests to its agent, and what it does when the connection is lost. */
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FAULTED_PER_MS     (256UL << 10) /* bytes, by a machine that is slow at it */
#define SLICE_MS           10000
#define INTERRUPT_CHECK_MS 500 /* between two checks whether the caller has cancelled */

static void hang_up(struct wsync_publisher *p)
{
    close(p->sock);
    p->sock = -1;
}

static bool has_ended(const struct wsync_publisher *p)
{
    struct pollfd end = {.fd = p->sock, .events = POLLRDHUP};
    return poll(&end, 1, 0) != 0;
}

bool ws_publisher_is_connected(struct wsync_publisher *p)
{
    if (p->sock >= 0 && !has_ended(p))
        return true;
    if (p->sock >= 0)
        hang_up(p);
    ws_publisher_forget(p);
    return false;
}

/* Errors of the connection or the agent, as a publisher's user understands them. */
static int explain(struct wsync_publisher *p, const char *verb, int64_t timeout_ms, int rc,
                   struct ws_error *err)
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
    case ETIMEDOUT: /* the agent's own timeout, which its reply names; or no reply came */
        if (!has_ended(p))
            return rc;
        hang_up(p);
        return ws_error_set(err, ETIMEDOUT,
                            "the agent at %s did not answer '%s' within %" PRId64
                            " s: is it stopped, or its machine overloaded? The next offload connects anew",
                            p->agent, verb, timeout_ms / 1000);
    case EMFILE: /* a part of the reply is lost */
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

/* The agent's own limit, and the time a busy machine takes to answer. begin faults in the memory of a new
 * slot, which takes longer for larger slots. */
static int64_t patience_ms(const struct wsync_publisher *p, const char *verb, const json_t *body)
{
    const json_t *asked = json_object_get(body, "timeout_ms");
    int64_t ms = WS_REPLY_TIMEOUT_MS + (json_is_integer(asked) ? json_integer_value(asked) : p->timeout_ms);
    for (size_t i = 0; strcmp(verb, "begin") == 0 && i < p->n_files; i++)
        ms += (int64_t)(p->file_sizes[i] / FAULTED_PER_MS);
    return ms;
}

/* Waits for the agent's reply, *left_ms at most, and subtracts the time waited. -EINTR: the caller gives
 * up. */
static int wait_for_answer(struct wsync_publisher *p, const char *verb, int64_t *left_ms,
                           struct ws_error *err)
{
    const uint64_t end = ws_clock_ms() + (uint64_t)*left_ms;
    struct pollfd answer = {.fd = p->sock, .events = POLLIN};
    while (p->interrupted && *left_ms > 0 &&
           poll(&answer, 1, *left_ms < INTERRUPT_CHECK_MS ? (int)*left_ms : INTERRUPT_CHECK_MS) <= 0) {
        if (p->interrupted(p->interrupted_arg)) {
            hang_up(p); /* a late reply would be read as that of the next call */
            return ws_error_set(
                err, EINTR,
                "the call was interrupted while the agent at %s was at '%s': what was begun is "
                "abandoned, and the next offload connects anew",
                p->agent, verb);
        }
        const uint64_t now = ws_clock_ms();
        *left_ms = now < end ? (int64_t)(end - now) : 0;
    }
    return 0;
}

static int exchange(struct wsync_publisher *p, const char *verb, const json_t *body, const int *fds_in,
                    size_t n_in, int64_t timeout_ms, json_t **reply, int *fds, size_t max, size_t *n,
                    struct ws_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (reply)
        *reply = NULL;
    if (n)
        *n = 0;
    int rc = ws_ipc_request_send(p->sock, "POST", path, body, fds_in, n_in, err);
    if (rc == 0)
        rc = wait_for_answer(p, verb, &timeout_ms, err);
    return rc == 0 ? ws_ipc_reply_recv(p->sock, timeout_ms, reply, fds, max, n, err) : rc;
}

static int request(struct wsync_publisher *p, const char *verb, json_t *body, const int *fds_in, size_t n_in,
                   json_t **reply, int *fds, size_t max, size_t *n, struct ws_error *err)
{
    if (p->pid != getpid()) {
        json_decref(body);
        return ws_error_set(
            err, EPERM,
            "this publisher was opened by process %d, of which this one, %d, is a fork: open one here",
            (int)p->pid, (int)getpid());
    }
    if (!body)
        return ws_error_set(err, ENOMEM, "no memory for a request");
    const int64_t timeout_ms = patience_ms(p, verb, body);
    int rc =
        p->sock < 0
            ? ws_error_set(err, ENOTCONN,
                           "there is no connection to the agent at %s, which has ended: the next offload "
                           "connects to the one that runs there then",
                           p->agent)
            : exchange(p, verb, body, fds_in, n_in, timeout_ms, reply, fds, max, n, err);
    json_decref(body);
    return rc < 0 ? explain(p, verb, timeout_ms, rc, err) : 0;
}

int ws_publisher_call(struct wsync_publisher *p, const char *verb, json_t *body, json_t **reply, int *fds,
                      size_t max, size_t *n, struct ws_error *err)
{
    return request(p, verb, body, NULL, 0, reply, fds, max, n, err);
}

int ws_publisher_send(struct wsync_publisher *p, const char *verb, json_t *body, const int *fds, size_t n,
                      json_t **reply, struct ws_error *err)
{
    return request(p, verb, body, fds, n, reply, NULL, 0, NULL, err);
}

int ws_publisher_wait(struct wsync_publisher *p, const char *verb, const json_t *body, int64_t timeout_ms,
                      struct ws_error *err)
{
    const uint64_t since = ws_clock_ms();
    for (int64_t left = timeout_ms, passed;; left = timeout_ms - passed) {
        const int64_t slice = timeout_ms >= 0 && left < SLICE_MS ? left : SLICE_MS;
        json_t *one = json_copy((json_t *)(uintptr_t)body);
        if (one)
            json_object_set_new(one, "timeout_ms", json_integer(slice));
        int rc = ws_publisher_call(p, verb, one, NULL, NULL, 0, NULL, err);
        passed = (int64_t)(ws_clock_ms() - since);
        if (rc != -ETIMEDOUT || p->sock < 0 || (timeout_ms >= 0 && passed >= timeout_ms))
            return rc;
    }
}
