/* Kernels, run on the CPU, for any grid: their table; gathered boxes equal box.h's copies byte for byte,
 * overflows are counted, and nothing beside is modified. test_block_diff.c: the other kernels. */
#include "tests/fixtures/cpu_queue.h"
#include "transports/device/gather.h"
#include "transports/device/kernels/cpu.h"
#include "transports/device/kernels/fatbin.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SANITIZE_THREAD__
#define ROUNDS 400 /* one thread: the other builds check for wrong bytes */
#else
#define ROUNDS 6000
#endif

#define GUARD 64

static uint64_t seed = 20;

static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static uint64_t below(uint64_t n)
{
    return (any() >> 11) % n;
}

static unsigned char *any_bytes(size_t n)
{
    unsigned char *p = cpu_filled(n + 8);
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t v = any();
        memcpy(p + i, &v, sizeof(v));
    }
    return p;
}

static struct cpu_queue queue;

static void test_table(void **state)
{
    static const char *const names[] = {
        [WS_KERNEL_GATHER] = "ws_kernel_gather",       [WS_KERNEL_DIFF_COUNT] = "ws_kernel_diff_count",
        [WS_KERNEL_DIFF_PACK] = "ws_kernel_diff_pack", [WS_KERNEL_HASH_SUM] = "ws_kernel_hash_sum",
        [WS_KERNEL_HASH_FOLD] = "ws_kernel_hash_fold",
    };
    (void)state;
    assert_int_equal(sizeof(ws_cpu_kernels) / sizeof(ws_cpu_kernels[0]), WS_N_KERNELS);
    assert_int_equal(sizeof(names) / sizeof(names[0]), WS_N_KERNELS);
    for (size_t i = 0; i < WS_N_KERNELS; i++)
        assert_string_equal(ws_cpu_kernels[i].name, names[i]);
    print_message("kernels for devices: %zu bytes\n", ws_kernels_fatbin_bytes);
    if (ws_kernels_fatbin_bytes > 0) {
        assert_memory_equal(ws_kernels_fatbin, "\x50\xed\x55\xba", 4);
        assert_int_equal((uintptr_t)ws_kernels_fatbin % 16, 0);
    }
}

/* --- gathering --- */

static void run_gather(const struct ws_gather *g, uint64_t *overflows)
{
    const struct ws_gather_args a = {g->items.ptr, g->units.ptr, overflows, g->items.len};
    assert_int_equal(ws_gather_launch(&queue.q, &a, g->units.ptr[g->items.len], NULL), 0);
}

/* A box with its memory. */
struct piece {
    struct ws_box box;
    uint64_t shape[WS_MAX_DIMS], offset[WS_MAX_DIMS], size[WS_MAX_DIMS];
    int64_t strides[WS_MAX_DIMS];
    struct ws_box_extents runs;
    unsigned char *memory;
    const unsigned char *src;
    uint64_t elements, tensor_bytes; /* of the box; of the tensor */
};

static void free_piece(struct piece *p)
{
    free(p->memory);
}

/* Dimensions of up to `most`, the source's in any order, some reversed or repeated. */
static void make_piece(struct piece *p, unsigned most_dims, uint64_t most, enum ws_conversion conversion)
{
    static const size_t to_bytes[WS_CONVERSION_COUNT] = {0, 2, 2, 4, 4, 2, 2, 4, 2, 2, 4, 2, 2, 4, 2, 2};
    unsigned n = (unsigned)below(most_dims + 1), order[WS_MAX_DIMS];
    uint64_t total = 1, left = 40000;
    int64_t step = 1, lowest = 0, highest = 0;
    *p = (struct piece){.box = {.n_dims = n,
                                .shape = p->shape,
                                .offset = p->offset,
                                .size = p->size,
                                .src_strides = p->strides,
                                .element_bytes = conversion ? to_bytes[conversion] : 1U << below(4),
                                .conversion = conversion},
                        .elements = 1};
    for (unsigned d = 0; d < n; d++) {
        const uint64_t room = 1 + below(most < left ? most : left + 1);
        p->shape[d] = room + below(3);
        p->offset[d] = below(p->shape[d]);
        p->size[d] = 1 + below(p->shape[d] - p->offset[d]);
        if (below(3) == 0) {
            p->offset[d] = 0;
            p->size[d] = p->shape[d];
        }
        total *= p->shape[d];
        p->elements *= p->size[d];
        left /= p->shape[d];
        order[d] = d;
    }
    for (unsigned d = n; d > 1 && below(2); d--) { /* else as it is */
        const unsigned other = (unsigned)below(d), kept = order[d - 1];
        order[d - 1] = order[other];
        order[other] = kept;
    }
    for (unsigned k = n; k-- > 0;) {
        const unsigned d = order[k];
        p->strides[d] = below(12) == 0 ? 0 : below(8) == 0 ? -step : step;
        lowest += p->strides[d] < 0 ? p->strides[d] * (int64_t)(p->size[d] - 1) : 0;
        highest += p->strides[d] > 0 ? p->strides[d] * (int64_t)(p->size[d] - 1) : 0;
        step *= (int64_t)p->size[d] + (below(6) == 0 ? (int64_t)below(5) : 0);
    }
    ws_box_extents_init(&p->runs, &p->box);
    const size_t width = p->runs.src_element_bytes, shift = below(3) * width;
    p->memory = any_bytes((size_t)(highest - lowest + 1) * width + shift);
    p->src = p->memory + shift - lowest * (int64_t)width;
    p->tensor_bytes = total * p->box.element_bytes;
}

