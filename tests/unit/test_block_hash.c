/* Block hash: the kernels (run on the CPU) and the host compute the hash of manifests, for all lengths and
 * grids. */
#include "tests/fixtures/cpu_queue.h"
#include "transports/base/limits.h"
#include "transports/device/block_hash.h"
#include "transports/simd/copy.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define MOST 5

static uint64_t seed = 7;

static uint64_t below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % n;
}

static void check(const uint32_t *len, uint32_t n)
{
    struct cpu_queue queue = cpu_queue();
    struct ws_hash_block blocks[MOST];
    uint64_t lanes[8 * MOST];
    unsigned char *bytes[MOST];
    for (uint32_t i = 0; i < n; i++) {
        bytes[i] = cpu_filled(len[i]);
        for (uint32_t k = 0; k < len[i]; k++)
            bytes[i][k] = (unsigned char)below(256);
        blocks[i] = (struct ws_hash_block){.bytes = bytes[i], .len = len[i]};
    }
    struct ws_hash_args a = {.blocks = blocks, .lanes = lanes, .n_blocks = n};
    a.n_parts = ws_block_hash_number(blocks, n);
    a.sums = malloc(a.n_parts * 64ULL + 1);
    assert_non_null(a.sums);
    queue.warps = below(2) ? 0 : 1 + (unsigned)below(50);
    assert_int_equal(ws_block_hash_launch(&queue.q, &a, NULL), 0);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(ws_block_hash_finish(lanes + 8 * (size_t)i, len[i]) == ws_hash(bytes[i], len[i]));
        free(bytes[i]);
    }
    free(a.sums);
}

static void test_every_length(void **state)
{
    (void)state;
    assert_false(ws_block_hash_supports(240));
    assert_true(ws_block_hash_supports(241));
    for (uint32_t len = 241; len < 3200; len++)
        check(&len, 1);
}

static void test_several_blocks(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 200; round++) {
        uint32_t len[MOST];
        const uint32_t n = 1 + (uint32_t)below(MOST);
        for (uint32_t i = 0; i < n; i++)
            len[i] = 241 + (uint32_t)below(round % 2 ? 50000 : 1500);
        check(len, n);
    }
}

static void test_whole_blocks(void **state)
{
    (void)state;
    check((const uint32_t[]){WS_BLOCK_BYTES, WS_BLOCK_BYTES - 1, WS_BLOCK_BYTES}, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_several_blocks),
        cmocka_unit_test(test_whole_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
