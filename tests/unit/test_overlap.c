/* Exactly the pieces that share an element are found; compared with a count per element. */
#include "backends/trainer/tensor/overlap.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_PIECES 4096
#define MAX_SIDE   12

static struct ws_piece_holder claims[MAX_PIECES];
static struct ws_error err;
static uint64_t seed = 7;

static uint64_t below(uint64_t n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % n;
}

/* Of the first n claims, in any order. */
static int check(const struct ws_tensor *t, size_t n)
{
    static const struct ws_piece_holder *list[MAX_PIECES];
    for (size_t i = 0; i < n; i++) {
        const size_t at = below(i + 1);
        claims[i].rank = (unsigned)i;
        list[i] = list[at];
        list[at] = &claims[i];
    }
    return ws_overlap_check(t, list, n, &err);
}

static struct ws_piece box(uint64_t row, uint64_t column, uint64_t rows, uint64_t columns)
{
    return (struct ws_piece){.offset = {row, column}, .size = {rows, columns}};
}

static struct ws_piece range(uint64_t start, uint64_t count)
{
    return (struct ws_piece){.range = true, .start = start, .count = count};
}

/* Element i of the row-major tensor. */
static bool has(const struct ws_piece *p, const struct ws_tensor *t, uint64_t i)
{
    if (p->range)
        return i >= p->start && i - p->start < p->count;
    for (unsigned d = t->n_dims; d-- > 0; i /= t->shape[d])
        if (i % t->shape[d] < p->offset[d] || i % t->shape[d] - p->offset[d] >= p->size[d])
            return false;
    return true;
}

static bool any_twice(const struct ws_tensor *t, size_t n)
{
    uint64_t all = 1;
    for (unsigned d = 0; d < t->n_dims; d++)
        all *= t->shape[d];
    for (uint64_t i = 0; i < all; i++) {
        unsigned times = 0;
        for (size_t k = 0; k < n; k++)
            times += has(&claims[k].piece, t, i);
        if (times > 1)
            return true;
    }
    return false;
}

/* Cuts one piece in two; together they still cover the tensor. */
static size_t cut(const struct ws_tensor *t, size_t n)
{
    struct ws_piece *p = &claims[below(n)].piece;
    const unsigned d = (unsigned)below(t->n_dims);
    if (p->size[d] < 2)
        return n;
    const uint64_t first = 1 + below(p->size[d] - 1);
    claims[n].piece = *p;
    claims[n].piece.offset[d] += first;
    claims[n].piece.size[d] -= first;
    p->size[d] = first;
    return n + 1;
}

static void test_boxes(void **state)
{
    unsigned overlapping = 0;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct ws_tensor t = {.name = "w", .dtype = WS_U8, .n_dims = 1 + (unsigned)below(3)};
        size_t n = 1;
        memset(claims, 0, sizeof(claims[0]));
        for (unsigned d = 0; d < t.n_dims; d++)
            claims[0].piece.size[d] = t.shape[d] = 1 + below(MAX_SIDE);
        for (int i = 0; i < 24; i++)
            n = cut(&t, n);
        struct ws_piece *p = &claims[below(n)].piece; /* often larger, or moved */
        const unsigned d = (unsigned)below(t.n_dims);
        if (round % 2 && p->offset[d] > 0) {
            p->offset[d]--;
            p->size[d] += below(2);
        }
        const bool twice = any_twice(&t, n);
        overlapping += twice;
        assert_int_equal(check(&t, n), twice ? -EINVAL : 0);
    }
    assert_true(overlapping > 500 && overlapping < 1500);
}

static void test_pinwheel(void **state)
{
    const struct ws_tensor t = {.name = "w", .dtype = WS_U8, .n_dims = 2, .shape = {3, 3}};
    (void)state;
    claims[0].piece = box(0, 0, 1, 2); /* no straight cut separates these five */
    claims[1].piece = box(0, 2, 2, 1);
    claims[2].piece = box(2, 1, 1, 2);
    claims[3].piece = box(1, 0, 2, 1);
    claims[4].piece = box(1, 1, 1, 1);
    assert_int_equal(check(&t, 5), 0);
    claims[4].piece = box(1, 1, 2, 1);
    assert_int_equal(check(&t, 5), -EINVAL);
    assert_string_equal(err.text, "two pieces of w overlap: one of rank 2 and one of rank 4");
}

static void test_mesh(void **state)
{
    const struct ws_tensor t = {.name = "w", .dtype = WS_U8, .n_dims = 2, .shape = {640, 640}};
    (void)state;
    for (size_t i = 0; i < MAX_PIECES; i++)
        claims[i].piece = box(i / 64 * 10, i % 64 * 10, 10, 10);
    assert_int_equal(check(&t, MAX_PIECES), 0);
    claims[2000].piece.size[1]++;
    assert_int_equal(check(&t, MAX_PIECES), -EINVAL);
    assert_string_equal(err.text, "two pieces of w overlap: one of rank 2000 and one of rank 2001");
}

static void test_kinds(void **state)
{
    const struct ws_tensor t = {.name = "w", .dtype = WS_U8, .n_dims = 2, .shape = {10, 6}};
    (void)state;
    claims[0].piece = box(0, 0, 4, 6); /* rows are contiguous */
    claims[1].piece = range(24, 36);
    claims[2].piece = range(24, 0); /* it is empty */
    claims[3].piece = box(0, 3, 0, 3);
    assert_int_equal(check(&t, 4), 0);
    claims[1].piece.start--;
    assert_int_equal(check(&t, 4), -EINVAL);
    assert_non_null(strstr(err.text, "rank 0 and one of rank 1"));
    claims[0].piece = box(0, 0, 4, 3);
    assert_int_equal(check(&t, 4), -EINVAL);
    assert_string_equal(err.text, "w has a range (rank 1) and a box (rank 0): use one kind for a tensor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_pinwheel),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