/* Elements of the box, cut anywhere between two of them, in one launch; by both forms. */
static void check_piece(struct piece *p)
{
    const size_t width = p->runs.element_bytes, n = p->elements, bytes = p->tensor_bytes;
    const size_t shift = GUARD + below(9) * width;
    unsigned char *right = cpu_filled(bytes + 2 * GUARD + 64), *placed = cpu_filled(bytes + 2 * GUARD + 64),
                  *packed = cpu_filled(bytes + 2 * GUARD + 64), *flat = cpu_filled(bytes + 2 * GUARD + 64);
    uint64_t counts[8] = {0}, expected[8] = {0};
    struct ws_gather g;
    ws_gather_init(&g);
    for (size_t from = 0, part; from < n; from += part) {
        part = 1 + below(below(2) ? n : n / 3 + 1);
        part = part < n - from ? part : n - from;
        const unsigned counter = (unsigned)below(4);
        assert_true(ws_gather_supports(&p->runs, p->src, from * width, part * width, placed + shift,
                                       WS_GATHER_PLACED));
        assert_int_equal(ws_gather_add(&g, &p->runs, p->src, from * width, part * width, placed + shift,
                                       WS_GATHER_PLACED, counter, NULL),
                         0);
        assert_int_equal(ws_gather_add(&g, &p->runs, p->src, from * width, part * width,
                                       packed + shift + from * width, WS_GATHER_PACKED, counter + 4, NULL),
                         0);
        struct ws_box_cursor c;
        ws_box_cursor_seek(&c, &p->runs, p->src, from * width, part * width);
        for (uint64_t ready; (ready = ws_box_cursor_ready(&c)) > 0;) {
            unsigned char *to = right + shift + c.dst + c.at;
            const size_t done = from * width + part * width - c.left;
            const uint64_t over = ws_box_cursor_copy(&c, to, ready);
            memcpy(flat + shift + done, to, ready);
            expected[counter] += over;
            expected[counter + 4] += over;
        }
    }
    queue.warps = below(2) ? 0 : 1 + (unsigned)below(50);
    run_gather(&g, counts);
    queue.warps = 0;
    assert_memory_equal(placed, right, bytes + 2 * GUARD + 64);
    assert_memory_equal(packed, flat, bytes + 2 * GUARD + 64);
    assert_memory_equal(counts, expected, sizeof(counts));
    ws_gather_free(&g);
    free(right);
    free(placed);
    free(packed);
    free(flat);
}

static void test_gather_random(void **state)
{
    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        static const uint64_t most[] = {3, 6, 40, 300, 9000};
        struct piece p;
        make_piece(&p, round % 3 ? 3 : WS_MAX_DIMS, most[below(5)],
                   (enum ws_conversion)(round % 2 ? below(WS_CONVERSION_COUNT) : WS_SAME_TYPE));
        check_piece(&p);
        free_piece(&p);
    }
}

/* Every pattern of f16 and bf16, and every upper half of f32 with lower ones that tie or do not. */
static void test_gather_bits(void **state)
{
    static const uint32_t lower[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    (void)state;
    for (int c = WS_SAME_TYPE + 1; c < WS_CONVERSION_COUNT; c++) {
        const size_t from_bytes = ws_conversion_src_bytes((enum ws_conversion)c);
        const size_t to_bytes = c == WS_BF16_TO_F32 || c == WS_F16_TO_F32 || c == WS_F32_PLUS_1_TO_F32 ||
                                        c == WS_BF16_PLUS_1_TO_F32 || c == WS_F16_PLUS_1_TO_F32
                                    ? 4
                                    : 2;
        for (size_t k = 0; k < (from_bytes == 4 ? sizeof(lower) / sizeof(lower[0]) : 1); k++) {
            const uint64_t n = 65536;
            unsigned char *src = any_bytes(n * 4), *got = cpu_filled(n * 4), *right = cpu_filled(n * 4);
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t wide = i << 16 | lower[k];
                memcpy(src + i * from_bytes, from_bytes == 4 ? (const void *)&wide : (const void *)&i,
                       from_bytes);
            }
            const struct ws_box box = {.n_dims = 1,
                                       .shape = &n,
                                       .offset = (const uint64_t[]){0},
                                       .size = &n,
                                       .src_strides = (const int64_t[]){1},
                                       .element_bytes = to_bytes,
                                       .conversion = (enum ws_conversion)c};
            struct ws_box_extents runs;
            struct ws_gather g;
            uint64_t overflows = 7;
            ws_gather_init(&g);
            ws_box_extents_init(&runs, &box);
            assert_int_equal(ws_gather_add(&g, &runs, src, 0, n * to_bytes, got, WS_GATHER_PLACED, 0, NULL),
                             0);
            run_gather(&g, &overflows);
            assert_int_equal(overflows, 7 + ws_convert((enum ws_conversion)c, right, src, n));
            assert_memory_equal(got, right, n * 4);
            ws_gather_free(&g);
            free(src);
            free(got);
            free(right);
        }
    }
}

