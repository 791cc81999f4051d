/* Box: an n-dimensional strided slice copied to its place in a row-major tensor. */
#include "transports/copy.h"
#include "transports/limits.h"
#include <assert.h>
#include <string.h>

struct walk {
    unsigned n_dims;             /* outer dimensions that are walked */
    uint64_t size[WS_MAX_DIMS];
    int64_t dst_step[WS_MAX_DIMS], src_step[WS_MAX_DIMS]; /* bytes */
    uint64_t run_bytes;          /* contiguous in both; 0: none, element by element */
};

/* Merges dimensions, innermost first, as long as source and destination stay contiguous. */
static void plan(const struct ws_box *b, struct walk *w, uint64_t *dst_begin)
{
    int64_t step = (int64_t)b->element_bytes;
    int64_t dst_step[WS_MAX_DIMS];
    *dst_begin = 0;
    for (unsigned d = b->n_dims; d-- > 0;) {
        dst_step[d] = step;
        *dst_begin += b->offset[d] * (uint64_t)step;
        step *= (int64_t)b->shape[d];
    }
    unsigned d = b->n_dims;
    w->run_bytes = b->element_bytes;
    while (d > 0) {
        int64_t src = b->src_strides[d - 1] * (int64_t)b->element_bytes;
        if (b->size[d - 1] != 1 && (src != (int64_t)w->run_bytes || dst_step[d - 1] != (int64_t)w->run_bytes))
            break;
        w->run_bytes *= b->size[d - 1];
        d--;
    }
    w->n_dims = d;
    for (unsigned i = 0; i < d; i++) {
        w->size[i] = b->size[i];
        w->dst_step[i] = dst_step[i];
        w->src_step[i] = b->src_strides[i] * (int64_t)b->element_bytes;
    }
}

static void copy_run(unsigned char *dst, const unsigned char *src, uint64_t n)
{
    switch (n) { /* fixed sizes become single moves */
    case 1:
        *dst = *src;
        break;
    case 2:
        memcpy(dst, src, 2);
        break;
    case 4:
        memcpy(dst, src, 4);
        break;
    case 8:
        memcpy(dst, src, 8);
        break;
    default:
        ws_copy(dst, src, n);
    }
}

void ws_copy_box(void *dst, const void *src, const struct ws_box *box)
{
    struct walk w;
    uint64_t begin, at[WS_MAX_DIMS] = {0};
    assert(box->n_dims <= WS_MAX_DIMS && box->element_bytes > 0);
    for (unsigned d = 0; d < box->n_dims; d++) {
        assert(box->size[d] <= box->shape[d] && box->offset[d] <= box->shape[d] - box->size[d]);
        if (box->size[d] == 0)
            return;
    }
    plan(box, &w, &begin);
    unsigned char *d = (unsigned char *)dst + begin;
    const unsigned char *s = src;
    for (;;) {
        copy_run(d, s, w.run_bytes);
        unsigned i = w.n_dims;
        for (;; i--) { /* next index, innermost first */
            if (i == 0)
                return;
            d += w.dst_step[i - 1];
            s += w.src_step[i - 1];
            if (++at[i - 1] < w.size[i - 1])
                break;
            d -= w.dst_step[i - 1] * (int64_t)w.size[i - 1];
            s -= w.src_step[i - 1] * (int64_t)w.size[i - 1];
            at[i - 1] = 0;
        }
    }
}
