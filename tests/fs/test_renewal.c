// sanitizers: thread address
/* Renewal of pages: what is in a pipe stays, who reads a block meanwhile sees its bytes, and each block is renewed once. */
#include "fs/store/renewal.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCKS 3
#define BYTES  ((BLOCKS - 1) * WS_BLOCK_BYTES + 12345)

struct copy {
    struct ws_manifest *manifest;
    struct ws_region *region;
    struct ws_renewal *renewal;
};

static void need_renewal(void)
{
    if (ws_region_can_renew())
        return;
    print_message("pages of another size than 4 KiB cannot be renewed\n");
    skip();
}

static int setup(void **state)
{
    static struct copy c;
    struct ws_manifest_file *ignored;

    assert_int_equal(ws_manifest_new(&c.manifest, "actor", 1, "run", NULL), 0);
    assert_int_equal(ws_manifest_add(c.manifest, "w", BYTES, 0, &ignored, NULL), 0);
    assert_int_equal(ws_region_new(&c.region, BYTES, NULL), 0);
    memset(ws_region_data(c.region), 0x5a, BYTES);
    c.renewal = ws_renewal_new(c.manifest);
    assert_non_null(c.renewal);
    *state = &c;
    return 0;
}

static int teardown(void **state)
{
    struct copy *c = *state;

    ws_renewal_free(c->renewal);
    ws_region_free(c->region);
    ws_manifest_free(c->manifest);
    return 0;
}

static void check_blocks(void **state)
{
    struct copy *c = *state;
    unsigned char *scratch = malloc(WS_BLOCK_BYTES), *at = ws_region_data(c->region), got[16];
    int ends[2], fd;

    need_renewal();
    assert_non_null(scratch);
    assert_false(ws_renewal_is_any(c->renewal));
    assert_int_equal(ws_renewal_lock_of(c->renewal, 0, 1), 0);
    assert_int_equal(ws_region_open(c->region, WS_REGION_READ, &fd, NULL), 0);
    assert_int_equal(pipe(ends), 0);
    off64_t from = WS_BLOCK_BYTES;
    assert_int_equal(splice(fd, &from, ends[1], NULL, sizeof(got), 0), sizeof(got));
    assert_int_equal(close(fd), 0);
    ws_renewal_reset(c->renewal, 0, true);
    assert_true(ws_renewal_is_any(c->renewal));
    for (int again = 0; again < 2; again++) {
        assert_int_equal(ws_renewal_run(c->renewal, c->region, 0, 1, scratch, NULL), 0);
        assert_int_equal(at[WS_BLOCK_BYTES], again ? 0x11 : 0x5a);
        memset(at + WS_BLOCK_BYTES, 0x11,
               WS_BLOCK_BYTES); /* renewed again it would be read, and written, twice */
        assert_int_equal(ws_renewal_lock_of(c->renewal, 0, 1), 0);
        assert_int_not_equal(ws_renewal_lock_of(c->renewal, 0, 0), 0);
    }
    assert_int_equal(ws_renewal_run(c->renewal, c->region, 0, BLOCKS - 1, scratch, NULL), 0);
    size_t wrong = 0;
    for (size_t i = 0; i < BYTES; i++)
        wrong += at[i] != (i / WS_BLOCK_BYTES == 1 ? 0x11 : 0x5a);
    assert_int_equal(wrong, 0);
    assert_int_equal(read(ends[0], got, sizeof(got)), sizeof(got));
    for (size_t i = 0; i < sizeof(got); i++)
        assert_int_equal(got[i], 0x5a);
    close(ends[0]);
    close(ends[1]);
    free(scratch);
}

static atomic_bool over;
static atomic_uint n_read, n_wrong;

static void *read_blocks(void *arg)
{
    struct copy *c = arg;
    const unsigned char *at = ws_region_data(c->region);

    while (!atomic_load(&over)) {
        uint64_t locks = 0;
        for (size_t b = 0; b < BLOCKS; b++)
            locks |= ws_renewal_lock_of(c->renewal, 0, b);
        ws_renewal_hold(c->renewal, locks);
        for (size_t i = 0; i < BYTES; i += 4096)
            if (at[i] != 0x5a)
                atomic_fetch_add(&n_wrong, 1);
        ws_renewal_let_go(c->renewal, locks);
        atomic_fetch_add(&n_read, 1);
    }
    return NULL;
}

static void check_readers(void **state)
{
    struct copy *c = *state;
    unsigned char *scratch = malloc(WS_BLOCK_BYTES);
    pthread_t threads[3];

    need_renewal();
    assert_non_null(scratch);
    atomic_store(&over, false);
    ws_renewal_reset(c->renewal, 0, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_blocks, c), 0);
    for (size_t b = 0; b < BLOCKS; b++) {
        const unsigned before = atomic_load(&n_read);
        while (atomic_load(&n_read) == before)
            usleep(100);
        assert_int_equal(ws_renewal_run(c->renewal, c->region, 0, b, scratch, NULL), 0);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&n_wrong), 0);
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(check_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(check_readers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
