/* Line map: which cache lines of a rank's blocks changed from one of its versions to the next, a bit a line, for the
 * last few versions. A slot that holds an older version has then only to be written where it differs from the new one.
 *
 * A wrong map would leave old bytes in a slot under the right hash. So it is used only where each of these is certain:
 *   - the slot holds all of a version, by its number, lineage and digest. The agent says so; it knows that from when it
 *     announced the version, and forgets it when the slot is begun anew, whatever becomes of that;
 *   - each set of lines leads from the version, by these three, that the next older one ends with;
 *   - the block was compared in each of these versions, by this publisher in this registration, from beginning to end.
 * Everything else is not known, and then all lines are written. A version that is not committed leaves nothing.
 *
 * It belongs to one publisher; several threads at once may work on different blocks. */
#ifndef WS_TRAINER_OFFLOAD_LINE_MAP_H
#define WS_TRAINER_OFFLOAD_LINE_MAP_H
#include "backends/trainer/offload/copy_compare.h"
#include "transports/base/version_id.h"

#define WS_LINE_MAP_SETS 4 /* a slot holds a version that is at most so many before */
#define WS_DIGEST_CHARS  32

/* A version and its bytes. id without a lineage: not known. */
struct ws_version_bytes {
    struct ws_version_id id;
    char digest[WS_DIGEST_CHARS + 1];
};
bool ws_version_bytes_equal(const struct ws_version_bytes *a, const struct ws_version_bytes *b);

struct ws_line_map;
/* For n blocks, by number. NULL: no memory. A set takes a 512th of the blocks' bytes. */
struct ws_line_map *ws_line_map_new(size_t n_blocks);
void ws_line_map_free(struct ws_line_map *m); /* NULL is fine */

/* Begins a version that is compared with base, and goes into a slot that holds `slot`. Drops what does not lead to base,
 * and a version that was begun before and not committed. Either may be not known. -ENOMEM: nothing is known. */
WS_MUST_USE int ws_line_map_begin(struct ws_line_map *m, const struct ws_version_bytes *base,
                                  const struct ws_version_bytes *slot);
/* The lines of block i in which the slot may differ from base, WS_LINE_WORDS words into `out`; returns how many they are.
 * -ENODATA: not known. */
int ws_line_map_stale(const struct ws_line_map *m, size_t i, uint64_t *out);
/* Words for the lines of block i that differ from base, zero; they are known from record on. NULL: no memory, or no
 * version is begun. */
uint64_t *ws_line_map_words(struct ws_line_map *m, size_t i);
void ws_line_map_record(struct ws_line_map *m, size_t i);
/* The begun version is committed. Its digest is known when it is the base of the next. */
void ws_line_map_commit(struct ws_line_map *m, const struct ws_version_id *version);
void ws_line_map_drop(struct ws_line_map *m); /* everything: nothing is known */

#endif
