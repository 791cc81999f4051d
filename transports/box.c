/* Box: an n-dimensional strided slice copied to its place in a row-major tensor (ws_copy_box in copy.h). */
#include "transports/copy.h"
#include "transports/limits.h"
#include <assert.h>
#include <string.h>

/* The copy as nested loops over runs that are contiguous on both sides; steps are bytes. */
struct walk {
    uint64_t run_bytes;
    unsigned n_loops; /* at least one: the innermost, last here, is loop n_loops - 1 */
    uint64_t count[WS_MAX_DIMS + 1];
    int64_t dst_step[WS_MAX_DIMS + 1], src_step[WS_MAX_DIMS + 1];
};

/* Merges dimensions into the run, innermost first, as long as both sides stay contiguous; the others
 * become loops. Returns the box's first byte in dst. */
static int64_t plan(const struct ws_box *b, struct walk *w)
{
    int64_t begin = 0, dst_step[WS_MAX_DIMS] = {0};
    int64_t step = (int64_t)b->element_bytes;
    for (unsigned d = b->n_dims; d-- > 0;) {
        dst_step[d] = step;
        begin += (int64_t)b->offset[d] * step;
        step *= (int64_t)b->shape[d];
    }
    unsigned outer = b->n_dims;
    w->run_bytes = b->element_bytes;
    for (; outer > 0; outer--) {
        unsigned d = outer - 1;
        int64_t run = (int64_t)w->run_bytes, src_step = b->src_strides[d] * (int64_t)b->element_bytes;
        if (b->size[d] != 1 && (src_step != run || dst_step[d] != run))
            break;
        w->run_bytes *= b->size[d];
    }
    w->n_loops = 0;
    for (unsigned d = 0; d < outer; d++) {
        if (b->size[d] == 1)
            continue;
        w->count[w->n_loops] = b->size[d];
        w->dst_step[w->n_loops] = dst_step[d];
        w->src_step[w->n_loops++] = b->src_strides[d] * (int64_t)b->element_bytes;
    }
    if (w->n_loops == 0) {
        w->count[0] = 1;
        w->dst_step[0] = w->src_step[0] = 0;
        w->n_loops = 1;
    }
    return begin;
}

/* The innermost loop. Elements of a fixed size become single moves. */
static void copy_runs(unsigned char *dst, const unsigned char *src, const struct walk *w)
{
    uint64_t count = w->count[w->n_loops - 1];
    int64_t dst_step = w->dst_step[w->n_loops - 1], src_step = w->src_step[w->n_loops - 1];
#define MOVES(bytes)                                                                                         \
    for (int64_t i = 0; i < (int64_t)count; i++)                                                             \
        memcpy(dst + i * dst_step, src + i * src_step, bytes);                                               \
    break
    switch (w->run_bytes) {
    case 1:
        MOVES(1);
    case 2:
        MOVES(2);
    case 4:
        MOVES(4);
    case 8:
        MOVES(8);
    default:
        for (int64_t i = 0; i < (int64_t)count; i++)
            ws_copy(dst + i * dst_step, src + i * src_step, w->run_bytes);
    }
#undef MOVES
}

void ws_copy_box(void *dst, const void *src, const struct ws_box *box)
{
    struct walk w;
    uint64_t at[WS_MAX_DIMS + 1] = {0};
    assert(box->n_dims <= WS_MAX_DIMS && box->element_bytes > 0);
    for (unsigned d = 0; d < box->n_dims; d++)
        assert(box->size[d] <= box->shape[d] && box->offset[d] <= box->shape[d] - box->size[d]);
    for (unsigned d = 0; d < box->n_dims; d++)
        if (box->size[d] == 0)
            return;
    int64_t to = plan(box, &w), from = 0;
    for (;;) {
        copy_runs((unsigned char *)dst + to, (const unsigned char *)src + from, &w);
        unsigned loop = w.n_loops - 1;
        for (;; loop--) { /* the next index of the outer loops, innermost first */
            if (loop == 0)
                return;
            to += w.dst_step[loop - 1];
            from += w.src_step[loop - 1];
            if (++at[loop - 1] < w.count[loop - 1])
                break;
            at[loop - 1] = 0;
            to -= w.dst_step[loop - 1] * (int64_t)w.count[loop - 1];
            from -= w.src_step[loop - 1] * (int64_t)w.count[loop - 1];
        }
    }
}
