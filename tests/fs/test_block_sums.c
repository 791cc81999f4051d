// sanitizers: thread address
/* Hashes of blocks whose bytes come from several threads: more blocks than have sums at a time, bytes that come again, and
 * a version that others follow. */
#include "fs/store/block_sums.h"
#include "transports/base/limits.h"
#include "transports/simd/copy.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS  70 /* more than have sums at a time */
#define BYTES   ((BLOCKS - 1) * WS_BLOCK_BYTES + 12345)
#define THREADS 4
#define PIECE   5000U
#define STEP    (THREADS * 40 * PIECE)

static unsigned char *data; /* of each block */

static struct ws_manifest *manifest_of(uint64_t version)
{
    struct ws_manifest *m;
    struct ws_manifest_file *ignored;

    assert_int_equal(ws_manifest_new(&m, "actor", version, "run", NULL), 0);
    assert_int_equal(ws_manifest_add(m, "model.safetensors", BYTES, 0, &ignored, NULL), 0);
    assert_int_equal(ws_manifest_add(m, "tokenizer.json", 100, 0, &ignored, NULL), 0);
    return m;
}

static int setup(void **state)
{
    (void)state;
    data = malloc(WS_BLOCK_BYTES);
    assert_non_null(data);
    for (size_t i = 0; i < WS_BLOCK_BYTES; i++)
        data[i] = (unsigned char)(i * 2654435761U >> 13);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(data);
    return 0;
}

struct thread {
    struct ws_block_sums *sums;
    unsigned index;
    pthread_t id;
};

/* A quarter of the pieces of each block, across whose ends none goes, in an order of the thread's own. */
static void *bring(void *arg)
{
    const struct thread *t = arg;

    for (unsigned i = 0; i < BLOCKS; i++) {
        const size_t block = t->index % 2 ? BLOCKS - 1 - i : i;
        const size_t len = block + 1 < BLOCKS ? WS_BLOCK_BYTES : BYTES % WS_BLOCK_BYTES;
        for (size_t at = t->index * (STEP / THREADS); at < len; at += STEP) {
            for (size_t k = 0; k < STEP / THREADS && at + k < len; k += PIECE) {
                const size_t n = len - at - k < PIECE ? len - at - k : PIECE;
                ws_block_sums_add(t->sums, 0, block * WS_BLOCK_BYTES + at + k, data + at + k, n);
            }
        }
    }
    return NULL;
}

static void bring_all(struct ws_block_sums *sums)
{
    struct thread threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.sums = sums, .index = i};
        assert_int_equal(pthread_create(&threads[i].id, NULL, bring, &threads[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
}

static void expect_hashes(struct ws_block_sums *sums)
{
    for (size_t block = 0; block < BLOCKS; block++) {
        const size_t len = block + 1 < BLOCKS ? WS_BLOCK_BYTES : BYTES % WS_BLOCK_BYTES;
        assert_int_equal(ws_block_sums_hash(sums, 0, block, data), ws_hash(data, len));
    }
    assert_int_equal(ws_block_sums_hash(sums, 1, 0, data), ws_hash(data, 100)); /* nothing of it was told */
}

static void test_threads(void **state)
{
    struct ws_manifest *m = manifest_of(1), *next = manifest_of(2);
    struct ws_block_sums *sums = ws_block_sums_new(m);

    (void)state;
    assert_non_null(sums);
    bring_all(sums);
    expect_hashes(sums);
    ws_block_sums_rebase(sums, next);
    bring_all(sums);
    expect_hashes(sums);
    ws_block_sums_free(sums);
    ws_manifest_free(m);
    ws_manifest_free(next);
}

/* Bytes that were wrong, across two blocks, come again in other pieces; what came for a version that was given up is
 * nothing to the next. */
static void test_again(void **state)
{
    struct ws_manifest *m = manifest_of(1), *next = manifest_of(2);
    struct ws_block_sums *sums = ws_block_sums_new(m);
    unsigned char *wrong = calloc(1, 2 * WS_BLOCK_BYTES);
    const size_t at = WS_BLOCK_BYTES - 10000;

    (void)state;
    assert_true(sums && wrong);
    ws_block_sums_add(sums, 0, at, wrong, 30000);
    for (size_t k = 0; k < 30000; k += 1500) {
        const size_t in_block = (at + k) % WS_BLOCK_BYTES;
        const size_t n = WS_BLOCK_BYTES - in_block < 1500 ? WS_BLOCK_BYTES - in_block : 1500;
        ws_block_sums_add(sums, 0, at + k, data + in_block, n);
        ws_block_sums_add(sums, 0, at + k + n, data, 1500 - n);
    }
    assert_int_equal(ws_block_sums_hash(sums, 0, 0, data), ws_hash(data, WS_BLOCK_BYTES));
    assert_int_equal(ws_block_sums_hash(sums, 0, 1, data), ws_hash(data, WS_BLOCK_BYTES));
    ws_block_sums_add(sums, 0, 5 * WS_BLOCK_BYTES, wrong, WS_BLOCK_BYTES);
    ws_block_sums_rebase(sums, next);
    expect_hashes(sums);
    ws_block_sums_free(sums);
    ws_block_sums_free(NULL);
    ws_manifest_free(m);
    ws_manifest_free(next);
    free(wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads), cmocka_unit_test(test_again)};

    return cmocka_run_group_tests_name("block_sums", tests, setup, teardown);
}
