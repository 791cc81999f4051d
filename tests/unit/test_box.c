/* Boxes: strided slices are copied exactly to where an element by element copy puts them, also converted and
 * in arbitrary stretches that begin and end within elements. */
#include "transports/base/limits.h"
#include "transports/simd/box.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FILL 0xa5

static uint64_t seed = 42;

static uint64_t below(uint64_t n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % n;
}

static size_t src_bytes(const struct ws_box *b)
{
    return b->conversion == WS_SAME_TYPE ? b->element_bytes : ws_conversion_src_bytes(b->conversion);
}

/* One element at a time, indices by division: slow and obviously right. */
static uint64_t reference(unsigned char *dst, const unsigned char *src, const struct ws_box *b)
{
    uint64_t total = 1, overflows = 0;
    for (unsigned d = 0; d < b->n_dims; d++)
        total *= b->size[d];
    for (uint64_t i = 0; i < total; i++) {
        uint64_t rest = i, to = 0, row = 1;
        int64_t from = 0;
        for (unsigned d = b->n_dims; d-- > 0;) {
            uint64_t at = rest % b->size[d];
            rest /= b->size[d];
            to += (b->offset[d] + at) * row;
            row *= b->shape[d];
            from += (int64_t)at * b->src_strides[d];
        }
        unsigned char *one = dst + to * b->element_bytes;
        if (b->conversion == WS_SAME_TYPE)
            memcpy(one, src + from * (int64_t)b->element_bytes, b->element_bytes);
        else
            overflows += ws_convert(b->conversion, one, src + from * (int64_t)src_bytes(b), 1);
    }
    return overflows;
}

/* In stretches of at most `most` bytes, each with its own seek, whole or in parts. */
static uint64_t copy_box(unsigned char *dst, const unsigned char *src, const struct ws_box *b, uint64_t most)
{
    struct ws_box_extents r;
    struct ws_box_cursor c;
    uint64_t overflows = 0;
    ws_box_extents_init(&r, b);
    for (uint64_t from = 0, n; from < r.bytes; from += n) {
        n = 1 + below(most);
        n = n < r.bytes - from ? n : r.bytes - from;
        uint64_t place = ws_box_extents_place(&r, from);
        assert_int_equal(ws_box_extents_before(&r, place), from);
        assert_int_equal(ws_box_extents_before(&r, place + 1), from + 1);
        ws_box_cursor_seek(&c, &r, src, from, n);
        assert_int_equal(c.dst + c.at, place);
        for (uint64_t part; (part = ws_box_cursor_ready(&c)) > 0;) {
            const unsigned char *plain = ws_box_cursor_plain(&c);
            unsigned char *to = dst + c.dst + c.at;
            part = below(3) ? part : 1 + below(part);
            if (plain && below(2)) {
                memcpy(to, plain, part);
                ws_box_cursor_skip(&c, part);
            } else {
                overflows += ws_box_cursor_copy(&c, to, part);
            }
        }
        assert_int_equal(c.left, 0);
    }
    return overflows;
}

static void assert_same(const struct ws_box *b, const unsigned char *src)
{
    size_t bytes = b->element_bytes;
    for (unsigned d = 0; d < b->n_dims; d++)
        bytes *= b->shape[d];
    unsigned char *got = malloc(bytes + 64), *right = malloc(bytes + 64);
    assert_non_null(got);
    assert_non_null(right);
    memset(right, FILL, bytes + 64);
    uint64_t overflows = reference(right, src, b);
    for (uint64_t most = 7; most < 3 * bytes; most = 100 * most) {
        memset(got, FILL, bytes + 64);
        assert_int_equal(copy_box(got, src, b, most < bytes ? most : bytes), overflows);
        assert_memory_equal(got, right, bytes + 64);
    }
    free(got);
    free(right);
}

static unsigned char *numbers(size_t n)
{
    unsigned char *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)below(256);
    return p;
}

static void test_scalar_and_empty(void **state)
{
    unsigned char src[4] = {1, 2, 3, 4}, dst[4] = {0};
    uint64_t shape[2] = {3, 0}, offset[2] = {1, 0}, size[2] = {2, 0};
    int64_t strides[2] = {0, 1};

    (void)state;
    (void)copy_box(dst, src, &(struct ws_box){.n_dims = 0, .element_bytes = 4}, 9);
    assert_memory_equal(dst, src, 4);
    memset(dst, FILL, sizeof(dst));
    const struct ws_box empty = {.n_dims = 2,
                                 .shape = shape,
                                 .offset = offset,
                                 .size = size,
                                 .src_strides = strides,
                                 .element_bytes = 4};
    (void)copy_box(dst, src, &empty, 9);
    for (size_t i = 0; i < sizeof(dst); i++)
        assert_int_equal(dst[i], FILL);
}

