#include "backends/trainer/tensor/overlap.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const struct ws_tensor *t, const struct ws_piece_holder *a, const struct ws_piece_holder *b,
                  struct ws_error *err)
{
    const bool in_order = a->rank <= b->rank;
    return ws_error_set(err, EINVAL, "two pieces of %s overlap: one of rank %u and one of rank %u", t->name,
                        in_order ? a->rank : b->rank, in_order ? b->rank : a->rank);
}

/* --- runs --- */

struct run {
    uint64_t start, count;
    const struct ws_piece_holder *holder;
};

static int by_start(const void *x, const void *y)
{
    const struct run *a = x, *b = y;
    return a->start < b->start ? -1 : a->start > b->start;
}

/* Ranges, and boxes that are runs: sorted, neighbours. */
static int check_runs(const struct ws_tensor *t, const struct ws_piece_holder **holders, size_t n,
                      const struct ws_piece_holder *range, struct ws_error *err)
{
    struct run *runs = malloc(n * sizeof(*runs));
    int rc = runs ? 0 : ws_error_set(err, ENOMEM, "no memory for the pieces of %s", t->name);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        runs[i].holder = holders[i];
        if (!ws_piece_as_range(&holders[i]->piece, t, &runs[i].start, &runs[i].count))
            rc = ws_error_set(err, EINVAL,
                              "%s has a range (rank %u) and a box (rank %u): use one kind for a tensor",
                              t->name, range->rank, holders[i]->rank);
    }
    if (rc == 0)
        qsort(runs, n, sizeof(runs[0]), by_start);
    for (size_t i = 1; rc == 0 && i < n; i++)
        if (runs[i].start - runs[i - 1].start < runs[i - 1].count)
            rc = refuse(t, runs[i - 1].holder, runs[i].holder, err);
    free(runs);
    return rc;
}

/* --- boxes --- */

static int by_offset(const void *x, const void *y, void *dimension)
{
    const struct ws_piece_holder *a = *(const struct ws_piece_holder *const *)x,
                                 *b = *(const struct ws_piece_holder *const *)y;
    const unsigned d = *(const unsigned *)dimension;
    const uint64_t p = a->piece.offset[d], q = b->piece.offset[d];
    return p < q ? -1 : p > q;
}

/* How many of them, in order of dimension d, come before the first plane across it that cuts none. */
static size_t until_plane(const struct ws_piece_holder **boxes, size_t n, unsigned d)
{
    uint64_t end = 0;
    size_t i = 0;
    for (; i < n && (i == 0 || boxes[i]->piece.offset[d] < end); i++) {
        const uint64_t its = boxes[i]->piece.offset[d] + boxes[i]->piece.size[d];
        end = its > end ? its : end;
    }
    return i;
}

static bool boxes_overlap(const struct ws_piece *a, const struct ws_piece *b, unsigned n_dims)
{
    for (unsigned d = 0; d < n_dims; d++)
        if (a->offset[d] >= b->offset[d] + b->size[d] || b->offset[d] >= a->offset[d] + a->size[d])
            return false;
    return true;
}

static int check_pairs(const struct ws_tensor *t, const struct ws_piece_holder **boxes, size_t n,
                       struct ws_error *err)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            if (boxes_overlap(&boxes[i]->piece, &boxes[j]->piece, t->n_dims))
                return refuse(t, boxes[i], boxes[j], err);
    return 0;
}

/* Planes across one dimension after the other part them into groups. The largest group is what it goes on
 * with, so that the others, which it calls itself for, have at most half. What no plane parts, such as a
 * pinwheel, is compared by pairs. */
static int check_boxes(const struct ws_tensor *t, const struct ws_piece_holder **boxes, size_t n,
                       struct ws_error *err)
{
    unsigned uncut = 0; /* dimensions in a row across which no plane was found */
    int rc = 0;
    for (unsigned d = 0; n > 1 && uncut < t->n_dims; d = (d + 1) % t->n_dims) {
        const struct ws_piece_holder **most = boxes;
        size_t n_most = 0;
        qsort_r(boxes, n, sizeof(boxes[0]), by_offset, &d);
        for (size_t i = 0, k; i < n; i += k) {
            k = until_plane(boxes + i, n - i, d);
            rc = k > n_most ? check_boxes(t, most, n_most, err) : check_boxes(t, boxes + i, k, err);
            if (rc < 0)
                return rc;
            most = k > n_most ? boxes + i : most;
            n_most = k > n_most ? k : n_most;
        }
        uncut = n_most < n ? 0 : uncut + 1;
        boxes = most;
        n = n_most;
    }
    return check_pairs(t, boxes, n, err);
}

int ws_overlap_check(const struct ws_tensor *t, const struct ws_piece_holder **holders, size_t n,
                     struct ws_error *err)
{
    const struct ws_piece_holder *range = NULL;
    size_t filled = 0;
    for (size_t i = 0; i < n; i++) {
        if (ws_piece_elements(&holders[i]->piece, t->n_dims) == 0)
            continue;
        range = holders[i]->piece.range ? holders[i] : range;
        holders[filled++] = holders[i];
    }
    if (filled < 2)
        return 0;
    return range ? check_runs(t, holders, filled, range, err) : check_boxes(t, holders, filled, err);
}
