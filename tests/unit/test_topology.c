/* Who takes part in trees, with the test's own clock: whose address is announced, leases, slow parents. */
#include "backends/trainer/agent/fleet/topology.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define S 1000000000UL

static uint64_t now = 100 * S;

static json_t *post_as(struct ws_topology *t, const char *who, const char *from, const char *mount,
                       json_t *body)
{
    struct ws_identity i = {.is_shared = !who};
    struct ws_error err = {0};
    json_t *reply = NULL;
    snprintf(i.name, sizeof(i.name), "%s", who ? who : "token-file");
    snprintf(i.from, sizeof(i.from), "%s", from);
    assert_int_equal(ws_topology_report(t, &i, mount, body, now, &reply, &err), 0);
    json_decref(body);
    return reply;
}

static json_t *post(struct ws_topology *t, const char *from, const char *mount)
{
    return post_as(t, NULL, from, mount, json_pack("{s:i,s:s}", "port", 18863, "rack", "r"));
}

/* The entry of a mount; borrowed from *all. */
static const json_t *entry(struct ws_topology *t, const char *mount, json_t **all)
{
    const json_t *one;
    size_t i;
    *all = ws_topology_json(t, now);
    json_array_foreach(json_object_get(*all, "mounts"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "mount")), mount) == 0)
            return one;
    }
    return NULL;
}

static void assert_url(struct ws_topology *t, const char *mount, const char *key, const char *expected)
{
    json_t *all;
    const json_t *one = entry(t, mount, &all);
    assert_non_null(one);
    assert_string_equal(json_string_value(json_object_get(one, key)), expected);
    json_decref(all);
}

static void test_addresses(void **state)
{
    struct ws_topology t = {0};
    (void)state;
    json_decref(post(&t, "10.0.0.3:4711", "a:/m"));
    json_decref(post(&t, "[fd00:1:2:3::4]:4711", "b:/m"));
    json_decref(post(&t, "[::ffff:10.0.0.9]:1", "c:/m"));
    json_decref(post(&t, "pid 12 uid 0", "d:/m")); /* by the socket: it has no address */
    /* What it says of its own host, as by a URL, is not looked at. */
    json_decref(post_as(&t, NULL, "10.0.0.5:1", "e:/m",
                        json_pack("{s:i,s:b,s:s,s:s}", "port", 443, "tls", 1, "url", "https://elsewhere:1",
                                  "host", "elsewhere")));
    json_decref(post_as(&t, NULL, "10.0.0.6:1", "f:/m", json_pack("{s:i}", "port", 70000)));
    assert_url(&t, "a:/m", "url", "http://10.0.0.3:18863");
    assert_url(&t, "b:/m", "url", "http://[fd00:1:2:3::4]:18863");
    assert_url(&t, "c:/m", "url", "http://10.0.0.9:18863");
    assert_url(&t, "d:/m", "url", "");
    assert_url(&t, "e:/m", "url", "https://10.0.0.5:443");
    assert_url(&t, "f:/m", "url", "");
    assert_url(&t, "a:/m", "rack", "r");
    assert_url(&t, "e:/m", "rack", "net:10.0.0#0");
    ws_topology_clear(&t);
}

static void test_names_are_of_an_owner(void **state)
{
    struct ws_topology t = {0};
    (void)state;
    json_decref(post_as(&t, "one", "10.0.0.3:1", "a:/m", json_pack("{s:i}", "port", 1)));
    json_decref(post_as(&t, "two", "10.0.0.4:1", "a:/m", json_pack("{s:i}", "port", 2)));
    assert_int_equal(t.n, 2); /* neither takes the other's place */
    json_decref(post_as(&t, "two", "10.0.0.4:1", "a:/m", json_pack("{s:b}", "gone", 1)));
    assert_int_equal(t.n, 1);
    assert_url(&t, "a:/m", "identity", "one");
    ws_topology_clear(&t);
}

static const char *hint(const json_t *reply, size_t stripe)
{
    return json_string_value(json_array_get(json_array_get(json_object_get(reply, "stripes"), stripe), 0));
}

static bool is_pending(json_t *reply)
{
    const bool is = json_is_true(json_object_get(reply, "pending"));
    json_decref(reply);
    return is;
}

static void test_life(void **state)
{
    struct ws_topology t = {0};
    json_t *a, *b;
    (void)state;
    assert_true(is_pending(post(&t, "10.0.0.1:1", "a:/m"))); /* others may come */
    assert_true(is_pending(post(&t, "10.0.0.2:1", "b:/m")));
    now += S;
    a = post(&t, "10.0.0.1:1", "a:/m");
    b = post(&t, "10.0.0.2:1", "b:/m");
    for (size_t s = 0; s < WS_FANOUT_STRIPES; s++) { /* one asks the agent, the other one it */
        assert_true(!hint(a, s) != !hint(b, s));
        assert_string_equal(hint(a, s) ? hint(a, s) : hint(b, s),
                            hint(a, s) ? "http://10.0.0.2:18863" : "http://10.0.0.1:18863");
    }
    json_decref(a);
    json_decref(b);
    for (int i = 0; i < 6; i++) { /* b says no more */
        now += S;
        json_decref(post(&t, "10.0.0.1:1", "a:/m"));
    }
    now += S;
    a = post(&t, "10.0.0.1:1", "a:/m");
    for (size_t s = 0; s < WS_FANOUT_STRIPES; s++)
        assert_null(hint(a, s));
    json_decref(a);
    assert_int_equal(t.n, 1);
    ws_topology_clear(&t);
}

