/* Copy plans by brute force: tensors of all widths around the edge of a block, cut into random boxes and
 * ranges, from sources with any strides and types; every byte, hash and count is compared with a copy of
 * single elements. */
#include "backends/trainer/offload/copy_plan.h"
#include "transports/simd/copy.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS      4000
#define MAX_PIECES  256
#define MAX_TENSORS 8
#define WINDOW      16384UL /* on either side of the edge */
#define MAX_TENSOR  5000
#define SOURCE      (1UL << 20)
#define FILL        0xa5

static uint64_t seed = 0x9E3779B97F4A7C15ULL;

static uint64_t below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % n;
}

struct world {
    struct ws_workers *workers;
    unsigned char *file, *right; /* right: of the window, from WS_BLOCK_BYTES - WINDOW on */
    unsigned char *source;
    struct ws_copy_plan *plan;
    const void *sources[MAX_PIECES];
    _Atomic uint64_t overflows[MAX_PIECES];
    uint64_t expected[MAX_PIECES];
    size_t n;
};

/* Element by element; shape, offset and size as in the box. */
static void reference(struct world *w, uint64_t begin, const struct ws_box *b, const unsigned char *src)
{
    size_t from_bytes =
        b->conversion == WS_SAME_TYPE ? b->element_bytes : ws_conversion_src_bytes(b->conversion);
    uint64_t total = 1;
    for (unsigned d = 0; d < b->n_dims; d++)
        total *= b->size[d];
    for (uint64_t i = 0; i < total; i++) {
        uint64_t rest = i, to = 0, row = 1;
        int64_t from = 0;
        for (unsigned d = b->n_dims; d-- > 0; rest /= b->size[d]) {
            to += (b->offset[d] + rest % b->size[d]) * row;
            row *= b->shape[d];
            from += (int64_t)(rest % b->size[d]) * b->src_strides[d];
        }
        unsigned char *dst = w->right + (begin + to * b->element_bytes - (WS_BLOCK_BYTES - WINDOW));
        const unsigned char *one = src + from * (int64_t)from_bytes;
        if (b->conversion == WS_SAME_TYPE)
            memcpy(dst, one, b->element_bytes);
        else
            w->expected[w->n] += ws_convert(b->conversion, dst, one, 1);
    }
}

/* Strides of a dense source whose dimensions are shuffled, with gaps, some reversed or repeated. Returns the
 * first element, chosen so that all lie within the source. */
static const unsigned char *any_strides(const struct world *w, unsigned n, const uint64_t *size,
                                        int64_t *strides, size_t bytes)
{
    unsigned order[WS_MAX_DIMS];
    int64_t step = below(3) ? 1 : 2, lowest = 0;
    for (unsigned d = 0; d < n; d++)
        order[d] = d;
    for (unsigned d = n; d > 1 && below(2); d--) {
        unsigned other = (unsigned)below(d), t = order[d - 1];
        order[d - 1] = order[other];
        order[other] = t;
    }
    for (unsigned k = n; k-- > 0;) {
        unsigned d = order[k];
        strides[d] = step;
        step *= (int64_t)(size[d] + (below(3) == 0));
        if (below(8) == 0)
            strides[d] = 0;
        else if (below(8) == 0)
            strides[d] = -strides[d];
        if (strides[d] < 0 && size[d] > 0)
            lowest += strides[d] * (int64_t)(size[d] - 1);
    }
    assert_true((uint64_t)step * bytes + 64 < SOURCE);
    return w->source + below(16) - lowest * (int64_t)bytes;
}

static void add_box(struct world *w, uint64_t begin, struct ws_box b)
{
    int64_t strides[WS_MAX_DIMS];
    size_t bytes = b.conversion == WS_SAME_TYPE ? b.element_bytes : ws_conversion_src_bytes(b.conversion);
    assert_true(w->n < MAX_PIECES);
    const unsigned char *src = any_strides(w, b.n_dims, b.size, strides, bytes);
    b.src_strides = strides;
    w->sources[w->n] = src;
    assert_int_equal(ws_copy_plan_add(w->plan, 0, begin, &b, w->n, NULL), 0);
    reference(w, begin, &b, src);
    w->n++;
}

