/* Kernels, as the CPU runs them: gathered boxes are byte for byte what box.h copies, and nothing beside them
 * is touched; deltas of what was compared and packed are byte for byte the encoder's, and the kept copies are
 * up to date; whatever the grid. */
#include "transports/box.h"
#include "transports/diff.h"
#include "transports/gather.h"
#include "transports/kernels/cpu.h"
#include "transports/kernels/fatbin.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FILL  0xa5
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
    unsigned char *p = aligned_alloc(64, (n + 127) / 64 * 64);
    assert_non_null(p);
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t v = any();
        memcpy(p + i, &v, sizeof(v));
    }
    return p;
}

static unsigned char *filled(size_t n)
{
    unsigned char *p = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, FILL, n);
    return p;
}

/* --- a queue whose kernels run at once --- */

static unsigned launched_blocks, launched_threads, odd_grid; /* odd_grid: instead of the one asked for */

static int launch(struct ws_queue *q, enum ws_kernel k, unsigned blocks, unsigned threads, void **args,
                  struct ws_error *err)
{
    (void)q;
    (void)err;
    launched_blocks = blocks;
    launched_threads = threads;
    ws_cpu_kernels[k].run(args, odd_grid ? 1 : blocks, odd_grid ? odd_grid : threads);
    return 0;
}
static const struct ws_device_ops ops = {.name = "cpu", .launch = launch};
static struct ws_queue queue = {&ops, 0};

