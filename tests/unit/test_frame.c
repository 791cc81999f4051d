/* A peer on the unix socket that is stopped: sending to it and waiting for it end at the deadline. */
#include "transports/ipc/client.h"
#include "transports/ipc/frame.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SHORT_MS 100
#define LONG_MS  60000

static void pair(int sock[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock), 0);
}

static void peer_does_not_read(void **state)
{
    int sock[2];
    struct ws_error err = {0};
    char *text = malloc(8 << 20);
    (void)state;
    assert_non_null(text);
    pair(sock);
    memset(text, 'x', (8 << 20) - 1);
    text[(8 << 20) - 1] = '\0';
    json_t *body = json_pack("{s:s}", "text", text);
    assert_int_equal(ws_frame_send(sock[0], body, NULL, 0, SHORT_MS, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "stopped"));
    json_decref(body);
    free(text);
    close(sock[0]);
    close(sock[1]);
}

static void no_answer(void **state)
{
    int sock[2];
    struct ws_error err = {0};
    json_t *reply = NULL;
    (void)state;
    pair(sock);
    assert_int_equal(
        ws_ipc_call(sock[0], "GET", "/v1/models", NULL, NULL, 0, SHORT_MS, &reply, NULL, 0, NULL, &err),
        -ETIMEDOUT);
    assert_null(reply);
    /* The peer answers late: that must not be taken for the answer to the next request. */
    json_t *late = json_pack("{s:i,s:s}", "status", 200, "body", "late");
    assert_true(ws_frame_send(sock[1], late, NULL, 0, SHORT_MS, &err) < 0);
    json_decref(late);
    assert_true(
        ws_ipc_call(sock[0], "GET", "/v1/models", NULL, NULL, 0, LONG_MS, &reply, NULL, 0, NULL, &err) < 0);
    assert_null(reply);
    close(sock[0]);
    close(sock[1]);
}

/* A connection that holds a lease survives a missing answer; others are closed. */
static void silence_ends_no_lease(void **state)
{
    int sock[2];
    struct ws_error err = {0};
    (void)state;
    pair(sock);
    struct pollfd other = {.fd = sock[1], .events = POLLIN | POLLRDHUP};
    bool lost = false;
    assert_int_equal(ws_ipc_reply_recv_leased(sock[0], SHORT_MS, NULL, NULL, 0, NULL, &lost, &err),
                     -ETIMEDOUT);
    assert_true(lost);
    assert_int_equal(poll(&other, 1, 0), 0);
    assert_int_equal(ws_ipc_reply_recv(sock[0], SHORT_MS, NULL, NULL, 0, NULL, &err), -ETIMEDOUT);
    assert_int_equal(poll(&other, 1, 0), 1);
    close(sock[0]);
    close(sock[1]);
}

/* A connection that holds leases also survives a request that could not be sent; others are closed. */
static void a_lost_request_ends_no_lease(void **state)
{
    struct ws_error err = {0};
    (void)state;
    for (int leased = 0; leased < 2; leased++) {
        int sock[2];
        bool lost = false;
        pair(sock);
        assert_int_equal(shutdown(sock[1], SHUT_RD), 0);
        int rc = leased ? ws_ipc_request_send_leased(sock[0], "GET", "/v1/models", NULL, NULL, 0, &lost, &err)
                        : ws_ipc_request_send(sock[0], "GET", "/v1/models", NULL, NULL, 0, &err);
        assert_int_equal(rc, -ECONNRESET);
        assert_int_equal(lost, leased);
        assert_int_equal(send(sock[1], "x", 1, MSG_NOSIGNAL), leased ? 1 : -1); /* the other end is open */
        close(sock[0]);
        close(sock[1]);
    }
}

/* Descriptors that came with an invalid answer are closed exactly once, so that no later close hits reused
 * numbers. */
