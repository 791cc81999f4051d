/* A copy plan's inside, shared by its files: copy_plan (compiling, running on the CPU), copy_plan_device
 * (spans whose sources are on GPUs), copy_plan_delta (blocks that have a shadow), copy_plan_compare (blocks
 * that are compared while they are copied), copy_plan_hash (blocks that are only hashed). */
#ifndef WS_TRAINER_OFFLOAD_COPY_PLAN_STATE_H
#define WS_TRAINER_OFFLOAD_COPY_PLAN_STATE_H
#include "backends/trainer/offload/copy_plan.h"
#include <stdbool.h>

/* For a piece on a GPU: the same box once it is on the host, and how it gets there (ws_box_extents_raw). */
struct ws_copy_detour {
    struct ws_box_extents packed, packed_raw, raw;
};
struct ws_copy_piece {
    struct ws_box_extents runs;
    size_t file, source;
    uint64_t begin;                /* of the tensor, in the file */
    struct ws_copy_detour *detour; /* NULL: its source was always on the host */
};

/* How a span gets to its place. */
enum ws_copy_way {
    WS_COPY_HOST,     /* the CPU copies it from its source */
    WS_COPY_DIRECT,   /* copies of the device put it there */
    WS_COPY_GATHERED, /* a kernel and a copy put it there */
    WS_COPY_PACKED,   /* a kernel and a copy bring it to the host, and the CPU puts it there */
    WS_COPY_RAW       /* copies bring its elements to the host, and the CPU puts them there */
};
/* The part of a piece that lies in one block. */
struct ws_copy_span {
    size_t piece, file, block;
    uint64_t from, bytes; /* among the piece's bytes */
    uint64_t first, end;  /* in the file: its first byte, and the one behind its last */
    /* during a run */
    enum ws_copy_way way;
    const unsigned char *at; /* PACKED, RAW: where the piece's first byte would be */
};
/* One block: [first, first + n) of the sorted spans. */
struct ws_copy_job {
    size_t first, n, most_interleaved; /* most_interleaved: how many spans lie within one another at most */
    bool whole;                        /* the spans fill the block */
    bool has_placed;                   /* during a run: the device puts some of its spans in their place */
    bool done;                         /* during a run: it went by way of the device's own memory */
    bool hashed;
    uint64_t hash;
};

WS_VECTOR(ws_copy_pieces, struct ws_copy_piece);
WS_VECTOR(ws_copy_spans, struct ws_copy_span);
WS_VECTOR(ws_copy_jobs, struct ws_copy_job);

struct ws_copy_plan {
    struct ws_copy_pieces pieces;
    struct ws_copy_spans spans;
    struct ws_copy_jobs jobs;
    const struct ws_block_range *only; /* while it is compiled, by file; NULL: all blocks */
    /* during a run */
    size_t round;  /* the first job of this round */
    size_t n_done; /* jobs that are done by way of a device's memory */
    const struct ws_copy_plan_run *run;
};

/* Of a span: the device of its source (-1: the host), its source's first element, and where its tensor
 * begins. */
static inline int ws_copy_plan_device(const struct ws_copy_plan *p, const struct ws_copy_span *s)
{
    return p->run->devices[p->pieces.ptr[s->piece].source];
}
static inline const unsigned char *ws_copy_plan_source(const struct ws_copy_plan *p,
                                                       const struct ws_copy_span *s)
{
    return p->run->sources[p->pieces.ptr[s->piece].source];
}
static inline unsigned char *ws_copy_plan_tensor(const struct ws_copy_plan *p, const struct ws_copy_span *s)
{
    return p->run->data[s->file] + p->pieces.ptr[s->piece].begin;
}

/* How many spans, from the first on, lie within one another's extent. */
size_t ws_copy_plan_interleaved(const struct ws_copy_span *s, size_t n);
/* Runs the CPU's share of jobs [first, first + n) on all workers. */
void ws_copy_plan_run_jobs(struct ws_copy_plan *p, size_t first, size_t n, struct ws_workers *workers);
/* Can a kernel of its device gather the span in this form? */
bool ws_copy_plan_can_gather(const struct ws_copy_plan *p, const struct ws_copy_span *s,
                             enum ws_gather_form form);
/* Calls the run's progress function: so many jobs are done. */
void ws_copy_plan_report_progress(const struct ws_copy_plan *p, size_t n_jobs);
/* Of a run with a delta: the jobs whose blocks have a shadow. */
WS_MUST_USE int ws_copy_plan_run_delta(struct ws_copy_plan *p, struct ws_workers *workers,
                                       struct ws_error *err);
/* Of a run that compares. begin: the job's pieces are to be put into what it returns; NULL: the block is not compared.
 * end: they were, and the job has its hash; false: the block has to be written again, whole. */
struct ws_copy_compare *ws_copy_plan_compare_begin(const struct ws_copy_plan *p, const struct ws_copy_job *j,
                                                   struct ws_hasher *h, unsigned worker);
bool ws_copy_plan_compare_end(const struct ws_copy_plan *p, const struct ws_copy_job *j,
                              struct ws_copy_compare *c);
/* Of a run that only hashes: the jobs that a device can hash by itself. It leaves the others. */
WS_MUST_USE int ws_copy_plan_run_hashes(struct ws_copy_plan *p, struct ws_error *err);
/* All jobs, where some sources are on GPUs. */
WS_MUST_USE int ws_copy_plan_run_device(struct ws_copy_plan *p, struct ws_workers *workers,
                                        struct ws_error *err);

#endif