/* A row shard, a column shard, a transposed source, a broadcast row, a reversed one. */
static void test_shards(void **state)
{
    enum { ROWS = 48, COLS = 96 };
    static const uint64_t shape[2] = {ROWS, COLS};
    static const struct {
        uint64_t offset[2], size[2];
        int64_t strides[2];
        size_t src_first;
    } cases[] = {
        {{16, 0}, {16, COLS}, {COLS, 1}, 0},
        {{0, 32}, {ROWS, 32}, {32, 1}, 0},
        {{0, 0}, {ROWS, COLS}, {1, ROWS}, 0},
        {{3, 5}, {1, 7}, {1000, 1}, 0},
        {{0, 0}, {ROWS, COLS}, {0, 1}, 0},
        {{0, 0}, {ROWS, COLS}, {COLS, -1}, COLS - 1},
        {{0, 0}, {ROWS, COLS}, {-COLS, 1}, (ROWS - 1) * COLS},
    };
    unsigned char *src = numbers(ROWS * COLS * 16);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (size_t bytes = 1; bytes <= 16; bytes *= 2) {
            struct ws_box b = {.n_dims = 2,
                               .shape = shape,
                               .offset = cases[i].offset,
                               .size = cases[i].size,
                               .src_strides = cases[i].strides,
                               .element_bytes = bytes};
            assert_same(&b, src + cases[i].src_first * bytes);
        }
    }
    free(src);
}

/* Runs of many KiB use streaming stores, also from odd addresses. */
static void test_long_runs(void **state)
{
    uint64_t shape[3] = {3, 5, 40000}, offset[3] = {1, 1, 7}, size[3] = {2, 3, 30001};
    int64_t strides[3] = {4 * 30011, 30011, 1};
    unsigned char *src = numbers((size_t)2 * 2 * 4 * 30011 + 64);

    (void)state;
    for (size_t shift = 0; shift < 4; shift++)
        assert_same(&(struct ws_box){.n_dims = 3,
                                     .shape = shape,
                                     .offset = offset,
                                     .size = size,
                                     .src_strides = strides,
                                     .element_bytes = 2},
                    src + shift);
    free(src);
}

/* Random boxes of up to eight dimensions out of dense sources whose dimensions are shuffled. */
static void test_random(void **state)
{
    unsigned char *src = numbers(1 << 20);

    (void)state;
    for (int round = 0; round < 3000; round++) {
        uint64_t shape[WS_MAX_DIMS], offset[WS_MAX_DIMS], size[WS_MAX_DIMS], total = 1;
        int64_t strides[WS_MAX_DIMS], step = 1;
        unsigned n = (unsigned)below(WS_MAX_DIMS + 1), order[WS_MAX_DIMS];
        for (unsigned d = 0; d < n; d++) {
            uint64_t most = total > 20000 ? 1 : 1 + below(6);
            shape[d] = most + below(3);
            size[d] = 1 + below(most);
            offset[d] = below(shape[d] - size[d] + 1);
            total *= shape[d];
            order[d] = d;
        }
        for (unsigned d = n; d > 1 && below(2); d--) { /* otherwise row-major */
            unsigned other = (unsigned)below(d), t = order[d - 1];
            order[d - 1] = order[other];
            order[other] = t;
        }
        for (unsigned d = n; d-- > 0;) {
            strides[order[d]] = step;
            step *= (int64_t)(size[order[d]] + below(2));
        }
        static const struct {
            size_t width;
            enum ws_conversion conversion;
        } kinds[] = {{1, WS_SAME_TYPE},   {2, WS_SAME_TYPE},   {3, WS_SAME_TYPE},  {4, WS_SAME_TYPE},
                     {8, WS_SAME_TYPE},   {16, WS_SAME_TYPE},  {2, WS_F32_TO_F16}, {2, WS_F32_TO_BF16},
                     {4, WS_BF16_TO_F32}, {2, WS_BF16_TO_F16}, {4, WS_F16_TO_F32}};
        size_t kind = below(sizeof(kinds) / sizeof(kinds[0]));
        struct ws_box b = {.n_dims = n,
                           .shape = shape,
                           .offset = offset,
                           .size = size,
                           .src_strides = strides,
                           .element_bytes = kinds[kind].width,
                           .conversion = kinds[kind].conversion};
        if ((uint64_t)step * src_bytes(&b) < 1 << 20)
            assert_same(&b, src);
    }
    free(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalar_and_empty),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_random),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
