/* Steps of a delta chain: a step leads to a version only if the version's bytes match, and if the delta can
 * be fetched. */
#include "fs/pull/delta_chain.h"
#include "fs/store/state.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ONE   "0123456789abcdef0123456789abcdef"
#define TWO   "fedcba9876543210fedcba9876543210"
#define OTHER "ffffffffffffffffffffffffffffffff"

static struct ws_delta_link link_of(uint64_t base, const char *base_digest, uint64_t target,
                                    const char *digest)
{
    struct ws_delta_link l = {.base = ws_version_id_make(base, "r"),
                              .target = ws_version_id_make(target, "r")};
    snprintf(l.base_digest, sizeof(l.base_digest), "%s", base_digest);
    snprintf(l.target_digest, sizeof(l.target_digest), "%s", digest);
    return l;
}

static struct ws_delta *held(const struct ws_delta_link *l)
{
    struct ws_manifest *m;
    struct ws_delta *d;
    assert_int_equal(ws_manifest_new(&m, "m", l->target.version, "r", NULL), 0);
    assert_int_equal(ws_delta_new(&d, l, m, NULL), 0);
    ws_manifest_free(m);
    return d;
}

static void test_offered(void **state)
{
    static struct ws_delta_chain chain;
    struct ws_model m = {0};
    struct ws_delta_step step;
    struct ws_version_id to = ws_version_id_make(2, "r");
    (void)state;
    chain.n = 3;
    chain.entries[0] =
        (struct ws_delta_entry){.link = link_of(1, ONE, 2, OTHER), .stats.state = WS_DELTA_WHOLE};
    chain.entries[1] =
        (struct ws_delta_entry){.link = link_of(1, ONE, 3, TWO), .stats.state = WS_DELTA_WHOLE};
    chain.entries[2] =
        (struct ws_delta_entry){.link = link_of(1, ONE, 2, TWO), .stats.state = WS_DELTA_GIVEN_UP};
    assert_false(ws_delta_chain_find(&m, &chain, &to, TWO, &step));
    chain.entries[2].stats.state = WS_DELTA_GROWING;
    assert_true(ws_delta_chain_find(&m, &chain, &to, TWO, &step));
    assert_string_equal(step.entry.link.target_digest, TWO);
    assert_null(step.held);
    to = ws_version_id_make(2, "another");
    assert_false(ws_delta_chain_find(&m, &chain, &to, TWO, &step));
}

static void test_held(void **state)
{
    static struct ws_delta_chain chain;
    struct ws_model m = {0};
    struct ws_delta_step step;
    const struct ws_version_id to = ws_version_id_make(2, "r");
    const struct ws_delta_link other = link_of(1, ONE, 2, OTHER), good = link_of(0, ONE, 2, TWO);
    struct ws_delta *d = held(&good);
    (void)state;
    struct ws_delta *wrong = held(&other);
    ws_delta_end(wrong, WS_DELTA_WHOLE);
    ws_delta_set_add(&m.deltas, wrong);
    ws_delta_set_add(&m.deltas, d);
    assert_false(ws_delta_chain_find(&m, &chain, &to, TWO, &step)); /* it still grows */
    ws_delta_end(d, WS_DELTA_WHOLE);
    assert_true(ws_delta_chain_find(&m, &chain, &to, TWO, &step));
    assert_ptr_equal(step.held, d);
    ws_delta_set_clear(&m.deltas);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offered),
        cmocka_unit_test(test_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
