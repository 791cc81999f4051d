/* Plan: one rank's pieces as copy jobs, block by block, so that a block which this rank fills alone is
 * copied, converted and hashed in one pass, on all threads.
 *
 * A run without memory to write to hashes only: that is how an audit reads a rank's replicas.
 *
 * It is compiled once a registration, since sorting tens of thousands of pieces takes longer than copying
 * small ones does; from step to step only the sources' addresses change. */
#ifndef WS_TRAINER_OFFLOAD_COPY_PLAN_H
#define WS_TRAINER_OFFLOAD_COPY_PLAN_H
#include "backends/trainer/offload/compare.h"
#include "backends/trainer/offload/d2h.h"
#include "backends/trainer/offload/history.h"
#include "backends/trainer/offload/shadow.h"
#include "transports/base/error.h"
#include "transports/base/workers.h"
#include "transports/simd/box.h"
#include <stdatomic.h>
#include <stdbool.h>

struct ws_block_hash {
    size_t file, block;
    uint64_t hash;
};
/* Blocks [first, first + n) of a file. */
struct ws_block_range {
    size_t first, n;
};
/* What one device keeps of the version before. */
struct ws_copy_plan_kept {
    struct ws_kept *kept;         /* begun */
    struct ws_comparer *comparer; /* made when it is known what is kept; NULL: not yet, or nothing is */
    char why[WS_ERROR_TEXT / 2];  /* nothing is */
};
/* What has changed since the last version instead of all of it. */
struct ws_copy_plan_delta {
    struct ws_copy_plan_kept *devices;
    size_t n_devices;
    struct ws_records *records;       /* of all of them */
    struct ws_mark slot;              /* what the files' memory holds; no run: nobody knows */
    struct ws_widths *const *widths;  /* by file; NULL: none of its blocks is kept */
    struct ws_copy_plan_tools *tools; /* of the workers; made when they are wanted */
    uint64_t came, whole;             /* to the host for kept blocks, in all and in whole blocks */
    uint64_t patched;                 /* bytes of blocks that did not come whole */
};
void ws_copy_plan_tools_free(struct ws_copy_plan_tools *t); /* NULL is fine */

/* What a run is about. */
struct ws_copy_plan_run {
    unsigned char *const *data;       /* a file's memory; NULL: blocks are hashed, and go nowhere */
    const void *const *sources;       /* a source's first element */
    struct ws_carrier *carrier;       /* begun; NULL: all sources are on the host */
    const int *devices;               /* with a carrier: by source, -1: on the host */
    const bool *pinned;               /* likewise, by file: is its memory pinned? */
    struct ws_copy_plan_delta *delta; /* with a carrier; NULL: all of it is copied */
    _Atomic uint64_t *overflows;      /* by source, added to; NULL: nobody asks */
    struct ws_block_hash **hashes;    /* of blocks that were filled whole, appended (realloc'ed) */
    size_t *n_hashes;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* on the calling thread; may be NULL */
    void *progress_arg;
};
struct ws_copy_plan;

WS_MUST_USE int ws_copy_plan_new(struct ws_copy_plan **out, struct ws_error *err);
/* A box of the tensor that begins at that byte of a file, out of sources[source]. -ENOMEM. */
WS_MUST_USE int ws_copy_plan_add(struct ws_copy_plan *p, size_t file, uint64_t begin,
                                 const struct ws_box *box, size_t source, struct ws_error *err);
/* Bytes, out of sources[source]. */
WS_MUST_USE int ws_copy_plan_add_bytes(struct ws_copy_plan *p, size_t file, uint64_t begin, uint64_t bytes,
                                       size_t source, struct ws_error *err);
/* Before compile: of each file these blocks only; borrowed until then. */
void ws_copy_plan_confine(struct ws_copy_plan *p, const struct ws_block_range *by_file);
/* All is added; what was added does not overlap. size: of the files. */
WS_MUST_USE int ws_copy_plan_compile(struct ws_copy_plan *p, const uint64_t *size, size_t n_files,
                                     struct ws_error *err);
WS_MUST_USE int ws_copy_plan_run(struct ws_copy_plan *p, const struct ws_copy_plan_run *run,
                                 struct ws_workers *workers, struct ws_error *err);
void ws_copy_plan_free(struct ws_copy_plan *p); /* NULL is fine */

#endif
