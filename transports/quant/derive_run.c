/* The work of a derivation: rows of one source tensor at a time. */
#include "transports/quant/derive.h"
#include "transports/quant/quantise.h"
#include "transports/simd/copy.h"
#include <assert.h>

static void check_rows(const struct ws_derive_job *job, uint64_t row, uint64_t n_rows)
{
    assert(row <= job->rows && n_rows <= job->rows - row && row % job->step_rows == 0);
    assert(n_rows % job->step_rows == 0 || row + n_rows == job->rows);
}

static struct ws_quantise weight_of(const struct ws_derive *d, const struct ws_derive_job *job, uint64_t row,
                                    uint64_t n_rows)
{
    const struct ws_tensor *t = job->source;
    return (struct ws_quantise){.recipe = d->recipe,
                                .name = t->name,
                                .dtype = t->dtype,
                                .rows = t->shape[0],
                                .columns = t->shape[1],
                                .row = row,
                                .n_rows = n_rows};
}

void ws_derive_rows(const struct ws_derive_job *job, uint64_t begin, uint64_t end, uint64_t *row,
                    uint64_t *n_rows)
{
    const struct ws_tensor *t = job->source;

    *row = *n_rows = 0;
    begin = begin > t->begin ? begin : t->begin;
    end = end < t->end ? end : t->end;
    if (begin >= end)
        return;
    const uint64_t step_bytes = job->row_bytes * job->step_rows;
    *row = (begin - t->begin) / step_bytes * job->step_rows;
    const uint64_t last = ((end - t->begin - 1) / step_bytes + 1) * job->step_rows;
    *n_rows = (last < job->rows ? last : job->rows) - *row;
}

void ws_derive_source_range(const struct ws_derive_job *job, uint64_t row, uint64_t n_rows, uint64_t *begin,
                            uint64_t *end)
{
    check_rows(job, row, n_rows);
    *begin = job->source->begin + row * job->row_bytes;
    *end = *begin + n_rows * job->row_bytes;
}

void ws_derive_target_range(const struct ws_derive *d, const struct ws_derive_job *job, unsigned target,
                            uint64_t row, uint64_t n_rows, uint64_t *begin, uint64_t *end)
{
    check_rows(job, row, n_rows);
    assert(target < job->n_targets);
    const uint64_t at = d->files[job->file].st->tensors[job->targets[target]].begin;
    if (job->quantised) {
        const struct ws_quantise q = weight_of(d, job, row, n_rows);
        ws_quantise_range(&q, target, begin, end);
    } else {
        *begin = row * job->row_bytes;
        *end = *begin + n_rows * job->row_bytes;
    }
    *begin += at;
    *end += at;
}

int ws_derive_run(const struct ws_derive *d, const struct ws_derive_job *job, uint64_t row, uint64_t n_rows,
                  const void *src, void *const dst[WS_RECIPE_MAX_TARGETS], struct ws_error *err)
{
    check_rows(job, row, n_rows);
    if (!job->quantised) {
        ws_copy(dst[0], src, n_rows * job->row_bytes);
        return 0;
    }
    struct ws_quantise q = weight_of(d, job, row, n_rows);
    q.src = src;
    for (unsigned k = 0; k < job->n_targets; k++)
        q.dst[k] = dst[k];
    return ws_quantise(&q, err);
}
