/* Loopback: which URLs lead to this host, and whose process listens there. */
#include "tests/fixtures/listening.h"
#include "transports/access/loopback.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void urls_that_lead_to_this_host(void **state)
{
    static const struct {
        const char *url;
        unsigned port;
    } table[] = {
        {"http://127.0.0.1:18861", 18861},
        {"http://127.0.0.1:18861/", 18861},
        {"http://127.9.8.7:1/path", 1},
        {"https://localhost", 443},
        {"http://localhost", 80},
        {"http://localhost?q:1", 80},
        {"http://[::1]:65535", 65535},
        {"http://[::1]", 80},
        /* elsewhere, or nowhere */
        {"http://128.0.0.1:1", 0},
        {"http://10.0.0.1:18861", 0},
        {"http://0.0.0.0:1", 0},
        {"http://[::]:1", 0},
        {"http://[::2]:1", 0},
        {"http://[::ffff:10.0.0.1]:1", 0},
        {"http://localhost.example:1", 0},
        {"http://127.0.0.1.example:1", 0},
        {"http://127.1:1", 0},
        {"http://localhost@10.0.0.1:1", 0},
        {"http://127.0.0.1:1@10.0.0.1", 0},
        {"http://127.0.0.1:0", 0},
        {"http://127.0.0.1:65536", 0},
        {"http://127.0.0.1:", 0},
        {"http://127.0.0.1:1x", 0},
        {"http://127.0.0.1:99999999999", 0},
        {"http://[::1", 0},
        {"http://[::1]1:2", 0},
        {"http://", 0},
        {"unix:/run/wsync/agent.sock", 0},
        {"ftp://127.0.0.1:1", 0},
        {"", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        unsigned port = 0;
        const bool local = ws_loopback_port(table[i].url, &port);
        if (local != (table[i].port != 0) || (local && port != table[i].port))
            fail_msg("%s: %d %u", table[i].url, local, port);
    }
}

/* The account at that URL; -1: it is not known. */
static long owner_at(const char *host, unsigned port)
{
    char url[80];
    uid_t uid;
    snprintf(url, sizeof(url), "http://%s:%u", host, port);
    return ws_loopback_owner(url, port, &uid) ? (long)uid : -1;
}

static void the_account_of_a_listener(void **state)
{
    static const struct {
        const char *at, *host;
        bool reached;
    } table[] = {
        {"127.0.0.1", "127.0.0.1", true}, {"127.0.0.1", "localhost", true}, {"127.0.0.1", "127.0.0.2", false},
        {"0.0.0.0", "127.0.0.2", true},   {"::", "127.0.0.1", true},        {"::", "[::1]", true},
        {"::1", "[::1]", true},           {"::1", "127.0.0.1", false}};
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        unsigned port = 0;
        const int fd = listen_at(table[i].at, &port);
        if (fd < 0)
            continue; /* a host without IPv6 */
        const long owner = owner_at(table[i].host, port);
        close(fd);
        if (owner != (table[i].reached ? (long)geteuid() : -1))
            fail_msg("at %s, to %s: %ld", table[i].at, table[i].host, owner);
        assert_int_equal(owner_at(table[i].host, port), -1);
    }
}

/* Another account takes the nearer address of a port: a connection would come to it. */
static void several_listeners(void **state)
{
    unsigned port = 0;
    (void)state;
    if (geteuid() != 0)
        skip();
    const int all = listen_at("0.0.0.0", &port);
    assert_true(all >= 0);
    assert_int_equal(owner_at("127.0.0.1", port), 0);
    close(all);
    const pid_t child = listener_of(NOBODY, "127.0.0.1", &port);
    assert_true(child > 0);
    assert_int_equal(owner_at("127.0.0.1", port), NOBODY);
    assert_int_equal(owner_at("localhost", port), NOBODY);
    const int six = listen_at("::1", &port); /* localhost may be either */
    if (six >= 0) {
        assert_int_equal(owner_at("[::1]", port), 0);
        assert_int_equal(owner_at("127.0.0.1", port), NOBODY);
        assert_int_equal(owner_at("localhost", port), -1);
        close(six);
    }
    end_child(child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_that_lead_to_this_host),
        cmocka_unit_test(the_account_of_a_listener),
        cmocka_unit_test(several_listeners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
