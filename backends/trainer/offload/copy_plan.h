/* Copy plan: one rank's pieces as copy jobs, one for each block. A block that this rank fills alone is
 * copied, converted and hashed in one pass, by all threads.
 *
 * A run without memory to write to only hashes: so an audit reads a rank's replicas.
 *
 * A plan is compiled once for each registration, because sorting tens of thousands of pieces takes longer
 * than copying small ones. From step to step only the sources' addresses change. One thread at a time; a run
 * uses the workers that it is given. */
#ifndef WS_TRAINER_OFFLOAD_COPY_PLAN_H
#define WS_TRAINER_OFFLOAD_COPY_PLAN_H
#include "backends/trainer/offload/compare.h"
#include "backends/trainer/offload/d2h.h"
#include "backends/trainer/offload/history.h"
#include "backends/trainer/offload/line_map.h"
#include "backends/trainer/offload/shadow.h"
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/simd/box.h"
#include <stdatomic.h>
#include <stdbool.h>

struct ws_block_hash {
    size_t file, block;
    uint64_t hash;
};
WS_VECTOR(ws_block_hashes, struct ws_block_hash);
/* Blocks [first, first + n) of a file. */
struct ws_block_range {
    size_t first, n;
};
/* What one device contributes to deltas. */
struct ws_copy_plan_device_state {
    struct ws_shadow *shadow; /* begun */
    struct ws_compare
        *compare; /* made once the shadow's blocks are known; NULL: not yet, or there are none */
    char why[WS_ERROR_TEXT / 2]; /* no block has a shadow */
};
/* A run that copies what has changed since the last version, instead of everything. */
struct ws_copy_plan_delta {
    struct ws_copy_plan_device_state *devices;
    size_t n_devices;
    struct ws_history *history;              /* of all devices */
    struct ws_version_id slot;               /* what the files' memory holds; no lineage: unknown */
    struct ws_element_widths *const *widths; /* by file; NULL: none of its blocks has a shadow */
    struct ws_copy_plan_scratch *scratch;    /* of the workers; made when it is needed */
    uint64_t copied_bytes, whole_bytes; /* copied to the host for such blocks: all, and as whole blocks */
    uint64_t patched_bytes;             /* of blocks that were not copied whole */
};
void ws_copy_plan_scratch_free(struct ws_copy_plan_scratch *t); /* NULL is fine */

/* A run from host memory that compares with the version before while it copies. Blocks are numbered through all files. */
struct ws_copy_plan_compare {
    const unsigned char *const *base; /* by file: its memory in that version; NULL: it is not compared */
    struct ws_element_widths *const *widths; /* by file; NULL: it is not compared */
    const size_t *first_block;               /* by file: the number of its first block */
    uint64_t *hashes;                        /* by block: of what was written, where the history has it */
    struct ws_line_map *lines;               /* begun */
    struct ws_history *history;              /* begun */
    const uint64_t *base_hashes;             /* by block: of its bytes in that version, where base_hashed */
    const bool *base_hashed;
    struct ws_copy_plan_compare_scratch *scratch; /* of the run's workers */
    unsigned check_every, check; /* of so many blocks one is read back, and another one for the next number */
    /* added to: blocks that were written by lines and whole; changed elements; compared bytes; blocks that were read back,
     * and had other bytes than the source */
    atomic_size_t n_lines, n_whole;
    _Atomic uint64_t changed, bytes;
    atomic_size_t wrong;
};
struct ws_copy_plan_compare_scratch *ws_copy_plan_compare_new(unsigned n_workers); /* NULL: no memory */
void ws_copy_plan_compare_free(struct ws_copy_plan_compare_scratch *t);            /* NULL is fine */

/* What one run works on. Everything is borrowed while it lasts. */
struct ws_copy_plan_run {
    unsigned char *const *data;           /* by file: its memory; NULL: blocks are only hashed */
    const void *const *sources;           /* by source: its first element */
    struct ws_d2h *d2h;                   /* begun; NULL: all sources are on the host */
    const int *devices;                   /* with d2h, by source: its device; -1: the host */
    const bool *pinned;                   /* with d2h, by file: is its memory pinned? */
    struct ws_copy_plan_delta *delta;     /* with d2h; NULL: everything is copied */
    struct ws_copy_plan_compare *compare; /* without d2h, with data; NULL: nothing is compared */
    _Atomic uint64_t *overflows;          /* by source, added to; NULL: not counted */
    struct ws_block_hashes *hashes;       /* of blocks that were filled whole, appended */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* on the calling thread; may be NULL */
    void *progress_arg;
    void (*some_done)(
        void *arg); /* on the calling thread, now and then and at the end, while no other runs; may be NULL */
    void *some_done_arg;
};
struct ws_copy_plan;

WS_MUST_USE int ws_copy_plan_new(struct ws_copy_plan **out, struct ws_error *err);
/* Adds a box of the tensor that begins at that byte of a file; it is copied from sources[source]. -ENOMEM. */
WS_MUST_USE int ws_copy_plan_add(struct ws_copy_plan *p, size_t file, uint64_t begin,
                                 const struct ws_box *box, size_t source, struct ws_error *err);
/* Adds contiguous bytes of sources[source]. */
WS_MUST_USE int ws_copy_plan_add_bytes(struct ws_copy_plan *p, size_t file, uint64_t begin, uint64_t bytes,
                                       size_t source, struct ws_error *err);
/* Before compile: restricts the plan to these blocks of each file; by_file is borrowed until compile. */
void ws_copy_plan_restrict(struct ws_copy_plan *p, const struct ws_block_range *by_file);
/* Everything is added, and nothing of it overlaps. size: of the files. */
WS_MUST_USE int ws_copy_plan_compile(struct ws_copy_plan *p, const uint64_t *size, size_t n_files,
                                     struct ws_error *err);
WS_MUST_USE int ws_copy_plan_run(struct ws_copy_plan *p, const struct ws_copy_plan_run *run,
                                 struct ws_workers *workers, struct ws_error *err);
void ws_copy_plan_free(struct ws_copy_plan *p); /* NULL is fine */

#endif
