#include "transports/format/node_part_overlap.h"
#include <errno.h>
#include <stdlib.h>

#define BITS       64
#define LOOK_EVERY 1024 /* rows, at *stop */

struct ws_node_part_span ws_node_part_span_init(const struct ws_tensor *t, const struct ws_node_part_piece *p,
                                                const char *from)
{
    struct ws_node_part_span l = {
        .tensor = t, .piece = p, .from = from, .begin = p->start, .end = p->start + p->count};
    if (!p->range) {
        uint64_t step = 1;
        l.begin = 0;
        l.end = 1;
        for (unsigned d = t->n_dims; d-- > 0; step *= t->shape[d]) {
            l.begin += p->offset[d] * step;
            l.end += (p->offset[d] + p->size[d] - 1) * step;
        }
    }
    return l;
}

static int by_begin(const void *x, const void *y)
{
    const struct ws_node_part_span *a = x, *b = y;
    if (a->tensor != b->tensor)
        return (uintptr_t)a->tensor < (uintptr_t)b->tensor ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* --- the elements of an interval --- */

/* A bit stands for `unit` elements: all runs of the pieces begin and end at multiples of it. So halves of rows of a
 * thousand elements cost two bits a row. */
struct cover {
    uint64_t *bits;
    uint64_t begin, unit;
    const atomic_bool *stop;
};

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b > 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* False: one of them was marked before. */
static bool mark_run(const struct cover *c, uint64_t at, uint64_t n)
{
    n /= c->unit;
    for (at = (at - c->begin) / c->unit; n > 0;) {
        const uint64_t bit = at % BITS, k = BITS - bit < n ? BITS - bit : n;
        const uint64_t mask = (k == BITS ? UINT64_MAX : (1UL << k) - 1) << bit;
        if (c->bits[at / BITS] & mask)
            return false;
        c->bits[at / BITS] |= mask;
        at += k;
        n -= k;
    }
    return true;
}

/* The next row of a box, whose first `outer` dimensions are counted; false: that was the last. */
static bool next_row(const struct ws_node_part_span *l, unsigned outer, const uint64_t *steps,
                     uint64_t *count, uint64_t *at)
{
    for (unsigned d = outer; d-- > 0;) {
        *at += steps[d];
        if (++count[d] < l->piece->size[d])
            return true;
        *at -= steps[d] * count[d];
        count[d] = 0;
    }
    return false;
}

/* The elements of a box's rows, which are as long as they can be; steps: between rows, of the dimensions that are left,
 * whose number is *outer. */
static uint64_t row_of(const struct ws_node_part_span *l, unsigned *outer, uint64_t steps[WS_MAX_DIMS])
{
    const uint64_t *size = l->piece->size, *shape = l->tensor->shape;
    uint64_t step = 1, row = 1;
    *outer = l->tensor->n_dims;
    for (unsigned d = *outer; d-- > 0; step *= shape[d])
        steps[d] = step;
    for (bool whole = true; whole && *outer > 0; whole = size[*outer] == shape[*outer])
        row *= size[--*outer];
    return row;
}

/* The greatest number of elements of which all runs of the pieces, whose first begins the interval, are multiples. */
static uint64_t find_unit(const struct ws_node_part_span *laid, size_t n)
{
    uint64_t unit = 0;
    for (size_t i = 0; i < n && unit != 1; i++) {
        uint64_t steps[WS_MAX_DIMS];
        unsigned outer = 0;
        const uint64_t run =
            laid[i].piece->range ? laid[i].end - laid[i].begin : row_of(&laid[i], &outer, steps);
        unit = common_divisor(common_divisor(unit, laid[i].begin - laid[0].begin), run);
        for (unsigned d = 0; d < outer; d++)
            if (laid[i].piece->size[d] > 1)
                unit = common_divisor(unit, steps[d]);
    }
    return unit;
}

/* 1: marked; 0: it overlaps; -ECANCELED. */
static int mark_box(const struct cover *c, const struct ws_node_part_span *l)
{
    uint64_t steps[WS_MAX_DIMS], count[WS_MAX_DIMS] = {0}, at = l->begin, rows = 0;
    unsigned outer;
    const uint64_t row = row_of(l, &outer, steps);
    do {
        if (!mark_run(c, at, row))
            return 0;
        if (++rows % LOOK_EVERY == 0 && c->stop && atomic_load(c->stop))
            return -ECANCELED;
    } while (next_row(l, outer, steps, count, &at));
    return 1;
}

static int mark(const struct cover *c, const struct ws_node_part_span *l)
{
    if (c->stop && atomic_load(c->stop))
        return -ECANCELED;
    return l->piece->range ? mark_run(c, l->begin, l->end - l->begin) : mark_box(c, l);
}

/* Of pieces whose intervals follow each other without a gap, up to end. */
static int check_group(const struct ws_node_part_span *laid, size_t n, uint64_t end, const atomic_bool *stop,
                       struct ws_error *err)
{
    struct cover c = {.begin = laid[0].begin, .stop = stop};
    const char *name = laid[0].tensor->name;
    size_t i = 0;
    int rc = 1;
    if (n == 1)
        return 0;
    c.unit = find_unit(laid, n);
    c.bits = calloc((end - c.begin) / c.unit / BITS + 1, sizeof(*c.bits));
    if (!c.bits)
        return ws_error_set(err, ENOMEM, "no memory for comparing the pieces of %s", name);
    while (rc == 1 && i < n)
        rc = mark(&c, &laid[i++]);
    free(c.bits);
    if (rc == 0)
        return ws_error_set(
            err, EBADMSG,
            "two pieces of %s overlap, one of them of the part from %s: the parts are of different "
            "trainers, or of different placements of one",
            name, laid[i - 1].from);
    return rc < 0 ? ws_error_set(err, -rc, "the comparison of parts was stopped") : 0;
}

int ws_node_part_check_overlap(struct ws_node_part_span *laid, size_t n, const atomic_bool *stop,
                               struct ws_error *err)
{
    int rc = 0;
    if (n > 1)
        qsort(laid, n, sizeof(laid[0]), by_begin);
    for (size_t i = 0, k; rc == 0 && i < n; i = k) {
        uint64_t end = laid[i].end;
        for (k = i + 1; k < n && laid[k].tensor == laid[i].tensor && laid[k].begin < end; k++)
            end = laid[k].end > end ? laid[k].end : end;
        rc = check_group(laid + i, k - i, end, stop, err);
    }
    return rc;
}