static void descriptors_of_an_invalid_answer(void **state)
{
    int sock[2], fd = -1;
    struct ws_error err = {0};
    size_t n = 0;
    bool lost;
    (void)state;
    pair(sock);
    json_t *refusal = json_pack("{s:i,s:s}", "status", 500, "error", "no");
    assert_int_equal(ws_frame_send(sock[1], refusal, &sock[0], 1, LONG_MS, &err), 0);
    json_decref(refusal);
    assert_true(ws_ipc_reply_recv_leased(sock[0], LONG_MS, NULL, &fd, 1, &n, &lost, &err) < 0);
    assert_false(lost);
    assert_int_equal(n, 0);
    assert_int_equal(fd, -1);
    json_t *torn = json_pack("{s:i,s:b}", "status", 200, "more", 1);
    assert_int_equal(ws_frame_send(sock[1], torn, &sock[0], 1, LONG_MS, &err), 0);
    json_decref(torn);
    close(sock[1]);
    assert_true(ws_ipc_reply_recv_leased(sock[0], LONG_MS, NULL, &fd, 1, &n, &lost, &err) < 0);
    assert_true(lost);
    assert_int_equal(n, 0);
    assert_int_equal(fd, -1);
    close(sock[0]);
}

/* A message needs all of its descriptors: a version mapped without its last file would be another one. */
static void missing_descriptors(void **state)
{
    const uint32_t head[] = {0x31465357U, 2, 1}; /* it announces one */
    int sock[2], got[2], more[2];
    size_t n = 0;
    json_t *body = NULL;
    struct ws_error err = {0};
    struct rlimit limit, less;
    (void)state;
    pair(sock);
    assert_int_equal(send(sock[0], head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    assert_int_equal(send(sock[0], "{}", 2, MSG_NOSIGNAL), 2);
    assert_int_equal(ws_frame_recv(sock[1], LONG_MS, &body, got, 2, &n, &err), -EBADMSG);
    assert_int_equal(n, 0);

    json_t *reply = json_pack("{s:i}", "status", 200);
    assert_int_equal(ws_frame_send(sock[0], reply, sock, 2, LONG_MS, &err), 0);
    json_decref(reply);
    assert_int_equal(pipe2(more, O_CLOEXEC), 0); /* only one of the two fits the limit */
    close(more[0]);
    close(more[1]);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    less = limit;
    less.rlim_cur = (rlim_t)more[0] + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
    const int rc = ws_frame_recv(sock[1], LONG_MS, &body, got, 2, &n, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, -EMFILE);
    assert_int_equal(n, 0);
    assert_non_null(strstr(err.text, "ulimit"));
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(next, more[0]); /* and none of them stays open */
    close(next);
    close(sock[0]);
    close(sock[1]);
}

static void many_descriptors(void **state)
{
    enum { MANY = 3 * WS_MAX_FDS_PER_FRAME + 1 };
    int sock[2], fds[MANY], one = open("/dev/null", O_RDONLY | O_CLOEXEC);
    static const size_t counts[] = {0, 1, WS_MAX_FDS_PER_FRAME, WS_MAX_FDS_PER_FRAME + 1, MANY};
    struct ws_error err = {0};
    (void)state;
    assert_true(one >= 0);
    pair(sock);
    for (size_t i = 0; i < MANY; i++)
        fds[i] = one;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        int got[WS_MAX_FDS_PER_FRAME];
        size_t n, total = 0, frames = 0;
        json_t *body = json_pack("{s:i}", "status", 200), *frame;
        assert_int_equal(ws_frame_send_many(sock[0], body, fds, counts[k], LONG_MS, &err), 0);
        json_decref(body);
        bool more = true;
        for (; more; frames++) {
            if (ws_frame_recv(sock[1], LONG_MS, &frame, got, WS_MAX_FDS_PER_FRAME, &n, &err))
                fail_msg("%s", err.text);
            assert_int_equal(json_object_get(frame, "status") != NULL, frames == 0);
            more = json_is_true(json_object_get(frame, "more"));
            json_decref(frame);
            total += n;
            while (n > 0)
                close(got[--n]);
        }
        assert_int_equal(total, counts[k]);
    }
    close(one);
    close(sock[0]);
    close(sock[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peer_does_not_read),
        cmocka_unit_test(no_answer),
        cmocka_unit_test(silence_ends_no_lease),
        cmocka_unit_test(a_lost_request_ends_no_lease),
        cmocka_unit_test(descriptors_of_an_invalid_answer),
        cmocka_unit_test(missing_descriptors),
        cmocka_unit_test(many_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
