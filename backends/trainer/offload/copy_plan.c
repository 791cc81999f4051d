#include "backends/trainer/offload/block_writer.h"
#include "backends/trainer/offload/copy_plan_state.h"
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_BLOCKS 64  /* between two reports of progress */
#define BATCH_BLOCKS 8   /* between two calls of some_done, a worker; */
#define BATCHES      256 /* and no more calls than that and one */

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a plan of copies");
}

int ws_copy_plan_new(struct ws_copy_plan **out, struct ws_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : no_memory(err);
}

/* --- compiling --- */

int ws_copy_plan_add(struct ws_copy_plan *p, size_t file, uint64_t begin, const struct ws_box *box,
                     size_t source, struct ws_error *err)
{
    struct ws_box_extents runs;
    ws_box_extents_init(&runs, box);
    if (runs.bytes == 0)
        return 0;
    const struct ws_copy_piece piece = {.runs = runs, .file = file, .source = source, .begin = begin};
    return ws_copy_pieces_append(&p->pieces, piece) == 0 ? 0 : no_memory(err);
}

int ws_copy_plan_add_bytes(struct ws_copy_plan *p, size_t file, uint64_t begin, uint64_t bytes, size_t source,
                           struct ws_error *err)
{
    return ws_copy_plan_add(p, file, begin,
                            &(struct ws_box){.n_dims = 1,
                                             .shape = &bytes,
                                             .offset = (const uint64_t[]){0},
                                             .size = &bytes,
                                             .src_strides = (const int64_t[]){1},
                                             .element_bytes = 1},
                            source, err);
}

void ws_copy_plan_restrict(struct ws_copy_plan *p, const struct ws_block_range *by_file)
{
    p->only = by_file;
}

static bool is_wanted(const struct ws_copy_plan *p, size_t file, size_t block)
{
    return !p->only || (block >= p->only[file].first && block - p->only[file].first < p->only[file].n);
}

