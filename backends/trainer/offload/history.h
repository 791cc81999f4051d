/* History: what changed in a rank's blocks from one of its versions to the next, for the last few versions. A
 * slot that holds an older version is patched with it instead of filled.
 *
 * The versions follow each other: each set of changes begins where the one before ended. What a chain of
 * changes makes of a block must still be proved by its hash. It belongs to one publisher; several threads at
 * once may record different blocks. */
#ifndef WS_TRAINER_OFFLOAD_HISTORY_H
#define WS_TRAINER_OFFLOAD_HISTORY_H
#include "transports/base/version_id.h"
#include "transports/delta/patcher.h"
#include "transports/delta/record.h"
#include <jansson.h>

struct ws_history;
/* For n blocks, by number. NULL: no memory. */
struct ws_history *ws_history_new(size_t n_blocks);
void ws_history_free(struct ws_history *r); /* NULL is fine */

/* Begins a version that is made from base. Drops a version that was begun before and not committed, and
 * everything where base is not the version that was committed last. base without a lineage: the version is
 * made from none, and nothing can be recorded. -ENOMEM. */
WS_MUST_USE int ws_history_begin(struct ws_history *r, const struct ws_version_id *base,
                                 struct ws_error *err);
/* How block i was made from base's bytes, which have base_hash: by the record, whose ownership passes here,
 * or without a change (NULL). A block that is not recorded is unknown. */
void ws_history_record(struct ws_history *r, size_t i, struct ws_delta_record *record, uint64_t base_hash);
/* How many sets of changes lead from that version to the begun one; 0: none do. */
size_t ws_history_length_from(const struct ws_history *r, const struct ws_version_id *version);
/* Is block i known in the last n sets, the begun one left aside? */
bool ws_history_is_complete(const struct ws_history *r, size_t i, size_t n);
/* The records of block i in the last n sets, oldest first. false: in one of them it is unknown. */
bool ws_history_chain(const struct ws_history *r, size_t i, size_t n,
                      const struct ws_delta_record *chain[WS_MAX_DELTA_CHAIN]);
/* The begun version is committed. Keeps the youngest sets, at most this many and of this many bytes. */
void ws_history_commit(struct ws_history *r, const struct ws_version_id *version, size_t most_sets,
                       uint64_t most_bytes);

/* Is block i known in the begun version, and was not when that was exported last? */
bool ws_history_is_new(const struct ws_history *r, size_t i);
/* The begun version's records of such blocks, back to back and followed by 8 zeros, in a sealed file, and the list of
 * them: [[file, block, offset, bytes, "hash of the base's block"], ..]. *fd -1: there are none. The caller owns both. No
 * thread records meanwhile. */
WS_MUST_USE int ws_history_export(struct ws_history *r, json_t **list, int *fd, struct ws_error *err);

#endif
