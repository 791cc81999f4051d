/* Wants: does a version want less than another has? Blocks are compared, as two sets of the same size may differ. */
#include "fs/store/wants.h"
#include "transports/base/limits.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS 70 /* more than a word has bits */

static struct ws_manifest *manifest;

struct one {
    struct ws_version version;
    struct ws_file_state file;
    _Atomic(uint64_t) here[2];
};

static void make(struct one *o)
{
    memset(o, 0, sizeof(*o));
    atomic_init(&o->version.manifest, manifest);
    o->version.files = &o->file;
    o->file.here = o->here;
}

static void has(struct one *o, size_t block)
{
    atomic_fetch_or(&o->here[block / 64], 1UL << (block % 64));
}

static void test_wants_less(void **state)
{
    struct ws_manifest_file *ignored;
    struct one v, w;

    (void)state;
    assert_int_equal(ws_manifest_new(&manifest, "actor", 1, "run", NULL), 0);
    assert_int_equal(ws_manifest_add(manifest, "f", BLOCKS * WS_BLOCK_BYTES, 0, &ignored, NULL), 0);
    make(&v);
    make(&w);
    has(&w, 3);
    has(&w, 69);
    assert_false(ws_version_wants_less(&v.version, &w.version)); /* it wants all */
    struct ws_block_set *wanted = ws_block_set_new(manifest);
    assert_non_null(wanted);
    ws_block_set_add(wanted, manifest, 0, 3, 5);
    atomic_store(&v.version.wanted, wanted);
    assert_true(ws_version_wants_less(&v.version, &w.version)); /* as many blocks, and not the last one */
    ws_block_set_add(wanted, manifest, 0, 69, 70);
    assert_false(ws_version_wants_less(&v.version, &w.version));
    has(&w, 64);
    assert_true(ws_version_wants_less(&v.version, &w.version));
    ws_block_set_free(wanted);
    ws_manifest_free(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wants_less)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
