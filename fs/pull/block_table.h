/* Block table: which blocks of a version are missing, on their way or here, and which are fetched next. An extent is a run
 * of missing blocks of a file, all of one stripe (fs/store/parents.h; without parents all blocks are of stripe 0). The
 * selection's lock of the pull guards it (source_select.h). */
#ifndef WS_FS_PULL_BLOCK_TABLE_H
#define WS_FS_PULL_BLOCK_TABLE_H
#include "fs/store/state.h"

#define WS_EXTENT_BLOCKS 4

enum ws_block_state { WS_BLOCK_MISSING, WS_BLOCK_TAKEN, WS_BLOCK_HERE };

struct ws_block {
    unsigned char state, tries;
};

/* Where the search for the next missing block continues. */
struct ws_block_cursor {
    enum { SIDECARS, HEADERS, REST, END } phase;
    size_t file, block;
};

struct ws_extent {
    size_t file, first, n;
    unsigned stripe;
};

struct ws_block_table {
    struct ws_version *version; /* borrowed */
    const struct ws_manifest *manifest;
    unsigned n_lanes;   /* that share it; set by the caller */
    unsigned n_stripes; /* 1: there are none */
    size_t n_blocks;    /* of all files */
    size_t *first;      /* by file: the number of its first block, over all files */
    /* guarded by the selection's lock */
    struct ws_block **blocks; /* by file */
    size_t n_missing, n_left;
    struct ws_block_cursor next[WS_FANOUT_STRIPES];
};

/* The stripe of a block: the same at every mount. number: among all n_blocks of the version, file by file. */
unsigned ws_block_stripe(size_t number, size_t n_blocks, unsigned n_stripes);
/* What is here already is HERE. Without any lock. -ENOMEM: it is to be released all the same. */
WS_MUST_USE int ws_block_table_init(struct ws_block_table *t, struct ws_version *v);
void ws_block_table_release(struct ws_block_table *t);
/* Claims missing blocks: of extent->stripe, then of the others. False: none is missing. */
bool ws_block_table_claim_next(struct ws_block_table *t, struct ws_extent *extent);
/* The first extent of the stripe that a waiter waits for. Those who wait for the whole version wait for its parts. With
 * store->lock, too. */
bool ws_block_table_claim_awaited(struct ws_block_table *t, unsigned stripe, struct ws_extent *extent);
/* Those of the extent's blocks that have not come are missing again. */
void ws_block_table_give_back(struct ws_block_table *t, const struct ws_extent *extent);

#endif
