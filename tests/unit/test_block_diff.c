/* Diff: the deltas that the kernels find (run on the CPU) equal the encoder's byte for byte, for all widths,
 * alignments and grids; the shadow copies are updated, and nothing beside them is modified. */
#include "tests/fixtures/cpu_queue.h"
#include "tests/fixtures/unwatched.h"
#include "transports/device/block_diff.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SANITIZE_THREAD__
#define ROUNDS 100 /* one thread: the other builds check for wrong bytes */
#else
#define ROUNDS 1500
#endif

#define GUARD 64

static uint64_t seed = 20;

UNWATCHED static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

UNWATCHED static uint64_t below(uint64_t n)
{
    return (any() >> 11) % n;
}

UNWATCHED static unsigned char *any_bytes(size_t n)
{
    unsigned char *p = cpu_filled(n + 8);
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t v = any();
        memcpy(p + i, &v, sizeof(v));
    }
    return p;
}

static struct cpu_queue queue;

/* --- what changed --- */

static struct ws_element_widths *any_widths(uint64_t size)
{
    const size_t n = 1 + below(12);
    struct ws_element_widths *w = malloc(sizeof(*w) + n * sizeof(w->extents[0]));
    assert_non_null(w);
    w->n = 0;
    for (uint64_t at = 0; w->n < n; at += 1 + below(size / n + 1))
        w->extents[w->n++] = (struct ws_element_width_extent){below(2) ? at : at / 16 * 16, 1U << below(3)};
    for (size_t i = 1; i < w->n; i++) /* offset of an element that did not change */
        if (w->extents[i].begin <= w->extents[i - 1].begin)
            w->extents[i].begin = w->extents[i - 1].begin + 1;
    return w;
}

/* Some elements go up or down by up to `most`; others not at all. */
UNWATCHED static void change(unsigned char *p, size_t len, unsigned width, uint64_t one_of, unsigned most)
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
    struct ws_element_widths *widths;
    unsigned char *bytes, *shadow, *shadow_memory, *before;
    unsigned char *delta; /* the encoder's */
    size_t delta_bytes;
    uint32_t changed;
    int rc;
};

static void make_block(struct block *b, struct ws_delta_block_encoder *coder, size_t len)
{
    static const uint64_t shares[] = {2, 4, 10, 70, 1000, 100000, 1ULL << 40};
    static const unsigned sizes[] = {1, 3, 100, 1U << 30};
    *b = (struct block){.len = len, .offset = below(4) * 4096 + below(2) * below(9)};
    b->widths = any_widths(b->offset + len);
    b->bytes = any_bytes(len + GUARD);
    b->shadow_memory = cpu_filled(len + 3 * GUARD);
    b->shadow = b->shadow_memory + GUARD + (below(3) ? 0 : below(17));
    memcpy(b->shadow, b->bytes, len);
    change(b->shadow, len, 1U << below(3), shares[below(7)], sizes[below(4)]);
    if (len > 100 && below(3) == 0) /* few, so that gaps differ */
        change(b->shadow + below(len / 2), below(len / 2), 2, 2, 3);
    b->before = malloc(len);
    b->delta = malloc(len + 1);
    assert_true(b->before && b->delta);
    memcpy(b->before, b->shadow, len);
    b->rc = ws_delta_block_encode(coder, b->shadow, b->bytes, len, b->widths, b->offset, b->delta,
                                  &b->delta_bytes, &b->changed);
}

static void free_block(struct block *b)
{
    free(b->widths);
    free(b->bytes);
    free(b->shadow_memory);
    free(b->before);
    free(b->delta);
}

/* As a caller does: count, pack, and write the found changes as deltas. Returns the number of deltas. */
static unsigned compare(struct block *blocks, unsigned n, uint32_t room)
{
    struct ws_block_diff d;
    unsigned deltas = 0;
    ws_block_diff_init(&d);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(ws_block_diff_add(&d, blocks[i].bytes, blocks[i].shadow, blocks[i].len,
                                           blocks[i].widths, blocks[i].offset, NULL),
                         0);
    const uint32_t n_tiles = d.tiles.ptr[d.spans.len];
    uint32_t *tile_changed = calloc(n_tiles, 4), *span_changed = calloc(d.spans.len, 4),
             *block_changed = calloc(n, 4), *at = calloc(room + 1ULL, 4), *changes = calloc(room + 1ULL, 4);
    assert_true(tile_changed && span_changed && block_changed && at && changes);
    at[room] = changes[room] = 0xa5a5a5a5;
    const struct ws_diff_args a = {.blocks = d.blocks.ptr,
                                   .spans = d.spans.ptr,
                                   .tiles = d.tiles.ptr,
                                   .tile_changed = tile_changed,
                                   .span_changed = span_changed,
                                   .block_changed = block_changed,
                                   .at = at,
                                   .changes = changes,
                                   .room = room,
                                   .n_spans = d.spans.len};
    queue.warps = below(2) ? 0 : 1 + (unsigned)below(50);
    assert_int_equal(ws_block_diff_launch(&queue.q, WS_KERNEL_DIFF_COUNT, &a, n_tiles, NULL), 0);
    for (unsigned i = 0; i < n; i++)
        assert_memory_equal(blocks[i].shadow, blocks[i].before, blocks[i].len);
    assert_int_equal(ws_block_diff_launch(&queue.q, WS_KERNEL_DIFF_PACK, &a, n_tiles, NULL), 0);
    queue.warps = 0;
    assert_true(at[room] == 0xa5a5a5a5 && changes[room] == 0xa5a5a5a5);
    const struct ws_block_diff_result f = {span_changed, block_changed, at, changes, room};
    const uint32_t used = ws_block_diff_n_packed(&d, &f);
    assert_true(used <= room);
    memset(at + used, FIXTURE_FILL, (room - used) * 4ULL);
    for (unsigned i = 0; i < n; i++) {
        struct block *b = &blocks[i];
        unsigned char *out = malloc(b->len + 1);
        size_t bytes;
        uint32_t changed;
        assert_non_null(out);
        int rc = ws_block_diff_encode(&d, &f, i, out, &bytes, &changed, NULL);
        assert_int_equal(changed, b->changed);
        if (rc == 0) {
            assert_int_equal(b->rc, 0);
            assert_int_equal(bytes, b->delta_bytes);
            assert_memory_equal(out, b->delta, bytes);
        } else {
            assert_int_equal(rc, -E2BIG);
            assert_true(b->rc == -E2BIG || changed > d.blocks.ptr[i].most || room < UINT16_MAX * 100U);
        }
        deltas += rc == 0;
        assert_memory_equal(b->shadow, b->bytes, b->len);
        memset(b->shadow, FIXTURE_FILL, b->len);
        for (size_t k = 0; k < b->len + 3 * GUARD; k++)
            assert_int_equal(b->shadow_memory[k], FIXTURE_FILL);
        free(out);
    }
    ws_block_diff_free(&d);
    free(tile_changed);
    free(span_changed);
    free(block_changed);
    free(at);
    free(changes);
    return deltas;
}

