/* Overlaps of pieces compared with an all-pairs check, and cases where that would take too long. */
#include "transports/format/node_part_overlap.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t state_of = 88172645463325252UL;

static unsigned any(unsigned n)
{
    state_of ^= state_of << 13;
    state_of ^= state_of >> 7;
    state_of ^= state_of << 17;
    return (unsigned)(state_of % n);
}

static bool has(const struct ws_tensor *t, const struct ws_node_part_piece *p, uint64_t element)
{
    uint64_t rest = element;
    if (p->range)
        return element >= p->start && element - p->start < p->count;
    for (unsigned d = t->n_dims; d-- > 0; rest /= t->shape[d])
        if (rest % t->shape[d] < p->offset[d] || rest % t->shape[d] >= p->offset[d] + p->size[d])
            return false;
    return true;
}

static bool do_overlap(const struct ws_tensor *t, const struct ws_node_part_piece *p, size_t n,
                       uint64_t elements)
{
    for (uint64_t e = 0; e < elements; e++) {
        unsigned holders = 0;
        for (size_t i = 0; i < n; i++)
            holders += has(t, &p[i], e);
        if (holders > 1)
            return true;
    }
    return false;
}

static void test_random(void **state)
{
    unsigned overlapping = 0;
    (void)state;
    for (int round = 0; round < 4000; round++) {
        struct ws_tensor t = {.name = (char[]){"w"}, .n_dims = 1 + any(4)};
        struct ws_node_part_piece p[5] = {0};
        struct ws_node_part_span laid[5];
        struct ws_error err = {0};
        const size_t n = 1 + any(5);
        uint64_t elements = 1;
        for (unsigned d = 0; d < t.n_dims; d++)
            elements *= t.shape[d] = 1 + any(d < 2 ? 12 : 5);
        for (size_t i = 0; i < n; i++) {
            p[i].range = any(4) == 0;
            p[i].start = any((unsigned)elements);
            p[i].count = 1 + any((unsigned)(elements - p[i].start)) / 3;
            p[i].n_dims = t.n_dims;
            for (unsigned d = 0; d < t.n_dims; d++) {
                p[i].offset[d] = any((unsigned)t.shape[d]);
                p[i].size[d] = 1 + any((unsigned)(t.shape[d] - p[i].offset[d])) / (1 + any(2));
            }
            laid[i] = ws_node_part_span_init(&t, &p[i], "n1");
        }
        const bool want = do_overlap(&t, p, n, elements);
        overlapping += want;
        assert_int_equal(ws_node_part_check_overlap(laid, n, NULL, &err), want ? -EBADMSG : 0);
    }
    assert_true(overlapping > 500 && overlapping < 3500);
}

#define COLUMNS 200000U

/* Columns whose intervals all overlap: 20,000,000,000 pairs. */
static void test_columns(void **state)
{
    struct ws_tensor t = {.name = (char[]){"w"}, .n_dims = 2, .shape = {3, COLUMNS}};
    struct ws_node_part_piece *p = calloc(COLUMNS, sizeof(*p));
    struct ws_node_part_span *laid = calloc(COLUMNS, sizeof(*laid));
    struct ws_error err = {0};
    atomic_bool stop = true;
    (void)state;
    for (unsigned i = 0; i < COLUMNS; i++) {
        p[i] = (struct ws_node_part_piece){.n_dims = 2, .offset = {0, i}, .size = {3, 1}};
        laid[COLUMNS - 1 - i] = ws_node_part_span_init(&t, &p[i], "n1");
    }
    assert_int_equal(ws_node_part_check_overlap(laid, COLUMNS, NULL, &err), 0);
    assert_int_equal(ws_node_part_check_overlap(laid, COLUMNS, &stop, &err), -ECANCELED);
    p[7].size[1] = 2;
    laid[0] = ws_node_part_span_init(&t, &p[7], "n7"); /* column 0 is the first in order */
    for (unsigned i = 1; i < COLUMNS; i++)
        laid[i] = ws_node_part_span_init(&t, &p[i], "n1");
    assert_int_equal(ws_node_part_check_overlap(laid, COLUMNS, NULL, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "two pieces of w overlap, one of them of the part from n"));
    free(laid);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_columns)};

    return cmocka_run_group_tests_name("node_part_overlap", tests, NULL, NULL);
}