/* One large piece among thousands of small ones: the work is divided evenly, and none is lost. */
static void test_gather_uneven(void **state)
{
    enum { SMALL = 10000, EACH = 24, LARGE = 5 << 20 };
    unsigned char *src = any_bytes(LARGE + SMALL * EACH), *dst = cpu_filled(LARGE + SMALL * EACH);
    struct ws_gather g;
    size_t done = 0;
    (void)state;
    ws_gather_init(&g);
    for (unsigned i = 0; i <= SMALL; i++) {
        const uint64_t n = i == SMALL / 2 ? LARGE : EACH;
        const struct ws_box box = {.n_dims = 1,
                                   .shape = &n,
                                   .offset = (const uint64_t[]){0},
                                   .size = &n,
                                   .src_strides = (const int64_t[]){1},
                                   .element_bytes = 1};
        struct ws_box_extents runs;
        ws_box_extents_init(&runs, &box);
        assert_int_equal(ws_gather_add(&g, &runs, src + done, 0, n, dst + done, WS_GATHER_PACKED, 0, NULL),
                         0);
        done += n;
    }
    assert_int_equal(g.units.ptr[g.items.len], SMALL + LARGE / WS_GATHER_UNIT_BYTES);
    run_gather(&g, NULL);
    assert_memory_equal(dst, src, done);
    assert_int_equal(queue.threads % 32, 0);
    assert_true(queue.blocks * (queue.threads / 32) >= g.units.ptr[g.items.len]);
    ws_gather_clear(&g);
    assert_int_equal(g.items.len, 0);
    ws_gather_free(&g);
    free(src);
    free(dst);
}

static void test_gather_refuses(void **state)
{
    const uint64_t n = 10;
    struct ws_box box = {.n_dims = 1,
                         .shape = &n,
                         .offset = (const uint64_t[]){0},
                         .size = &n,
                         .src_strides = (const int64_t[]){1},
                         .element_bytes = 4};
    struct ws_box_extents r;
    unsigned char *memory = any_bytes(256), *to = memory + 128;
    (void)state;
    ws_box_extents_init(&r, &box);
    assert_true(ws_gather_supports(&r, memory, 4, 36, to, WS_GATHER_PLACED));
    assert_true(ws_gather_supports(&r, memory, 4, 36, to + 4, WS_GATHER_PACKED));
    assert_false(ws_gather_supports(&r, memory, 2, 36, to, WS_GATHER_PLACED)); /* begins within an element */
    assert_false(ws_gather_supports(&r, memory, 4, 35, to, WS_GATHER_PLACED));
    assert_false(ws_gather_supports(&r, memory + 1, 4, 36, to, WS_GATHER_PLACED));
    assert_false(ws_gather_supports(&r, memory, 4, 36, to + 2, WS_GATHER_PACKED));
    box.element_bytes = 16;
    ws_box_extents_init(&r, &box);
    assert_false(ws_gather_supports(&r, memory, 0, 16, to, WS_GATHER_PACKED));
    box.element_bytes = 2;
    box.conversion = WS_F32_TO_BF16;
    ws_box_extents_init(&r, &box);
    assert_true(ws_gather_supports(&r, memory, 2, 4, to + 2, WS_GATHER_PACKED));
    assert_false(ws_gather_supports(&r, memory + 2, 2, 4, to + 2, WS_GATHER_PACKED)); /* f32 at 2 */
    /* a row of more than 2^31 elements, in a loop; alone it is accepted */
    const uint64_t shape[2] = {2, 5ULL << 30};
    box = (struct ws_box){.n_dims = 2,
                          .shape = shape,
                          .offset = (const uint64_t[]){0, 0},
                          .size = shape,
                          .src_strides = (const int64_t[]){6LL << 30, 1},
                          .element_bytes = 1};
    ws_box_extents_init(&r, &box);
    assert_false(ws_gather_supports(&r, memory, 0, 16, to, WS_GATHER_PACKED));
    box.src_strides = (const int64_t[]){5LL << 30, 1};
    ws_box_extents_init(&r, &box);
    assert_true(ws_gather_supports(&r, memory, 0, 16, to, WS_GATHER_PACKED));
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),          cmocka_unit_test(test_gather_random),
        cmocka_unit_test(test_gather_bits),    cmocka_unit_test(test_gather_uneven),
        cmocka_unit_test(test_gather_refuses),
    };
    queue = cpu_queue();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
