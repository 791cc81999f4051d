/* Records of a view: they go to the delta that leads from the version that they were made of, once, and to no other. */
#include "backends/trainer/agent/core/view_records.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_BLOCKS 5
#define BASE     "0123456789abcdef0123456789abcdef"
#define OTHER    "0123456789abcdef0123456789abcdee"

/* To a version of one file. */
static struct ws_delta *delta_from(const char *base_digest, uint64_t bytes)
{
    struct ws_delta_link link = {.base = ws_version_id_make(1, "run"),
                                 .target = ws_version_id_make(2, "run")};
    struct ws_manifest *m;
    struct ws_manifest_file *f;
    struct ws_delta *d;
    memcpy(link.base_digest, base_digest, sizeof(link.base_digest));
    assert_int_equal(ws_manifest_new(&m, "actor@fp8-block128", 2, "run", NULL), 0);
    assert_int_equal(ws_manifest_add(m, "a", bytes, 0, &f, NULL), 0);
    assert_int_equal(ws_delta_new(&d, &link, m, NULL), 0);
    ws_manifest_free(m);
    return d;
}

static struct ws_view_records *some_records(void)
{
    struct ws_view_records *r = ws_view_records_new(BASE, N_BLOCKS);
    uint64_t bytes = 0;
    assert_non_null(r);
    for (uint32_t block = 0; block < N_BLOCKS; block += 2) {
        const unsigned char raw[4] = {(unsigned char)block, 1, 2, 3};
        struct ws_delta_record *one = ws_delta_record_make(0, block, WS_DELTA_BLOCK, 0, raw, sizeof(raw), 0);
        assert_non_null(one);
        bytes += one->bytes;
        assert_int_equal(ws_view_records_put(r, block, one), bytes);
    }
    return r;
}

static size_t given(struct ws_view_records *r, const char *base_digest, uint64_t bytes)
{
    struct ws_delta *d = delta_from(base_digest, bytes);
    struct ws_delta_stats stats;
    const size_t n = ws_view_records_give(r, d);
    ws_delta_stats(d, &stats);
    assert_int_equal(stats.n_records, n);
    for (size_t block = 0; n && block < N_BLOCKS; block++) {
        const struct ws_delta_record *one = ws_delta_at(d, 0, block);
        assert_true(block % 2 ? !one : one && one->data[0] == block);
    }
    ws_delta_end(d, WS_DELTA_WHOLE);
    ws_delta_put(d);
    return n;
}

static void test_given(void **state)
{
    (void)state;
    struct ws_view_records *r = some_records();
    assert_int_equal(given(r, OTHER, N_BLOCKS * WS_BLOCK_BYTES), 0);
    assert_int_equal(given(r, BASE, (N_BLOCKS - 1) * WS_BLOCK_BYTES), 0);
    assert_int_equal(given(r, BASE, N_BLOCKS * WS_BLOCK_BYTES - 1), 3);
    assert_int_equal(given(r, BASE, N_BLOCKS * WS_BLOCK_BYTES), 0); /* they are the delta's */
    ws_view_records_free(r);
    assert_int_equal(given(NULL, BASE, N_BLOCKS * WS_BLOCK_BYTES), 0);
}

static void test_not_given(void **state)
{
    (void)state;
    ws_view_records_free(some_records()); /* whoever makes no delta of them frees them */
    ws_view_records_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_given), cmocka_unit_test(test_not_given)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