static int cut(struct ws_copy_plan *p, size_t piece, const uint64_t *size)
{
    const struct ws_copy_piece *q = &p->pieces.ptr[piece];
    uint64_t first = q->begin + ws_box_extents_place(&q->runs, 0),
             last = q->begin + ws_box_extents_place(&q->runs, q->runs.bytes - 1);
    assert(last < size[q->file]);
    for (size_t b = first / WS_BLOCK_BYTES; b <= last / WS_BLOCK_BYTES; b++) {
        uint64_t begin = b * WS_BLOCK_BYTES, end = begin + WS_BLOCK_BYTES,
                 from = begin > q->begin ? ws_box_extents_before(&q->runs, begin - q->begin) : 0,
                 to = ws_box_extents_before(&q->runs, end - q->begin);
        if (from == to || !is_wanted(p, q->file, b))
            continue;
        const struct ws_copy_span span = {.piece = piece,
                                          .file = q->file,
                                          .block = b,
                                          .from = from,
                                          .bytes = to - from,
                                          .first = q->begin + ws_box_extents_place(&q->runs, from),
                                          .end = q->begin + ws_box_extents_place(&q->runs, to - 1) + 1};
        if (ws_copy_spans_append(&p->spans, span) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int by_place(const void *x, const void *y)
{
    const struct ws_copy_span *a = x, *b = y;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

size_t ws_copy_plan_interleaved(const struct ws_copy_span *s, size_t n)
{
    uint64_t end = s[0].end;
    size_t k = 1;
    for (; k < n && s[k].first < end; k++)
        end = s[k].end > end ? s[k].end : end;
    return k;
}

/* A job for each block that any span lies in. */
static int make_jobs(struct ws_copy_plan *p, const uint64_t *size)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < p->spans.len; i++) {
        const struct ws_copy_span *s = &p->spans.ptr[i];
        if (i == 0 || s->file != s[-1].file || s->block != s[-1].block) {
            if (ws_copy_jobs_append(&p->jobs, (struct ws_copy_job){.first = i}) < 0)
                return -ENOMEM;
            covered = 0;
        }
        struct ws_copy_job *j = &p->jobs.ptr[p->jobs.len - 1];
        uint64_t begin = s->block * WS_BLOCK_BYTES, left = size[s->file] - begin;
        covered += s->bytes;
        j->n++;
        j->whole = covered == (left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES);
    }
    return 0;
}

int ws_copy_plan_compile(struct ws_copy_plan *p, const uint64_t *size, size_t n_files, struct ws_error *err)
{
    assert(p->jobs.len == 0);
    for (size_t i = 0; i < p->pieces.len; i++) {
        assert(p->pieces.ptr[i].file < n_files);
        if (cut(p, i, size) < 0)
            return no_memory(err);
    }
    if (p->spans.len > 0)
        qsort(p->spans.ptr, p->spans.len, sizeof(p->spans.ptr[0]), by_place);
    p->only = NULL;
    if (make_jobs(p, size) < 0)
        return no_memory(err);
    for (size_t i = 0; i < p->jobs.len; i++) {
        struct ws_copy_job *j = &p->jobs.ptr[i];
        for (size_t k = 0, n; k < j->n; k += n) {
            n = ws_copy_plan_interleaved(&p->spans.ptr[j->first + k], j->n - k);
            j->most_interleaved = n > j->most_interleaved ? n : j->most_interleaved;
        }
    }
    return 0;
}

/* --- running --- */

static void seek(const struct ws_copy_plan *p, const struct ws_copy_span *s, struct ws_box_cursor *c)
{
    const struct ws_copy_piece *q = &p->pieces.ptr[s->piece];
    if (s->way == WS_COPY_HOST)
        ws_box_cursor_seek(c, &q->runs, p->run->sources[q->source], s->from, s->bytes);
    else
        ws_box_cursor_seek(c, s->way == WS_COPY_PACKED ? &q->detour->packed : &q->detour->packed_raw, s->at,
                           s->from, s->bytes);
}

static void put(const struct ws_copy_plan *p, const struct ws_copy_span *s, struct ws_box_cursor *c,
                struct ws_block_writer *writer)
{
    const struct ws_copy_piece *q = &p->pieces.ptr[s->piece];
    uint64_t overflows = ws_block_writer_put(writer, q->begin, c, ws_box_cursor_ready(c));
    if (overflows > 0 && p->run->overflows)
        atomic_fetch_add_explicit(&p->run->overflows[q->source], overflows, memory_order_relaxed);
}

static void put_all(const struct ws_copy_plan *p, const struct ws_copy_span *s,
                    struct ws_block_writer *writer)
{
    struct ws_box_cursor c;
    seek(p, s, &c);
    while (c.left > 0)
        put(p, s, &c, writer);
}

/* Merges spans that lie within one another (columns beside columns) in the file's order. */
static void put_merged(const struct ws_copy_plan *p, const struct ws_copy_span *s, size_t n,
                       struct ws_box_cursor *c, struct ws_block_writer *writer)
{
    for (size_t i = 0; i < n; i++)
        seek(p, &s[i], &c[i]);
    for (;;) {
        size_t next = n;
        uint64_t place = UINT64_MAX;
        for (size_t i = 0; i < n; i++) {
            uint64_t at = p->pieces.ptr[s[i].piece].begin + c[i].dst + c[i].at;
            if (c[i].left > 0 && at < place) {
                place = at;
                next = i;
            }
        }
        if (next == n)
            return;
        put(p, &s[next], &c[next], writer);
    }
}

static bool is_placed(const struct ws_copy_span *s)
{
    return s->way == WS_COPY_DIRECT || s->way == WS_COPY_GATHERED;
}

/* Hashes a block of which the device placed a part, once all of it is there. */
static void finish_block(const struct ws_copy_plan *p, struct ws_copy_job *j)
{
    const struct ws_copy_span *first = &p->spans.ptr[j->first], *last = first;
    for (size_t i = 1; i < j->n; i++)
        last = first[i].end > last->end ? &first[i] : last;
    if (!j->whole)
        return;
    j->hash = ws_hash(p->run->data[first->file] + first->first, last->end - first->first);
    j->hashed = true;
}

/* Without the memory for hashing in order, the block is still copied, and the agent hashes it. In a run that
 * only hashes it is left out. False: it has to be copied again, without comparing. */
static bool copy_block(const struct ws_copy_plan *p, struct ws_copy_job *j, unsigned worker, bool compares)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first], *end = s + j->n;
    const bool in_order = j->whole && !j->has_placed;
    bool right = true;
    struct ws_box_cursor *cursors =
        in_order && j->most_interleaved > 1 ? malloc(j->most_interleaved * sizeof(*cursors)) : NULL;
    struct ws_hasher *h = in_order && (cursors || j->most_interleaved == 1) ? ws_hasher_new() : NULL;
    struct ws_block_writer writer;
    ws_block_writer_init(&writer, p->run->data ? p->run->data[s->file] : NULL, h);
    if (h && compares)
        writer.compare = ws_copy_plan_compare_begin(p, j, h, worker);
    for (size_t n; s < end && (h || p->run->data); s += n) {
        n = h ? ws_copy_plan_interleaved(s, (size_t)(end - s)) : 1;
        assert(n <= 1 || cursors); /* n is at most j->most_interleaved */
        if (n > 1)
            put_merged(p, s, n, cursors, &writer);
        else if (!is_placed(s))
            put_all(p, s, &writer);
    }
    ws_block_writer_flush(&writer);
    j->hashed = h != NULL;
    if (h)
        j->hash = ws_hasher_digest(h);
    else if (j->has_placed && p->run->data)
        finish_block(p, j);
    if (writer.compare)
        right = ws_copy_plan_compare_end(p, j, writer.compare);
    ws_hasher_free(h);
    free(cursors);
    return right;
}

