/* Derived blocks: a view's version is finished block by block. As soon as all bytes of a block are written it is hashed, and
 * compared with the version before, while it is in the cache: a pass over both versions afterwards would cost as much as
 * quantising. */
#ifndef WS_TRAINER_AGENT_DERIVE_BLOCKS_H
#define WS_TRAINER_AGENT_DERIVE_BLOCKS_H
#include "backends/trainer/agent/core/slot.h"

struct ws_derived_blocks;
/* What it is compared with. */
struct ws_derived_base {
    const struct ws_slot_lease *lease; /* the caller's, as long as the blocks are; NULL: with nothing */
    int level;                         /* of compression: ws_delta_record_make */
    uint64_t most_bytes;               /* of records: beyond, it is compared no further */
};
/* slot: WRITING, and of this thread and its workers alone until the blocks are freed; the headers of its safetensors files
 * are written. NULL: no memory. */
struct ws_derived_blocks *ws_derived_blocks_new(struct ws_slot *slot, const struct ws_derived_base *base,
                                                unsigned n_workers);
/* Bytes [begin, end) of a file are written; each byte is once. Any threads; worker: as ws_workers_run_indexed's. */
void ws_derived_blocks_written(struct ws_derived_blocks *b, size_t file, uint64_t begin, uint64_t end,
                               unsigned worker);
/* All are written: the slot has all hashes, and the records from now on. */
void ws_derived_blocks_end(struct ws_derived_blocks *b);
void ws_derived_blocks_free(struct ws_derived_blocks *b); /* NULL is fine */

#endif