static void test_diff_random(void **state)
{
    struct ws_delta_block_encoder *coder = ws_delta_block_encoder_new();
    unsigned all = 0, deltas = 0;
    (void)state;
    assert_non_null(coder);
    for (unsigned round = 0; round < ROUNDS; round++) {
        static const size_t most[] = {10, 300, 5000, 100000};
        struct block blocks[MOST];
        const unsigned n = 1 + (unsigned)below(MOST);
        for (unsigned i = 0; i < n; i++)
            make_block(&blocks[i], coder, 1 + below(most[below(4)]));
        all += n;
        deltas += compare(blocks, n, round % 4 ? 1U << 20 : (uint32_t)below(20000));
        for (unsigned i = 0; i < n; i++)
            free_block(&blocks[i]);
    }
    print_message("%u of %u blocks as deltas\n", deltas, all);
    assert_true(deltas > all / 3 && deltas < all);
    ws_delta_block_encoder_free(coder);
}

/* A block of the maximum size, changed as by a training step; and one with too many changes. */
static void test_diff_whole(void **state)
{
    struct ws_delta_block_encoder *coder = ws_delta_block_encoder_new();
    (void)state;
    assert_non_null(coder);
    for (unsigned width = 1; width <= 4; width *= 2) {
        for (uint64_t one_of = 2; one_of < 2000; one_of *= 9) {
            struct block b;
            make_block(&b, coder, WS_BLOCK_BYTES);
            b.widths->n = 1;
            b.widths->extents[0] = (struct ws_element_width_extent){0, width};
            b.offset = 3 * WS_BLOCK_BYTES;
            memcpy(b.shadow, b.bytes, b.len);
            change(b.shadow, b.len, width, one_of, 2);
            memcpy(b.before, b.shadow, b.len);
            b.rc = ws_delta_block_encode(coder, b.shadow, b.bytes, b.len, b.widths, b.offset, b.delta,
                                         &b.delta_bytes, &b.changed);
            assert_int_equal(compare(&b, 1, WS_BLOCK_BYTES), one_of > 3);
            free_block(&b);
        }
    }
    ws_delta_block_encoder_free(coder);
}

/* A block that does not fit is not packed, nor are those after it, even if they would have fitted. */
static void test_diff_room(void **state)
{
    struct ws_delta_block_encoder *coder = ws_delta_block_encoder_new();
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
            b[i].widths->extents[0] = (struct ws_element_width_extent){0, 2};
            b[i].offset = 0;
            memcpy(b[i].shadow, b[i].bytes, b[i].len);
            for (unsigned k = 0; k < 200; k++)
                b[i].shadow[100 * k]++;
            memcpy(b[i].before, b[i].shadow, b[i].len);
            b[i].rc = ws_delta_block_encode(coder, b[i].shadow, b[i].bytes, b[i].len, b[i].widths, 0,
                                            b[i].delta, &b[i].delta_bytes, &b[i].changed);
        }
        assert_int_equal(compare(b, 3, cases[c].room), cases[c].deltas);
        for (unsigned i = 0; i < 3; i++)
            free_block(&b[i]);
    }
    ws_delta_block_encoder_free(coder);
}

static void test_diff_full(void **state)
{
    struct ws_block_diff d;
    struct ws_element_widths *w = any_widths(10);
    unsigned char a[8] = {0}, b[8] = {0};
    (void)state;
    ws_block_diff_init(&d);
    for (unsigned i = 0; i < WS_BLOCK_DIFF_MAX_BLOCKS; i++) {
        assert_true(d.blocks.len < WS_BLOCK_DIFF_MAX_BLOCKS);
        assert_int_equal(ws_block_diff_add(&d, a, b, sizeof(a), w, 0, NULL), 0);
    }
    assert_int_equal(d.blocks.len, WS_BLOCK_DIFF_MAX_BLOCKS);
    ws_block_diff_clear(&d);
    assert_true(d.blocks.len < WS_BLOCK_DIFF_MAX_BLOCKS);
    assert_int_equal(ws_block_diff_add(&d, a, b, sizeof(a), w, 0, NULL), 0);
    assert_int_equal(d.tiles.ptr[0], 0);
    ws_block_diff_free(&d);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diff_random),
        cmocka_unit_test(test_diff_whole),
        cmocka_unit_test(test_diff_room),
        cmocka_unit_test(test_diff_full),
    };
    queue = cpu_queue();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
