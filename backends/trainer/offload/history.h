/* Records: what changed in a rank's blocks from one of its versions to the next, for the last few of them, so
 * that a slot that holds an older one is patched instead of filled.
 *
 * The versions follow each other: each set begins where the one before has ended. What a chain makes of a
 * block must still be proved by its hash. One publisher's; different blocks may be noted by several threads
 * at once. */
#ifndef WS_TRAINER_OFFLOAD_HISTORY_H
#define WS_TRAINER_OFFLOAD_HISTORY_H
#include "transports/base/version_id.h"
#include "transports/delta/patcher.h"
#include "transports/delta/record.h"
#include <jansson.h>

struct ws_records;
/* For n blocks, by number. NULL: no memory. */
struct ws_records *ws_records_new(size_t n_blocks);
void ws_records_free(struct ws_records *r); /* NULL is fine */

/* A version begins, made from base; one that was begun before and not committed goes, and so does all where
 * base is not the version that was committed last. base without a run: of no version, nothing can be noted.
 * -ENOMEM. */
WS_MUST_USE int ws_records_begin(struct ws_records *r, const struct ws_mark *base, struct ws_error *err);
/* How block i came from base's bytes, whose hash was given: by the record, which is taken over, or not at all
 * (NULL). What is never noted nobody knows. */
void ws_records_note(struct ws_records *r, size_t i, struct ws_delta_record *record, uint64_t base_hash);
/* How many sets lead from that version to the begun one; 0: they do not. */
size_t ws_records_from(const struct ws_records *r, const struct ws_mark *version);
/* Is block i known in the last n sets but the begun one? */
bool ws_records_leads(const struct ws_records *r, size_t i, size_t n);
/* Those of block i, of the last n sets. false: somewhere it is not known. */
bool ws_records_chain(const struct ws_records *r, size_t i, size_t n,
                      const struct ws_delta_record *chain[WS_MAX_CHAIN]);
/* The begun version is committed. Keeps at most so many sets and bytes, the youngest. */
void ws_records_commit(struct ws_records *r, const struct ws_mark *version, size_t most_sets,
                       uint64_t most_bytes);

/* The begun version's records, back to back and 8 zeros in a sealed file, and the list of them: [[file,
 * block, offset, bytes, "hash of the base's block"], ..]. *fd -1: there are none. */
WS_MUST_USE int ws_records_export(const struct ws_records *r, json_t **list, int *fd, struct ws_error *err);

#endif
