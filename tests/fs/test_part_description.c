/* What is kept of the description of a part: whole blocks as far as they are few beside the part, else only the bytes that
 * describe it. */
#include "fs/store/part_description.h"
#include "transports/format/node_part.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#define MIB (1UL << 20)

/* So many files of 40 MiB, each described by its first block, and a sidecar that describes nothing. */
static struct ws_manifest *manifest_of(unsigned n_files)
{
    struct ws_manifest *m;
    struct ws_manifest_file *f;
    struct ws_error err;
    char name[32];
    assert_int_equal(ws_manifest_new(&m, "actor@0.2", 1, "0123456789abcdef", &err), 0);
    for (unsigned i = 0; i < n_files; i++) {
        snprintf(name, sizeof(name), "%05u.safetensors", i);
        assert_int_equal(ws_manifest_add(m, name, 40 * MIB, 4096, &f, &err), 0);
    }
    assert_int_equal(ws_manifest_add(m, "config.json", 100, 0, &f, &err), 0);
    assert_int_equal(ws_manifest_add(m, WS_NODE_PART_FILE, 9 * MIB, 0, &f, &err), 0);
    ws_manifest_seal(m);
    return m;
}

static void test_few(void **state)
{
    struct ws_manifest *m = manifest_of(2);
    struct ws_part_description *d = ws_part_description_new(m);
    (void)state;
    assert_non_null(d);
    assert_true(d->files[0].is_kept && d->files[1].is_kept && d->files[3].is_kept);
    assert_int_equal(d->files[2].described, 0);
    assert_int_equal(d->files[3].described, 9 * MIB);
    assert_false(ws_part_description_has(d, 0, 0, 1));
    ws_part_description_arrived(d, 0, 0);
    assert_true(ws_part_description_has(d, 0, 0, 1));
    assert_false(ws_part_description_has(d, 0, 1, 1)); /* it describes nothing */
    assert_false(ws_part_description_has(d, 0, 0, 0));
    assert_false(ws_part_description_has(d, 4, 0, 1));
    assert_false(ws_part_description_has(d, 2, 0, 1));
    ws_part_description_arrived(d, 1, 0);
    for (size_t b = 3; b-- > 0;) {
        assert_false(ws_part_description_is_whole(d));
        assert_false(ws_part_description_has(d, 3, 0, 3));
        ws_part_description_arrived(d, 3, b);
    }
    assert_true(ws_part_description_has(d, 3, 0, 3) && ws_part_description_is_whole(d));
    assert_false(ws_part_description_has(d, 3, 1, 3) || ws_part_description_has(d, 3, SIZE_MAX, 2));
    ws_part_description_put(d);
    ws_manifest_free(m);
}

/* 1000 files are 40 GB, of which a 32nd is kept: 312 blocks of 4 MiB. */
static void test_many(void **state)
{
    struct ws_manifest *m = manifest_of(1000);
    struct ws_part_description *d = ws_part_description_new(m);
    unsigned kept = 0;
    (void)state;
    assert_non_null(d);
    for (size_t i = 0; i < d->n_files; i++) {
        kept += d->files[i].is_kept;
        assert_true(d->files[i].is_kept == (d->files[i].bytes != NULL));
    }
    assert_int_equal(kept, 312);
    assert_false(ws_part_description_has(d, 999, 0, 1));
    atomic_store(&d->files[999].is_whole, true); /* as the pull says of bytes that are no whole blocks */
    assert_false(ws_part_description_has(d, 999, 0, 1) || ws_part_description_is_whole(d));
    ws_part_description_put(d);
    ws_manifest_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_few), cmocka_unit_test(test_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
