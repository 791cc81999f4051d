/* A plan's inside, shared by its files: copy_plan (compiling; running on the CPU), copy_plan_device (the way
 * of what lies on a GPU). */
#ifndef WS_TRAINER_OFFLOAD_COPY_PLAN_STATE_H
#define WS_TRAINER_OFFLOAD_COPY_PLAN_STATE_H
#include "backends/trainer/offload/copy_plan.h"
#include <stdbool.h>

/* Of a piece on a GPU: the same box once it is on the host, and how it comes there (ws_runs_raw). */
struct detour {
    struct ws_runs packed, packed_raw, raw;
};
struct piece {
    struct ws_runs runs;
    size_t file, source;
    uint64_t begin;        /* the tensor's, in the file */
    struct detour *detour; /* NULL: it was on the host so far */
};

enum way {
    WAY_HOST,     /* the CPU copies it from its source */
    WAY_DIRECT,   /* it comes to its place by copies of the device, */
    WAY_GATHERED, /* or by a kernel and a copy */
    WAY_PACKED,   /* the CPU copies it from where a kernel, */
    WAY_RAW       /* or copies have brought it */
};
/* The part of a piece that lies in one block. */
struct span {
    size_t piece, file, block;
    uint64_t from, bytes; /* among the piece's bytes */
    uint64_t first, end;  /* in the file: its first byte, and behind its last one */
    /* while it runs */
    enum way way;
    const unsigned char *at; /* PACKED, RAW: where the piece's first byte would be */
};
/* One block: [first, first + n) of the sorted spans. */
struct job {
    size_t first, n, widest; /* widest: how many are entangled at most */
    bool whole;              /* they fill it */
    bool lands;              /* while it runs: some of it comes to its place by itself */
    bool kept;               /* likewise: it went by way of a device's own memory, and is through */
    bool hashed;
    uint64_t hash;
};

struct ws_copy_plan {
    struct piece *pieces;
    size_t n_pieces, cap_pieces;
    struct span *spans;
    size_t n_spans, cap_spans;
    struct job *jobs;
    size_t n_jobs;
    const struct ws_block_range *only; /* while it is compiled: by file; NULL: all */
    /* while it runs */
    size_t round;  /* first job of this round */
    size_t n_kept; /* jobs */
    const struct ws_copy_plan_run *run;
};

/* Of a span: the device of its source, -1: the host; its source's first element; where its tensor begins. */
static inline int ws_copy_plan_device(const struct ws_copy_plan *p, const struct span *s)
{
    return p->run->devices[p->pieces[s->piece].source];
}
static inline const unsigned char *ws_copy_plan_source(const struct ws_copy_plan *p, const struct span *s)
{
    return p->run->sources[p->pieces[s->piece].source];
}
static inline unsigned char *ws_copy_plan_tensor(const struct ws_copy_plan *p, const struct span *s)
{
    return p->run->data[s->file] + p->pieces[s->piece].begin;
}

/* How many spans from the first on lie within another's stretch. */
size_t ws_copy_plan_entangled(const struct span *s, size_t n);
/* The CPU's part of jobs [first, first + n). */
void ws_copy_plan_work(struct ws_copy_plan *p, size_t first, size_t n, struct ws_workers *workers);
/* Does the kernel take the span? */
bool ws_copy_plan_takes(const struct ws_copy_plan *p, const struct span *s, enum ws_gather_form form);
/* Tells how far the run is: so many jobs are through. */
void ws_copy_plan_tell(const struct ws_copy_plan *p, size_t n_jobs);
/* The jobs whose blocks are kept, of a run with a delta. */
WS_MUST_USE int ws_copy_plan_run_delta(struct ws_copy_plan *p, struct ws_workers *workers,
                                       struct ws_error *err);
/* The jobs that a device can hash by itself, of a run that only hashes; the others are left. */
WS_MUST_USE int ws_copy_plan_run_hashes(struct ws_copy_plan *p, struct ws_error *err);
/* All of it, where some sources are on GPUs. */
WS_MUST_USE int ws_copy_plan_run_device(struct ws_copy_plan *p, struct ws_workers *workers,
                                        struct ws_error *err);

#endif
