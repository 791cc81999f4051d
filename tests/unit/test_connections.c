/* Which connections of strangers are ended, and which addresses are one. */
#include "transports/http/connections.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST 64 /* connections; half of them strangers, a quarter of one address */

static const struct sockaddr *address(const char *text)
{
    static union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } a;
    if (inet_pton(AF_INET, text, &a.four.sin_addr) == 1)
        a.any.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &a.six.sin6_addr) == 1)
        a.any.sa_family = AF_INET6;
    else
        fail_msg("%s is no address", text);
    return &a.any;
}

static void test_peers(void **state)
{
    static struct ws_http_peers peers;
    static const char *const texts[] = {"2001:db8:1:2::1", "2001:db8:1:2:ffff::", "2001:db8:1:3::1",
                                        "10.0.0.1",        "::ffff:10.0.0.1",     "10.0.0.2"};
    struct ws_http_peer *p[6];
    (void)state;
    for (unsigned i = 0; i < 6; i++)
        assert_non_null(p[i] = ws_http_peers_add(&peers, address(texts[i])));
    assert_ptr_equal(p[0], p[1]);
    assert_ptr_not_equal(p[0], p[2]);
    assert_ptr_equal(p[3], p[4]);
    assert_ptr_not_equal(p[3], p[5]);
    assert_int_equal(p[0]->n_connections, 2);
    for (unsigned i = 0; i < 6; i++)
        ws_http_peers_remove(&peers, p[i]);
    ws_http_peers_remove(&peers, NULL);
    for (unsigned i = 0; i < WS_HTTP_PEER_LISTS; i++)
        assert_null(peers.lists[i]);
}

struct client {
    int near, far; /* far is the server's */
    struct ws_http_link *link;
};

static struct client come(struct ws_http_connections *c, const char *from)
{
    struct client new;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    new.near = pair[0];
    new.far = pair[1];
    assert_non_null(new.link = ws_http_connections_add(c, new.far, address(from)));
    return new;
}

static void go(struct ws_http_connections *c, struct client *k)
{
    ws_http_connections_remove(c, k->link);
    close(k->near);
    close(k->far);
}

static bool is_ended(const struct client *k)
{
    char byte;
    return recv(k->near, &byte, 1, MSG_DONTWAIT) == 0;
}

static void test_one_address(void **state)
{
    struct ws_http_connections c;
    struct client other, many[MOST / 2 - 1], known[MOST / 2];
    (void)state;
    ws_http_connections_init(&c, MOST, false);
    other = come(&c, "10.0.0.2");
    for (unsigned i = 0; i < MOST / 2 - 1; i++)
        many[i] = come(&c, "10.0.0.1");
    assert_int_equal(write(many[0].near, "x", 1), 1); /* the server has not read it yet */
    assert_false(ws_http_connections_have_room(&c, MOST));
    (void)poll(NULL, 0, 150);
    assert_true(ws_http_connections_have_room(&c, 0));
    assert_true(!is_ended(&other) && !is_ended(&many[0]) && is_ended(&many[1]) && !is_ended(&many[2]));
    assert_int_equal(c.ended[WS_HTTP_ENDS_ROOM], 1);
    for (unsigned i = 0; i < MOST / 2; i++) { /* those that are known take no stranger's place */
        known[i] = come(&c, "10.0.0.1");
        ws_http_link_is_known(&c, known[i].link, true, "");
        ws_http_link_is_served(&c, known[i].link);
        ws_http_link_is_idle(&c, known[i].link);
    }
    assert_int_equal(c.n_strangers, MOST / 2 - 1);
    assert_false(ws_http_connections_have_room(&c, 0)); /* all places are taken; soon some are not */
    assert_true(is_ended(&many[2]) && !is_ended(&known[0]));
    for (unsigned i = 0; i < MOST / 2; i++)
        go(&c, &known[i]);
    for (unsigned i = 0; i < MOST / 2 - 1; i++)
        go(&c, &many[i]);
    go(&c, &other);
    assert_true(c.n == 0 && c.n_strangers == 0 && c.n_ending == 0);
    ws_http_connections_destroy(&c);
}

/* Where all places are taken, an identity with more than half of them loses its oldest; one with half keeps them. */
static void test_holders(void **state)
{
    struct ws_http_connections c;
    struct client all[MOST];
    (void)state;
    ws_http_connections_init(&c, MOST, false);
    for (unsigned i = 0; i < MOST; i++) {
        all[i] = come(&c, "10.0.0.1");
        ws_http_link_is_known(&c, all[i].link, true, i < MOST / 2 ? "one" : i == MOST / 2 ? "" : "other");
    }
    assert_false(ws_http_connections_have_room(&c, 0));
    for (unsigned i = 0; i < MOST; i++)
        assert_false(is_ended(&all[i]));
    ws_http_link_is_known(&c, all[MOST / 2].link, true, "one");
    assert_false(ws_http_connections_have_room(&c, 0));
    assert_true(is_ended(&all[0]) && !is_ended(&all[1]) && !is_ended(&all[MOST - 1]));
    assert_int_equal(c.ended[WS_HTTP_ENDS_ROOM], 1);
    for (unsigned i = 0; i < MOST; i++)
        go(&c, &all[i]);
    assert_true(c.n == 0 && !ws_http_holders_largest(&c.holders));
    ws_http_connections_destroy(&c);
}

/* One that is served is no stranger; between its requests it is, unless it has shown who it is. */
static void test_strangers(void **state)
{
    struct ws_http_connections c;
    struct client k;
    (void)state;
    ws_http_connections_init(&c, MOST, true);
    k = come(&c, "::1");
    assert_int_equal(c.n_strangers, 1);
    ws_http_link_sends_head(&c, k.link);
    ws_http_link_is_known(&c, k.link, false, "");
    ws_http_link_sends_body(&c, k.link);
    assert_int_equal(c.n_strangers, 1);
    ws_http_link_is_served(&c, k.link);
    assert_int_equal(c.n_strangers, 0);
    ws_http_link_is_idle(&c, k.link);
    assert_int_equal(c.n_strangers, 1);
    ws_http_link_is_known(&c, k.link, true, "");
    ws_http_link_is_served(&c, k.link);
    ws_http_link_is_idle(&c, k.link);
    assert_int_equal(c.n_strangers, 0);
    ws_http_link_is_known(&c, k.link, false, ""); /* its token is gone */
    ws_http_link_is_served(&c, k.link);
    ws_http_link_is_idle(&c, k.link);
    assert_int_equal(c.n_strangers, 1);
    ws_http_link_end(&c, k.link, WS_HTTP_ENDS_BODY);
    ws_http_link_end(&c, k.link, WS_HTTP_ENDS_BODY);
    assert_true(is_ended(&k) && c.ended[WS_HTTP_ENDS_BODY] == 1 && c.n_strangers == 0);
    ws_http_connections_look(&c);
    go(&c, &k);
    ws_http_connections_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peers), cmocka_unit_test(test_one_address),
                                       cmocka_unit_test(test_holders), cmocka_unit_test(test_strangers)};
    return cmocka_run_group_tests_name("connections", tests, NULL, NULL);
}
