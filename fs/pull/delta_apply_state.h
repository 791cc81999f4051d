/* What a delta apply is made of, for delta_apply.c, delta_patch.c and delta_lanes.c only. */
#ifndef WS_FS_PULL_DELTA_APPLY_STATE_H
#define WS_FS_PULL_DELTA_APPLY_STATE_H
#include "fs/pull/delta_apply.h"
#include "fs/pull/delta_plan.h"
#include "fs/pull/signatures.h"
#include "fs/pull/undo.h"
#include "fs/store/part_view.h"

#define WS_DELTA_NO_FILE SIZE_MAX

struct ws_delta_apply {
    struct ws_source_select *selection;
    struct ws_version *version;
    const struct ws_manifest *manifest;
    struct ws_delta_plan plan;
    struct ws_delta *chain[WS_MAX_DELTA_CHAIN]; /* by step */
    struct ws_delta_proof
        *proofs[WS_MAX_DELTA_CHAIN]; /* by step, where versions must be signed; NULL: none came */
    size_t *base_file;               /* of each file: its number in the base, or WS_DELTA_NO_FILE */
    atomic_uchar **tried;            /* a byte a block: it was patched, or that failed */
    char *only;                      /* of which blocks records are fetched (delta/filter.h); NULL: of all */
    const char *transport;           /* guarded by selection->lock */
    _Atomic(uint64_t) patched_bytes, patched_ns;
    _Atomic(uint64_t) n_verified;   /* records of the last delta that have made their block, by its hash */
    _Atomic(uint64_t) budget_bytes; /* for records that are still to come */
    pthread_mutex_t budget_lock;    /* for borrowing more; taken alone */
    uint64_t borrowed;              /* from the cache, beyond delta-cache=; guarded by budget_lock */
    pthread_mutex_t lock;
    struct ws_error err;             /* why a delta did not come; guarded by lock */
    struct ws_undo *undo;            /* NULL: nothing is kept */
    struct ws_delta_worker *workers; /* by lane, and after the lanes by worker */
};

/* What a thread patches with. */
struct ws_delta_worker {
    struct ws_patcher *patcher; /* NULL: it has not patched yet */
    unsigned char *made;        /* a block, before it is written to the one copy; NULL as well */
    unsigned char *was;         /* what it was, of a part, whose bytes lie in the whole's; NULL as well */
    struct ws_part_runs *runs;  /* where a part's block lies, which is not made aside; NULL as well */
};

#endif
