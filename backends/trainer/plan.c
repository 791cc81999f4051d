#include "backends/trainer/plan.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_BLOCKS 64 /* between two reports of progress */

/* One block and the segments that lie in it: [first, first + n) of the sorted list, clipped. */
struct job {
    size_t file, block, first, n;
    bool whole; /* the segments fill it */
    uint64_t hash;
};

struct ws_plan {
    struct ws_segment *segments;
    size_t n_segments, cap_segments;
    struct ws_strided *strided;
    size_t n_strided, cap_strided;
    /* while it runs */
    struct job *jobs;
    size_t n_jobs, round; /* round: first job of this round */
    unsigned char *const *data;
    const uint64_t *size;
};

int ws_plan_new(struct ws_plan **out, struct ws_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory for a plan of copies");
}

static int grow(void **array, size_t n, size_t *cap, size_t element)
{
    if (n < *cap)
        return 0;
    size_t more = *cap ? *cap * 2 : 64;
    void *p = realloc(*array, more * element);
    if (!p)
        return -ENOMEM;
    *array = p;
    *cap = more;
    return 0;
}

int ws_plan_add_segment(struct ws_plan *p, const struct ws_segment *s)
{
    if (s->bytes == 0)
        return 0;
    int rc = grow((void **)&p->segments, p->n_segments, &p->cap_segments, sizeof(*s));
    if (rc == 0)
        p->segments[p->n_segments++] = *s;
    return rc;
}

int ws_plan_add_strided(struct ws_plan *p, const struct ws_strided *s)
{
    int rc = grow((void **)&p->strided, p->n_strided, &p->cap_strided, sizeof(*s));
    if (rc == 0)
        p->strided[p->n_strided++] = *s;
    return rc;
}

static int by_place(const void *x, const void *y)
{
    const struct ws_segment *a = x, *b = y;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static uint64_t block_end(const struct ws_plan *p, size_t file, size_t block)
{
    uint64_t end = (block + 1) * WS_BLOCK_BYTES;
    return end < p->size[file] ? end : p->size[file];
}

/* Segments are sorted and do not overlap (the agent checked): a job for each block that any of them touches.
 */
static int make_jobs(struct ws_plan *p)
{
    size_t cap = 0;
    p->n_jobs = 0;
    if (p->n_segments == 0)
        return 0;
    qsort(p->segments, p->n_segments, sizeof(p->segments[0]), by_place);
    for (size_t i = 0; i < p->n_segments; i++) {
        const struct ws_segment *s = &p->segments[i];
        for (size_t b = s->begin / WS_BLOCK_BYTES; b * WS_BLOCK_BYTES < s->begin + s->bytes; b++) {
            struct job *last = p->n_jobs ? &p->jobs[p->n_jobs - 1] : NULL;
            if (last && last->file == s->file && last->block == b) {
                last->n++;
                continue;
            }
            int rc = grow((void **)&p->jobs, p->n_jobs, &cap, sizeof(*p->jobs));
            if (rc < 0)
                return rc;
            p->jobs[p->n_jobs++] = (struct job){.file = s->file, .block = b, .first = i, .n = 1};
        }
    }
    return 0;
}

static void run_block(void *arg, size_t i)
{
    struct ws_plan *p = arg;
    struct job *j = &p->jobs[p->round + i];
    uint64_t begin = j->block * WS_BLOCK_BYTES, end = block_end(p, j->file, j->block), covered = 0;
    for (size_t k = j->first; k < j->first + j->n; k++) {
        const struct ws_segment *s = &p->segments[k];
        uint64_t a = s->begin > begin ? s->begin : begin,
                 b = s->begin + s->bytes < end ? s->begin + s->bytes : end;
        covered += b - a;
    }
    j->whole = covered == end - begin;
    struct ws_hasher *h = j->whole ? ws_hasher_new() : NULL;
    j->whole = h != NULL;
    for (size_t k = j->first; k < j->first + j->n; k++) {
        const struct ws_segment *s = &p->segments[k];
        uint64_t a = s->begin > begin ? s->begin : begin,
                 b = s->begin + s->bytes < end ? s->begin + s->bytes : end;
        if (h)
            ws_hasher_copy(h, p->data[j->file] + a, s->src + (a - s->begin), b - a);
        else
            ws_copy(p->data[j->file] + a, s->src + (a - s->begin), b - a);
    }
    if (h)
        j->hash = ws_hasher_digest(h);
    ws_hasher_free(h);
}

static void run_strided(void *arg, size_t i)
{
    struct ws_plan *p = arg;
    const struct ws_strided *s = &p->strided[i];
    struct ws_box box = {.n_dims = s->n_dims,
                         .shape = s->shape,
                         .offset = s->offset,
                         .size = s->size,
                         .src_strides = s->strides,
                         .element_bytes = s->element_bytes};
    ws_copy_box(p->data[s->file] + s->tensor_begin, s->src, &box);
}

static int collect(const struct ws_plan *p, struct ws_block_hash **hashes, size_t *n_hashes)
{
    struct ws_block_hash *more = realloc(*hashes, (*n_hashes + p->n_jobs + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    *hashes = more;
    for (size_t i = 0; i < p->n_jobs; i++)
        if (p->jobs[i].whole)
            more[(*n_hashes)++] = (struct ws_block_hash){p->jobs[i].file, p->jobs[i].block, p->jobs[i].hash};
    return 0;
}

int ws_plan_run(struct ws_plan *p, unsigned char *const *data, const uint64_t *size, size_t n_files,
                struct ws_workers *workers, struct ws_block_hash **hashes, size_t *n_hashes,
                void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, struct ws_error *err)
{
    p->data = data;
    p->size = size;
    for (size_t i = 0; i < p->n_segments; i++)
        assert(p->segments[i].file < n_files &&
               p->segments[i].begin + p->segments[i].bytes <= size[p->segments[i].file]);
    if (make_jobs(p) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a plan of copies");
    size_t step = progress ? ROUND_BLOCKS * ws_workers_count(workers) : p->n_jobs;
    for (p->round = 0; p->round < p->n_jobs; p->round += step) {
        size_t left = p->n_jobs - p->round;
        ws_workers_run(workers, run_block, p, left < step ? left : step);
        if (progress)
            progress(arg, (p->round + (left < step ? left : step)) * WS_BLOCK_BYTES,
                     p->n_jobs * WS_BLOCK_BYTES);
    }
    ws_workers_run(workers, run_strided, p, p->n_strided);
    int rc = collect(p, hashes, n_hashes);
    free(p->jobs);
    p->jobs = NULL;
    p->n_jobs = 0;
    return rc < 0 ? ws_error_set(err, ENOMEM, "no memory for the hashes of a copy") : 0;
}

void ws_plan_free(struct ws_plan *p)
{
    if (!p)
        return;
    free(p->segments);
    free(p->strided);
    free(p->jobs);
    free(p);
}