static json_t *complain(struct ws_topology *t, const char *from, const char *mount, const char *url)
{
    return post_as(t, NULL, from, mount,
                   json_pack("{s:i,s:s,s:[s]}", "port", 18863, "rack", "r", "slow", url));
}

static bool is_slow(struct ws_topology *t, const char *mount)
{
    json_t *all;
    const json_t *one = entry(t, mount, &all);
    const bool is = json_is_true(json_object_get(one, "slow"));
    json_decref(all);
    return is;
}

static void test_slow(void **state)
{
    struct ws_topology t = {0};
    (void)state;
    json_decref(post(&t, "10.0.0.1:1", "a:/m"));
    json_decref(post_as(&t, NULL, "10.0.0.2:1", "leaf:/m", json_pack("{s:s}", "rack", "r")));
    json_decref(post_as(&t, NULL, "10.0.0.3:1", "other:/m", json_pack("{s:s}", "rack", "r")));
    now += S;
    json_t *leaf = post_as(&t, NULL, "10.0.0.2:1", "leaf:/m", json_pack("{s:s}", "rack", "r"));
    assert_string_equal(hint(leaf, 0), "http://10.0.0.1:18863");
    json_decref(leaf);
    json_decref(complain(&t, "10.0.0.1:1", "a:/m", "http://10.0.0.1:18863")); /* it is no parent of its own */
    json_decref(complain(&t, "10.0.0.1:1", "a:/m", "http://10.0.0.2:18863")); /* nor is its child */
    assert_false(is_slow(&t, "a:/m"));
    json_decref(complain(&t, "10.0.0.2:1", "leaf:/m", "http://10.0.0.1:18863"));
    assert_true(is_slow(&t, "a:/m"));
    for (int i = 0; i < 70; i++) {
        now += S;
        json_decref(post(&t, "10.0.0.1:1", "a:/m"));
    }
    assert_false(is_slow(&t, "a:/m"));
    ws_topology_clear(&t);
}

/* A mount that complains of each parent that it gets does not take all mounts out of the trees. */
static void test_one_child_is_one_voice(void **state)
{
    struct ws_topology t = {0};
    unsigned n_slow = 0;
    (void)state;
    for (int round = 0; round < 24; round++) {
        for (int i = 0; i < 16; i++) {
            char from[32], mount[16];
            snprintf(from, sizeof(from), "10.0.0.%d:1", i + 1);
            snprintf(mount, sizeof(mount), "m%d:/m", i);
            json_t *reply = post(&t, from, mount), *urls = json_array();
            for (size_t s = 0; s < WS_FANOUT_STRIPES; s++)
                if (hint(reply, s))
                    json_array_append_new(urls, json_string(hint(reply, s)));
            json_decref(reply);
            if (i == 0)
                json_decref(post_as(&t, NULL, from, mount,
                                    json_pack("{s:i,s:s,s:O}", "port", 18863, "rack", "r", "slow", urls)));
            json_decref(urls);
        }
        t.plan_took_ns = 0; /* the test's clock is another one */
        now += 2 * S;
    }
    for (int i = 0; i < 16; i++) {
        char mount[16];
        snprintf(mount, sizeof(mount), "m%d:/m", i);
        n_slow += is_slow(&t, mount);
    }
    assert_in_range(n_slow, 1, 2 * WS_FANOUT_STRIPES);
    ws_topology_clear(&t);
}

/* A mount of the agent's host cannot be a parent of mounts elsewhere. */
static void test_loopback(void **state)
{
    struct ws_topology t = {0};
    (void)state;
    json_decref(post(&t, "127.0.0.1:1", "a:/m"));
    json_decref(post(&t, "10.0.0.2:1", "b:/m"));
    now += S;
    json_t *b = post(&t, "10.0.0.2:1", "b:/m");
    for (size_t s = 0; s < WS_FANOUT_STRIPES; s++)
        assert_null(hint(b, s));
    json_decref(b);
    ws_topology_clear(&t);
}

/* Of many, in any order, each has one place; when some stop at the same time nobody is sent to them any more. */
static void test_many_leave(void **state)
{
    enum { N = 200 };
    struct ws_topology t = {0};
    (void)state;
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < N; k++) {
            const int i = k * 77 % N;
            char from[32], mount[16];
            if (round > 1 && i % 3 == 0)
                continue; /* it has died */
            snprintf(from, sizeof(from), "10.0.0.%d:1", i);
            snprintf(mount, sizeof(mount), "m%d:/m", i);
            json_t *reply = post(&t, from, mount);
            for (size_t s = 0; round > 6 && s < WS_FANOUT_STRIPES; s++) {
                const char *last = hint(reply, s) ? strrchr(hint(reply, s), '.') : NULL;
                assert_true(!last || atoi(last + 1) % 3 != 0);
            }
            json_decref(reply);
        }
        assert_int_equal(t.n, round > 5 ? N - (N + 2) / 3 : N);
        t.plan_took_ns = 0; /* the test's clock is another one */
        now += round == 1 ? 2 * S : S;
    }
    ws_topology_clear(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_names_are_of_an_owner),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_one_child_is_one_voice),
        cmocka_unit_test(test_loopback),
        cmocka_unit_test(test_many_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
