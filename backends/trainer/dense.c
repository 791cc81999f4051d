#include "backends/trainer/dense.h"
#include <string.h>

#define MAX_PITCH ((int64_t)1 << 31) /* of one copy, exclusive */

void ws_dense_of(struct ws_dense *d, const struct ws_runs *r)
{
    const uint64_t elements = r->run_bytes / r->element_bytes;
    *d = (struct ws_dense){.n_loops = r->n_loops, .width = elements * r->src_element_bytes};
    memcpy(d->count, r->count, r->n_loops * sizeof(d->count[0]));
    memcpy(d->step, r->src_step, r->n_loops * sizeof(d->step[0]));
    if (r->run_step == (int64_t)r->src_element_bytes || elements <= 1)
        return;
    d->count[d->n_loops] = elements;
    d->step[d->n_loops++] = r->run_step;
    d->width = r->src_element_bytes;
}

uint64_t ws_dense_bytes(const struct ws_dense *d)
{
    uint64_t n = d->width;
    for (unsigned l = 0; l < d->n_loops; l++)
        n *= d->count[l];
    return n;
}

static bool is_pitch(int64_t step, uint64_t least)
{
    return step >= (int64_t)least && step < MAX_PITCH;
}

/* The loops from `first` on, as one copy, where that can be said in one. */
static bool as_box(const struct ws_dense *d, unsigned first, struct ws_box_copy *b)
{
    const unsigned n = d->n_loops - first;
    if (n == 0 || n > 2 || !is_pitch(d->step[d->n_loops - 1], d->width))
        return false;
    b->width = d->width;
    b->height = d->count[d->n_loops - 1];
    b->depth = 1;
    b->dst_row = d->width;
    b->dst_plane = d->width * b->height;
    b->src_row = (size_t)d->step[d->n_loops - 1];
    b->src_plane = b->src_row * b->height;
    if (n == 1)
        return true;
    const int64_t plane = d->step[first];
    b->depth = d->count[first];
    if (plane < (int64_t)b->src_plane || plane % (int64_t)b->src_row)
        return false;
    b->src_plane = (size_t)plane;
    return true;
}

static int copy_loops(struct ws_queue *q, unsigned char *dst, const unsigned char *src,
                      const struct ws_dense *d, unsigned first, struct ws_error *err)
{
    struct ws_box_copy box = {.dst = dst, .src = src};
    if (first == d->n_loops)
        return q->ops->copy(q, dst, src, d->width, err);
    if (as_box(d, first, &box))
        return q->ops->copy_box(q, &box, err);
    uint64_t inside = d->width;
    for (unsigned l = first + 1; l < d->n_loops; l++)
        inside *= d->count[l];
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < d->count[first]; i++)
        rc = copy_loops(q, dst + i * inside, src + (int64_t)i * d->step[first], d, first + 1, err);
    return rc;
}

int ws_dense_copy(struct ws_queue *q, void *dst, const void *src, const struct ws_dense *d,
                  struct ws_error *err)
{
    return ws_dense_bytes(d) ? copy_loops(q, dst, src, d, 0, err) : 0;
}

int ws_dense_split(const struct ws_dense *d, const void *src, uint64_t most, ws_dense_part *part, void *arg,
                   struct ws_error *err)
{
    const unsigned char *at = src;
    struct ws_dense some = *d;
    const uint64_t total = ws_dense_bytes(d);
    int rc = 0;
    if (total <= most)
        return total ? part(arg, d, src, err) : 0;
    if (d->n_loops == 0) {
        for (uint64_t done = 0; rc == 0 && done < total; done += some.width) {
            some.width = total - done < most ? total - done : most;
            rc = part(arg, &some, at + done, err);
        }
        return rc;
    }
    const uint64_t each = total / d->count[0], step = each < most ? most / each : 1;
    for (uint64_t i = 0; rc == 0 && i < d->count[0]; i += step) {
        some.count[0] = d->count[0] - i < step ? d->count[0] - i : step;
        if (each > most) { /* and smaller: the loops inside */
            some.n_loops = d->n_loops - 1;
            memmove(some.count, d->count + 1, some.n_loops * sizeof(some.count[0]));
            memmove(some.step, d->step + 1, some.n_loops * sizeof(some.step[0]));
        }
        rc = ws_dense_split(&some, at + (int64_t)i * d->step[0], most, part, arg, err);
    }
    return rc;
}
