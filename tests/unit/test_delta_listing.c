/* Listings of deltas: accepted only if complete and with matching digests; and the set of a model's deltas,
 * in which both ends identify a delta. */
#include "transports/delta/set.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ONE "0123456789abcdef0123456789abcdef"
#define TWO "fedcba9876543210fedcba9876543210"

static struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];

static json_t *offer(const char *base_digest, const char *digest, const char *state)
{
    return json_pack("{s:I,s:s,s:s,s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I}", "base", (json_int_t)1, "base_run", "r",
                     "base_digest", base_digest, "version", (json_int_t)2, "run", "r", "digest", digest,
                     "state", state, "bytes", (json_int_t)3, "changed", (json_int_t)4, "whole_blocks",
                     (json_int_t)0, "blocks", (json_int_t)9);
}

static int reads(json_t *list, size_t *n)
{
    const int rc = ws_delta_listing_read(list, offers, n);
    json_decref(list);
    return rc;
}

static json_t *with(const char *key, json_t *value)
{
    json_t *o = offer(ONE, TWO, "whole");
    json_object_set_new(o, key, value);
    return json_pack("[o]", o);
}

static void test_read(void **state)
{
    size_t n;
    (void)state;
    assert_int_equal(reads(json_pack("[o,o,o]", offer(ONE, TWO, "whole"), offer(ONE, TWO, "of tomorrow"),
                                     offer(TWO, ONE, "growing")),
                           &n),
                     0);
    assert_int_equal(n, 2);
    assert_string_equal(offers[0].link.base_digest, ONE);
    assert_string_equal(offers[0].link.target_digest, TWO);
    assert_int_equal(offers[0].stats.state, WS_DELTA_WHOLE);
    assert_string_equal(offers[1].link.base_digest, TWO);
    assert_int_equal(offers[1].stats.state, WS_DELTA_GROWING);
    json_t *many = json_array();
    for (int i = 0; i < WS_MAX_DELTA_ENTRIES + 5; i++)
        json_array_append_new(many, offer(ONE, TWO, "whole"));
    assert_int_equal(reads(many, &n), 0);
    assert_int_equal(n, WS_MAX_DELTA_ENTRIES);
}

static void test_refused(void **state)
{
    static const char *const digests[] = {
        "",      "0123456789abcdef0123456789abcde",  ONE "0",
        ONE "g", "0123456789abcdef0123456789abcdeg", "0123456789ABCDEF0123456789ABCDEF"};
    static const char *const numbers[] = {"base",         "version", "bytes", "changed",
                                          "whole_blocks", "blocks",  "parts"};
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof(digests) / sizeof(digests[0]); i++) {
        assert_int_equal(reads(with("digest", json_string(digests[i])), &n), -EPROTO);
        assert_int_equal(reads(with("base_digest", json_string(digests[i])), &n), -EPROTO);
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        assert_int_equal(reads(with(numbers[i], json_integer(-1)), &n), -EPROTO);
    assert_int_equal(reads(with("base_run", json_string("../r")), &n), -EPROTO);
    assert_int_equal(reads(with("run", json_string("../r")), &n), -EPROTO);
    assert_int_equal(reads(with("digest", json_null()), &n), -EPROTO);
}

/* --- the set --- */

static struct ws_delta *delta(uint64_t base, uint64_t target, const char *run)
{
    const struct ws_delta_link l = {.base = ws_version_id_make(base, run),
                                    .target = ws_version_id_make(target, run),
                                    .base_digest = ONE,
                                    .target_digest = TWO};
    struct ws_manifest *m;
    struct ws_delta *d;
    assert_int_equal(ws_manifest_new(&m, "m", target, run, NULL), 0);
    assert_int_equal(ws_delta_new(&d, &l, m, NULL), 0);
    ws_manifest_free(m);
    return d;
}

static struct ws_delta *find(const struct ws_delta_set *s, uint64_t base, uint64_t target, const char *run)
{
    const struct ws_version_id from = ws_version_id_make(base, run), to = ws_version_id_make(target, run);
    return ws_delta_set_find(s, &from, &to);
}

static void test_set(void **state)
{
    struct ws_delta_set s = {0};
    struct ws_delta *of[5] = {delta(1, 3, "r"), delta(2, 3, "r"), delta(2, 3, "q"), delta(1, 2, "r"),
                              delta(2, 4, "r")};
    (void)state;
    for (size_t i = 0; i < 5; i++)
        ws_delta_set_add(&s, of[i]);
    assert_int_equal(s.n, 5);
    assert_ptr_equal(find(&s, 1, 3, "r"), of[0]);
    assert_ptr_equal(find(&s, 2, 3, "r"), of[1]);
    assert_ptr_equal(find(&s, 2, 3, "q"), of[2]);
    assert_ptr_equal(find(&s, 1, 2, "r"), of[3]);
    assert_ptr_equal(find(&s, 2, 4, "r"), of[4]);
    assert_null(find(&s, 3, 4, "r"));
    struct ws_delta *anew = delta(2, 3, "r"); /* replaces the one with the same ends */
    ws_delta_set_add(&s, anew);
    assert_int_equal(s.n, 5);
    assert_ptr_equal(find(&s, 2, 3, "r"), anew);
    ws_delta_set_clear(&s);
    assert_int_equal(s.n, 0);
}

/* Walks back from a version, delta by delta: deltas that lead elsewhere are skipped. */
static void test_leading_to(void **state)
{
    struct ws_delta_set s = {0};
    const struct ws_version_id to = ws_version_id_make(4, "r");
    (void)state;
    ws_delta_set_add(&s, delta(1, 2, "r"));
    ws_delta_set_add(&s, delta(2, 3, "q"));
    ws_delta_set_add(&s, delta(2, 4, "r"));
    ws_delta_set_add(&s, delta(4, 5, "r"));
    json_t *list = ws_delta_set_chain_json(&s, &to);
    assert_int_equal(json_array_size(list), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "base")), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 1), "base")), 1);
    json_decref(list);
    for (uint64_t i = 0; i < WS_MAX_DELTA_ENTRIES + 3; i++) /* the oldest are dropped */
        ws_delta_set_add(&s, delta(10 + i, 11 + i, "r"));
    assert_int_equal(s.n, WS_MAX_DELTA_ENTRIES);
    assert_null(find(&s, 12, 13, "r"));
    assert_non_null(find(&s, 13, 14, "r"));
    ws_delta_set_clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_leading_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