static void run_block(void *arg, size_t i, unsigned worker)
{
    const struct ws_copy_plan *p = arg;
    struct ws_copy_job *j = &p->jobs.ptr[p->round + i];
    if (!j->done && !copy_block(p, j, worker, p->run->compare))
        (void)copy_block(p, j, worker, false);
}

void ws_copy_plan_report_progress(const struct ws_copy_plan *p, size_t n_jobs)
{
    const struct ws_copy_plan_run *run = p->run;
    if (run->progress)
        run->progress(run->progress_arg, n_jobs * WS_BLOCK_BYTES, p->jobs.len * WS_BLOCK_BYTES);
}

void ws_copy_plan_run_jobs(struct ws_copy_plan *p, size_t first, size_t n, struct ws_workers *workers)
{
    size_t done_later = 0; /* done already */
    p->round = first;
    ws_workers_run_indexed(workers, run_block, p, n);
    for (size_t i = first + n; p->run->progress && p->n_done > 0 && i < p->jobs.len; i++)
        done_later += p->jobs.ptr[i].done;
    ws_copy_plan_report_progress(p, first + n + done_later);
}

static int collect(const struct ws_copy_plan *p)
{
    int rc = ws_block_hashes_reserve(p->run->hashes, p->jobs.len);
    for (size_t i = 0; rc == 0 && i < p->jobs.len; i++) {
        const struct ws_copy_job *j = &p->jobs.ptr[i];
        const struct ws_copy_span *s = &p->spans.ptr[j->first];
        if (j->hashed)
            rc = ws_block_hashes_append(p->run->hashes, (struct ws_block_hash){s->file, s->block, j->hash});
    }
    return rc;
}

/* All sources are on the host. */
static void run_here(struct ws_copy_plan *p, struct ws_workers *workers)
{
    const unsigned n_workers = ws_workers_count(workers);
    const size_t batch = p->jobs.len / BATCHES + 1;
    const size_t step = p->run->some_done
                            ? (batch > BATCH_BLOCKS * n_workers ? batch : BATCH_BLOCKS * n_workers)
                        : p->run->progress ? ROUND_BLOCKS * n_workers
                                           : p->jobs.len;
    for (size_t i = 0; i < p->spans.len; i++)
        p->spans.ptr[i].way = WS_COPY_HOST;
    for (size_t at = 0, n; at < p->jobs.len; at += n) {
        n = p->jobs.len - at < step ? p->jobs.len - at : step;
        for (size_t i = at; i < at + n; i++)
            p->jobs.ptr[i].has_placed = false;
        ws_copy_plan_run_jobs(p, at, n, workers);
        if (p->run->some_done)
            p->run->some_done(p->run->some_done_arg);
    }
}

int ws_copy_plan_run(struct ws_copy_plan *p, const struct ws_copy_plan_run *run, struct ws_workers *workers,
                     struct ws_error *err)
{
    int rc = 0;
    p->run = run;
    p->n_done = 0;
    for (size_t i = 0; i < p->jobs.len; i++)
        p->jobs.ptr[i].done = false;
    if (run->d2h)
        rc = ws_copy_plan_run_device(p, workers, err);
    else
        run_here(p, workers);
    if (rc == 0 && collect(p) < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for the hashes of a copy");
    p->run = NULL;
    return rc;
}

void ws_copy_plan_free(struct ws_copy_plan *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->pieces.len; i++)
        free(p->pieces.ptr[i].detour);
    ws_copy_pieces_reset(&p->pieces);
    ws_copy_spans_reset(&p->spans);
    ws_copy_jobs_reset(&p->jobs);
    free(p);
}