/* Cuts a box along a dimension, and its parts recursively. */
static void cut(struct world *w, uint64_t begin, const struct ws_box *b, int depth)
{
    uint64_t offset[2][WS_MAX_DIMS], size[2][WS_MAX_DIMS];
    if (depth == 0 || b->n_dims == 0 || below(3) == 0) {
        add_box(w, begin, *b);
        return;
    }
    unsigned d = (unsigned)below(b->n_dims);
    uint64_t at = below(b->size[d] + 1); /* one part may be empty */
    for (int k = 0; k < 2; k++) {
        memcpy(offset[k], b->offset, b->n_dims * sizeof(offset[k][0]));
        memcpy(size[k], b->size, b->n_dims * sizeof(size[k][0]));
    }
    size[0][d] = at;
    offset[1][d] += at;
    size[1][d] -= at;
    for (int k = 0; k < 2; k++) {
        struct ws_box part = *b;
        part.offset = offset[k];
        part.size = size[k];
        cut(w, begin, &part, depth - 1);
    }
}

/* Returns its bytes. */
static uint64_t add_tensor(struct world *w, uint64_t begin)
{
    static const struct {
        enum ws_conversion conversion;
        size_t bytes;
    } kinds[] = {{WS_SAME_TYPE, 1},   {WS_SAME_TYPE, 2},   {WS_SAME_TYPE, 4},   {WS_SAME_TYPE, 8},
                 {WS_F32_TO_BF16, 2}, {WS_F32_TO_F16, 2},  {WS_BF16_TO_F32, 4}, {WS_F16_TO_F32, 4},
                 {WS_BF16_TO_F16, 2}, {WS_F16_TO_BF16, 2}, {WS_SAME_TYPE, 1},   {WS_F32_TO_BF16, 2}};
    size_t kind = below(sizeof(kinds) / sizeof(kinds[0]));
    uint64_t shape[WS_MAX_DIMS], zero[WS_MAX_DIMS] = {0}, elements = 1;
    unsigned n = (unsigned)below(5);
    for (unsigned d = 0; d < n; d++) {
        shape[d] = 1 + below(n == 1 ? 600 : n == 2 ? 24 : 5);
        elements *= shape[d];
    }
    struct ws_box b = {.n_dims = n,
                       .shape = shape,
                       .offset = zero,
                       .size = shape,
                       .element_bytes = kinds[kind].bytes,
                       .conversion = kinds[kind].conversion};
    if (below(4) == 0) { /* ranges */
        b.n_dims = 1;
        b.shape = b.size = &elements;
    }
    cut(w, begin, &b, 3);
    return elements * kinds[kind].bytes;
}

static void check(struct world *w, uint64_t begin, uint64_t end)
{
    struct ws_block_hashes hashes = {0};
    const struct ws_copy_plan_run run = {
        .data = &w->file, .sources = w->sources, .overflows = w->overflows, .hashes = &hashes};
    uint64_t window = WS_BLOCK_BYTES - WINDOW;
    assert_int_equal(ws_copy_plan_compile(w->plan, &end, 1, NULL), 0);
    for (int k = 0; k < 2; k++) { /* a plan can be run again */
        memset(w->file + window, FILL, 2 * WINDOW + 64);
        memset((void *)w->overflows, 0, sizeof(w->overflows));
        hashes.len = 0;
        assert_int_equal(ws_copy_plan_run(w->plan, &run, w->workers, NULL), 0);
        assert_memory_equal(w->file + window, w->right, 2 * WINDOW + 64);
        for (size_t i = 0; i < w->n; i++)
            assert_int_equal(w->overflows[i], w->expected[i]);
        /* the file's second block, if any, is filled completely; of the first only a part */
        assert_int_equal(hashes.len, begin <= WS_BLOCK_BYTES && end > WS_BLOCK_BYTES);
        if (hashes.len) {
            assert_int_equal(hashes.ptr[0].block, 1);
            assert_int_equal(hashes.ptr[0].hash, ws_hash(w->file + WS_BLOCK_BYTES, end - WS_BLOCK_BYTES));
        }
    }
    ws_block_hashes_reset(&hashes);
}