static void test_table(void **state)
{
    static const char *const names[] = {
        [WS_KERNEL_GATHER] = "ws_kernel_gather",
        [WS_KERNEL_DIFF_COUNT] = "ws_kernel_diff_count",
        [WS_KERNEL_DIFF_PACK] = "ws_kernel_diff_pack",
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
    const struct ws_gather_args a = {g->items, g->units, overflows, g->n};
    assert_int_equal(ws_gather_launch(&queue, &a, g->units[g->n], NULL), 0);
}

/* A box with what it needs. */
struct piece {
    struct ws_box box;
    uint64_t shape[WS_MAX_DIMS], offset[WS_MAX_DIMS], size[WS_MAX_DIMS];
    int64_t strides[WS_MAX_DIMS];
    struct ws_runs runs;
    unsigned char *memory;
    const unsigned char *src;
    uint64_t tensor_bytes;
};

static void free_piece(struct piece *p)
{
    free(p->memory);
}

/* Dimensions of up to `most`, the source's laid out in any order, some of them backwards or repeated. */
static void make_piece(struct piece *p, unsigned most_dims, uint64_t most, enum ws_conversion conversion)
{
    static const size_t to_bytes[WS_CONVERSION_COUNT] = {0, 2, 2, 4, 4, 2, 2};
    unsigned n = (unsigned)below(most_dims + 1), order[WS_MAX_DIMS];
    uint64_t total = 1;
    int64_t step = 1, lowest = 0, highest = 0;
    *p = (struct piece){.box = {.n_dims = n,
                                .shape = p->shape,
                                .offset = p->offset,
                                .size = p->size,
                                .src_strides = p->strides,
                                .element_bytes = conversion ? to_bytes[conversion] : 1U << below(4),
                                .conversion = conversion}};
    for (unsigned d = 0; d < n; d++) {
        const uint64_t left = 40000 / total + 1, room = 1 + below(most < left ? most : left);
        p->shape[d] = room + below(3);
        p->offset[d] = below(p->shape[d]);
        p->size[d] = 1 + below(p->shape[d] - p->offset[d]);
        if (below(3) == 0) {
            p->offset[d] = 0;
            p->size[d] = p->shape[d];
        }
        total *= p->shape[d];
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
    ws_runs_of(&p->runs, &p->box);
    const size_t width = p->runs.src_element_bytes, shift = below(3) * width;
    p->memory = any_bytes((size_t)(highest - lowest + 1) * width + shift);
    p->src = p->memory + shift - lowest * (int64_t)width;
    p->tensor_bytes = total * p->box.element_bytes;
}

/* Elements of the box, cut anywhere between two of them, in one launch; by both forms. */
static void check_piece(struct piece *p)
{
    const size_t width = p->runs.element_bytes, n = p->runs.bytes / width, bytes = p->tensor_bytes;
    const size_t shift = GUARD + below(9) * width;
    unsigned char *right = filled(bytes + 2 * GUARD + 64), *placed = filled(bytes + 2 * GUARD + 64),
                  *packed = filled(bytes + 2 * GUARD + 64), *flat = filled(bytes + 2 * GUARD + 64);
    uint64_t counts[8] = {0}, expected[8] = {0};
    struct ws_gather g;
    ws_gather_init(&g);
    for (size_t from = 0, part; from < n; from += part) {
        part = 1 + below(below(2) ? n : n / 3 + 1);
        part = part < n - from ? part : n - from;
        const unsigned counter = (unsigned)below(4);
        assert_true(
            ws_gather_takes(&p->runs, p->src, from * width, part * width, placed + shift, WS_GATHER_PLACED));
        assert_int_equal(ws_gather_add(&g, &p->runs, p->src, from * width, part * width, placed + shift,
                                       WS_GATHER_PLACED, counter, NULL),
                         0);
        assert_int_equal(ws_gather_add(&g, &p->runs, p->src, from * width, part * width,
                                       packed + shift + from * width, WS_GATHER_PACKED, counter + 4, NULL),
                         0);
        struct ws_cursor c;
        ws_cursor_seek(&c, &p->runs, p->src, from * width, part * width);
        for (uint64_t ready; (ready = ws_cursor_ready(&c)) > 0;) {
            unsigned char *to = right + shift + c.dst + c.at;
            const size_t done = from * width + part * width - c.left;
            const uint64_t over = ws_cursor_take(&c, to, ready);
            memcpy(flat + shift + done, to, ready);
            expected[counter] += over;
            expected[counter + 4] += over;
        }
    }
    odd_grid = below(2) ? 0 : 1 + (unsigned)below(50);
    run_gather(&g, counts);
    odd_grid = 0;
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
    for (unsigned round = 0; round < 6000; round++) {
        static const uint64_t most[] = {3, 6, 40, 300, 9000};
        struct piece p;
        make_piece(&p, round % 3 ? 3 : WS_MAX_DIMS, most[below(5)],
                   (enum ws_conversion)(round % 2 ? below(WS_CONVERSION_COUNT) : WS_KEEP));
        check_piece(&p);
        free_piece(&p);
    }
}

/* Every pattern of f16 and bf16, and every upper half of f32 with lower ones that tie or do not. */
static void test_gather_bits(void **state)
{
    static const uint32_t lower[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    (void)state;
    for (int c = WS_KEEP + 1; c < WS_CONVERSION_COUNT; c++) {
        const size_t from_bytes = ws_conversion_src_bytes((enum ws_conversion)c);
        const size_t to_bytes = c == WS_BF16_TO_F32 || c == WS_F16_TO_F32 ? 4 : 2;
        for (size_t k = 0; k < (from_bytes == 4 ? sizeof(lower) / sizeof(lower[0]) : 1); k++) {
            const uint64_t n = 65536;
            unsigned char *src = any_bytes(n * 4), *got = filled(n * 4), *right = filled(n * 4);
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
            struct ws_runs runs;
            struct ws_gather g;
            uint64_t overflows = 7;
            ws_gather_init(&g);
            ws_runs_of(&runs, &box);
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

/* One large piece among thousands of small ones: units are shared out evenly, and none is lost. */
static void test_gather_uneven(void **state)
{
    enum { SMALL = 10000, EACH = 24, LARGE = 5 << 20 };
    unsigned char *src = any_bytes(LARGE + SMALL * EACH), *dst = filled(LARGE + SMALL * EACH);
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
        struct ws_runs runs;
        ws_runs_of(&runs, &box);
        assert_int_equal(ws_gather_add(&g, &runs, src + done, 0, n, dst + done, WS_GATHER_PACKED, 0, NULL),
                         0);
        done += n;
    }
    assert_int_equal(g.units[g.n], SMALL + LARGE / WS_GATHER_UNIT_BYTES);
    run_gather(&g, NULL);
    assert_memory_equal(dst, src, done);
    assert_int_equal(launched_threads % 32, 0);
    assert_true(launched_blocks * (launched_threads / 32) >= g.units[g.n]);
    ws_gather_clear(&g);
    assert_int_equal(g.n, 0);
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
    struct ws_runs r;
    unsigned char *memory = any_bytes(256), *to = memory + 128;
    (void)state;
    ws_runs_of(&r, &box);
    assert_true(ws_gather_takes(&r, memory, 4, 36, to, WS_GATHER_PLACED));
    assert_true(ws_gather_takes(&r, memory, 4, 36, to + 4, WS_GATHER_PACKED));
    assert_false(ws_gather_takes(&r, memory, 2, 36, to, WS_GATHER_PLACED)); /* begins within an element */
    assert_false(ws_gather_takes(&r, memory, 4, 35, to, WS_GATHER_PLACED));
    assert_false(ws_gather_takes(&r, memory + 1, 4, 36, to, WS_GATHER_PLACED));
    assert_false(ws_gather_takes(&r, memory, 4, 36, to + 2, WS_GATHER_PACKED));
    box.element_bytes = 16;
    ws_runs_of(&r, &box);
    assert_false(ws_gather_takes(&r, memory, 0, 16, to, WS_GATHER_PACKED));
    box.element_bytes = 2;
    box.conversion = WS_F32_TO_BF16;
    ws_runs_of(&r, &box);
    assert_true(ws_gather_takes(&r, memory, 2, 4, to + 2, WS_GATHER_PACKED));
    assert_false(ws_gather_takes(&r, memory + 2, 2, 4, to + 2, WS_GATHER_PACKED)); /* f32 at 2 */
    /* a row of more than 2^31 elements, in a loop; alone it is taken */
    const uint64_t shape[2] = {2, 5ULL << 30};
    box = (struct ws_box){.n_dims = 2,
                          .shape = shape,
                          .offset = (const uint64_t[]){0, 0},
                          .size = shape,
                          .src_strides = (const int64_t[]){6LL << 30, 1},
                          .element_bytes = 1};
    ws_runs_of(&r, &box);
    assert_false(ws_gather_takes(&r, memory, 0, 16, to, WS_GATHER_PACKED));
    box.src_strides = (const int64_t[]){5LL << 30, 1};
    ws_runs_of(&r, &box);
    assert_true(ws_gather_takes(&r, memory, 0, 16, to, WS_GATHER_PACKED));
    free(memory);
}

/* --- what changed --- */

static struct ws_widths *any_widths(uint64_t size)
{
    const size_t n = 1 + below(12);
    struct ws_widths *w = malloc(sizeof(*w) + n * sizeof(w->runs[0]));
    assert_non_null(w);
    w->n = 0;
    for (uint64_t at = 0; w->n < n; at += 1 + below(size / n + 1))
        w->runs[w->n++] = (struct ws_width_run){below(2) ? at : at / 16 * 16, 1U << below(3)};
    for (size_t i = 1; i < w->n; i++) /* none at the place of another */
        if (w->runs[i].begin <= w->runs[i - 1].begin)
            w->runs[i].begin = w->runs[i - 1].begin + 1;
    return w;
}

/* Some elements go up or down by up to `most`; others not at all. */
static void change(unsigned char *p, size_t len, unsigned width, uint64_t one_of, unsigned most)
{
    for (size_t i = 0; i + width <= len; i += width) {
        uint32_t v = 0;
        if (below(one_of) > 0)
            continue;
        memcpy(&v, p + i, width);
        v += below(2) ? 1 + (uint32_t)below(most) : 0U - 1 - (uint32_t)below(most);
        memcpy(p + i, &v, width);
    }
}

#define MOST 6 /* blocks of one launch */

struct block {
    size_t len;
    uint64_t offset;
    struct ws_widths *widths;
    unsigned char *bytes, *kept, *kept_memory, *before;
    unsigned char *delta; /* the encoder's */
    size_t delta_bytes;
    uint32_t changed;
    int rc;
};

static void make_block(struct block *b, struct ws_delta_coder *coder, size_t len)
{
    static const uint64_t shares[] = {2, 4, 10, 70, 1000, 100000, 1ULL << 40};
    static const unsigned sizes[] = {1, 3, 100, 1U << 30};
    *b = (struct block){.len = len, .offset = below(4) * 4096 + below(2) * below(9)};
    b->widths = any_widths(b->offset + len);
    b->bytes = any_bytes(len + GUARD);
    b->kept_memory = filled(len + 3 * GUARD);
    b->kept = b->kept_memory + GUARD + (below(3) ? 0 : below(17));
    memcpy(b->kept, b->bytes, len);
    change(b->kept, len, 1U << below(3), shares[below(7)], sizes[below(4)]);
    if (len > 100 && below(3) == 0) /* few in a row, so that gaps differ */
        change(b->kept + below(len / 2), below(len / 2), 2, 2, 3);
    b->before = malloc(len);
    b->delta = malloc(len + 1);
    assert_true(b->before && b->delta);
    memcpy(b->before, b->kept, len);
    b->rc = ws_delta_encode(coder, b->kept, b->bytes, len, b->widths, b->offset, b->delta, &b->delta_bytes,
                            &b->changed);
}

static void free_block(struct block *b)
{
    free(b->widths);
    free(b->bytes);
    free(b->kept_memory);
    free(b->before);
    free(b->delta);
}

/* What a caller does: count, pack, and what was found as deltas. Returns how many were deltas. */
static unsigned compare(struct block *blocks, unsigned n, uint32_t room)
{
    struct ws_diff d;
    unsigned deltas = 0;
    ws_diff_init(&d);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(ws_diff_add(&d, blocks[i].bytes, blocks[i].kept, blocks[i].len, blocks[i].widths,
                                     blocks[i].offset, NULL),
                         0);
    const uint32_t n_tiles = d.tiles[d.n_parts];
    uint32_t *tile_changed = calloc(n_tiles, 4), *part_changed = calloc(d.n_parts, 4),
             *block_changed = calloc(n, 4), *at = calloc(room + 1ULL, 4), *changes = calloc(room + 1ULL, 4);
    assert_true(tile_changed && part_changed && block_changed && at && changes);
    at[room] = changes[room] = 0xa5a5a5a5;
    const struct ws_diff_args a = {.blocks = d.blocks,
                                   .parts = d.parts,
                                   .tiles = d.tiles,
                                   .tile_changed = tile_changed,
                                   .part_changed = part_changed,
                                   .block_changed = block_changed,
                                   .at = at,
                                   .changes = changes,
                                   .room = room,
                                   .n_parts = d.n_parts};
    odd_grid = below(2) ? 0 : 1 + (unsigned)below(50);
    assert_int_equal(ws_diff_launch(&queue, WS_KERNEL_DIFF_COUNT, &a, n_tiles, NULL), 0);
    for (unsigned i = 0; i < n; i++)
        assert_memory_equal(blocks[i].kept, blocks[i].before, blocks[i].len);
    assert_int_equal(ws_diff_launch(&queue, WS_KERNEL_DIFF_PACK, &a, n_tiles, NULL), 0);
    odd_grid = 0;
    assert_true(at[room] == 0xa5a5a5a5 && changes[room] == 0xa5a5a5a5);
    const struct ws_diff_found f = {part_changed, block_changed, at, changes, room};
    const uint32_t used = ws_diff_packed(&d, &f);
    assert_true(used <= room);
    memset(at + used, FILL, (room - used) * 4ULL);
    for (unsigned i = 0; i < n; i++) {
        struct block *b = &blocks[i];
        unsigned char *out = malloc(b->len + 1);
        size_t bytes;
        uint32_t changed;
        assert_non_null(out);
        int rc = ws_diff_encode(&d, &f, i, out, &bytes, &changed, NULL);
        assert_int_equal(changed, b->changed);
        if (rc == 0) {
            assert_int_equal(b->rc, 0);
            assert_int_equal(bytes, b->delta_bytes);
            assert_memory_equal(out, b->delta, bytes);
        } else {
            assert_int_equal(rc, -E2BIG);
            assert_true(b->rc == -E2BIG || changed > d.blocks[i].most || room < UINT16_MAX * 100U);
        }
        deltas += rc == 0;
        assert_memory_equal(b->kept, b->bytes, b->len);
        memset(b->kept, FILL, b->len);
        for (size_t k = 0; k < b->len + 3 * GUARD; k++)
            assert_int_equal(b->kept_memory[k], FILL);
        free(out);
    }
    ws_diff_free(&d);
    free(tile_changed);
    free(part_changed);
    free(block_changed);
    free(at);
    free(changes);
    return deltas;
}

static void test_diff_random(void **state)
{
    struct ws_delta_coder *coder = ws_delta_coder_new();
    unsigned all = 0, deltas = 0;
    (void)state;
    assert_non_null(coder);
    for (unsigned round = 0; round < 1500; round++) {
        static const size_t most[] = {10, 300, 5000, 100000};
        struct block blocks[MOST];
        const unsigned n = 1 + (unsigned)below(MOST);
        for (unsigned i = 0; i < n; i++)
            make_block(&blocks[i], coder, 1 + below(most[below(4)]));
        all += n;
        deltas += compare(blocks, n, round % 4 ? UINT16_MAX * 100U : (uint32_t)below(20000));
        for (unsigned i = 0; i < n; i++)
            free_block(&blocks[i]);
    }
    print_message("%u of %u blocks as deltas\n", deltas, all);
    assert_true(deltas > all / 3 && deltas < all);
    ws_delta_coder_free(coder);
}

/* A block of the largest size, as a training step changes it; and one of which too much changed. */
static void test_diff_whole(void **state)
{
    struct ws_delta_coder *coder = ws_delta_coder_new();
    (void)state;
    assert_non_null(coder);
    for (unsigned width = 1; width <= 4; width *= 2) {
        for (uint64_t one_of = 2; one_of < 2000; one_of *= 9) {
            struct block b;
            make_block(&b, coder, WS_BLOCK_BYTES);
            b.widths->n = 1;
            b.widths->runs[0] = (struct ws_width_run){0, width};
            b.offset = 3 * WS_BLOCK_BYTES;
            memcpy(b.kept, b.bytes, b.len);
            change(b.kept, b.len, width, one_of, 2);
            memcpy(b.before, b.kept, b.len);
            b.rc = ws_delta_encode(coder, b.kept, b.bytes, b.len, b.widths, b.offset, b.delta, &b.delta_bytes,
                                   &b.changed);
            assert_int_equal(compare(&b, 1, WS_BLOCK_BYTES), one_of > 3);
            free_block(&b);
        }
    }
    ws_delta_coder_free(coder);
}

/* What has no room is not packed, nor what follows it, also where that would have had room. */
static void test_diff_room(void **state)
{
    struct ws_delta_coder *coder = ws_delta_coder_new();
    static const struct {
        uint32_t room;
        unsigned deltas;
    } cases[] = {{600, 3}, {599, 2}, {400, 2}, {399, 1}, {200, 1}, {199, 0}, {0, 0}};
    (void)state;
    assert_non_null(coder);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct block b[3];
        for (unsigned i = 0; i < 3; i++) {
            make_block(&b[i], coder, 20000);
            b[i].widths->n = 1;
            b[i].widths->runs[0] = (struct ws_width_run){0, 2};
            b[i].offset = 0;
            memcpy(b[i].kept, b[i].bytes, b[i].len);
            for (unsigned k = 0; k < 200; k++)
                b[i].kept[100 * k]++;
            memcpy(b[i].before, b[i].kept, b[i].len);
            b[i].rc = ws_delta_encode(coder, b[i].kept, b[i].bytes, b[i].len, b[i].widths, 0, b[i].delta,
                                      &b[i].delta_bytes, &b[i].changed);
        }
        assert_int_equal(compare(b, 3, cases[c].room), cases[c].deltas);
        for (unsigned i = 0; i < 3; i++)
            free_block(&b[i]);
    }
    ws_delta_coder_free(coder);
}

static void test_diff_full(void **state)
{
    struct ws_diff d;
    struct ws_widths *w = any_widths(10);
    unsigned char a[8] = {0}, b[8] = {0};
    (void)state;
    ws_diff_init(&d);
    for (unsigned i = 0; i < WS_DIFF_MOST_BLOCKS; i++) {
        assert_false(ws_diff_full(&d));
        assert_int_equal(ws_diff_add(&d, a, b, sizeof(a), w, 0, NULL), 0);
    }
    assert_true(ws_diff_full(&d));
    ws_diff_clear(&d);
    assert_false(ws_diff_full(&d));
    assert_int_equal(ws_diff_add(&d, a, b, sizeof(a), w, 0, NULL), 0);
    assert_int_equal(d.tiles[0], 0);
    ws_diff_free(&d);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),          cmocka_unit_test(test_gather_random),
        cmocka_unit_test(test_gather_bits),    cmocka_unit_test(test_gather_uneven),
        cmocka_unit_test(test_gather_refuses), cmocka_unit_test(test_diff_random),
        cmocka_unit_test(test_diff_whole),     cmocka_unit_test(test_diff_room),
        cmocka_unit_test(test_diff_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
