/* A broker that could not unmount keeps no connection. */
#include "fs/fuse/broker.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST_MS 20000

static void test_gives_connection_up(void **state)
{
    const struct ws_place elsewhere = {.at = "/"}; /* where another file system is */
    struct ws_run_as who;
    struct ws_broker *broker;
    struct ws_error err = {0};
    int ends[2];
    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(ws_run_as_find(&who, "nobody", &err), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(ws_broker_start(&broker, ends[0], &elsewhere, &who, &err), 0);
    close(ends[0]);
    struct pollfd p = {.fd = ends[1]};
    assert_int_equal(poll(&p, 1, 0), 0); /* the broker has the other end */
    assert_int_equal(ws_broker_detach(broker), -ENOENT);
    assert_int_equal(poll(&p, 1, MOST_MS), 1);
    assert_true(p.revents & POLLHUP);
    assert_int_equal(ws_broker_detach(broker), -EPIPE);
    ws_broker_free(broker);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gives_connection_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