static void test_brute_force(void **state)
{
    struct world w = {.workers = ws_workers_new(2, 0),
                      .file = malloc(WS_BLOCK_BYTES + WINDOW + 64),
                      .right = malloc(2 * WINDOW + 64),
                      .source = malloc(SOURCE)};
    size_t overflows = 0, hashed = 0;

    (void)state;
    assert_non_null(w.workers);
    assert_true(w.file && w.right && w.source);
    for (size_t i = 0; i < SOURCE; i++)
        w.source[i] = (unsigned char)below(256);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = WS_BLOCK_BYTES - below(3000), at = begin;
        assert_int_equal(ws_copy_plan_new(&w.plan, NULL), 0);
        memset(w.right, FILL, 2 * WINDOW + 64);
        memset(w.expected, 0, sizeof(w.expected));
        w.n = 0;
        for (size_t i = 0; i < MAX_TENSORS && at + MAX_TENSOR < WS_BLOCK_BYTES + WINDOW; i++)
            at += add_tensor(&w, at);
        check(&w, begin, at);
        for (size_t i = 0; i < w.n; i++)
            overflows += w.expected[i] > 0;
        hashed += at > WS_BLOCK_BYTES;
        ws_copy_plan_free(w.plan);
    }
    assert_true(overflows > 100 && hashed > 100); /* the tested cases do occur */
    free(w.source);
    free(w.right);
    free(w.file);
    ws_workers_free(w.workers);
}

/* A matrix of columns from two sources: both fill every block, which is hashed during the copy, on all
 * threads. */
static void test_columns_fill_blocks(void **state)
{
    enum { ROWS = 1024, COLUMNS = 6144 };
    uint64_t bytes = 2UL * ROWS * COLUMNS, shape[2] = {ROWS, COLUMNS}, n_blocks = bytes / WS_BLOCK_BYTES;
    uint16_t *source[2], *file = malloc(bytes), *right = malloc(bytes);
    unsigned char *data[1] = {(unsigned char *)file};
    struct ws_workers *workers = ws_workers_new(2, 0);
    struct ws_block_hashes hashes = {0};
    struct ws_copy_plan *plan;

    (void)state;
    assert_true(file && right && workers);
    assert_int_equal(ws_copy_plan_new(&plan, NULL), 0);
    for (unsigned k = 0; k < 2; k++) {
        uint64_t width = k ? 2048 : 4096, offset[2] = {0, k ? 4096 : 0}, size[2] = {ROWS, width};
        int64_t strides[2] = {(int64_t)width, 1};
        source[k] = malloc(2 * ROWS * width);
        assert_non_null(source[k]);
        for (uint64_t i = 0; i < ROWS * width; i++) {
            source[k][i] = (uint16_t)below(65536);
            right[i / width * COLUMNS + offset[1] + i % width] = source[k][i];
        }
        const struct ws_box box = {.n_dims = 2,
                                   .shape = shape,
                                   .offset = offset,
                                   .size = size,
                                   .src_strides = strides,
                                   .element_bytes = 2};
        assert_int_equal(ws_copy_plan_add(plan, 0, 0, &box, k, NULL), 0);
    }
    assert_int_equal(ws_copy_plan_compile(plan, &bytes, 1, NULL), 0);
    const struct ws_copy_plan_run run = {
        .data = data, .sources = (const void *const *)source, .hashes = &hashes};
    assert_int_equal(ws_copy_plan_run(plan, &run, workers, NULL), 0);
    assert_memory_equal(file, right, bytes);
    assert_int_equal(hashes.len, n_blocks);
    for (size_t b = 0; b < hashes.len; b++)
        assert_int_equal(hashes.ptr[b].hash, ws_hash(data[0] + b * WS_BLOCK_BYTES, WS_BLOCK_BYTES));
    ws_copy_plan_free(plan);
    ws_workers_free(workers);
    ws_block_hashes_reset(&hashes);
    free(source[0]);
    free(source[1]);
    free(right);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_columns_fill_blocks),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
