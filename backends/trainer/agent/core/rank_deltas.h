/* Rank deltas: what changed in a rank's blocks, as the rank found out itself. The rank gives them to the agent
 * with its commit, in a file in memory. All of it is input: the file must be sealed, so that it cannot change;
 * lists are checked when they are read, and records when they are used. A record is used only where the blocks
 * have, on both sides, the very hashes that it was made for. */
#ifndef WS_TRAINER_AGENT_CORE_RANK_DELTAS_H
#define WS_TRAINER_AGENT_CORE_RANK_DELTAS_H
#include "transports/base/workers.h"
#include "transports/delta/delta.h"
#include <jansson.h>

struct ws_rank_deltas; /* of one rank, or several in a list */
/* list: as ws_history_export makes it; fd: the file, borrowed. No record is longer than a block. -EINVAL:
 * what is wrong; -ENOMEM. */
WS_MUST_USE int ws_rank_deltas_read(struct ws_rank_deltas **out, const json_t *list, int fd,
                                    struct ws_error *err);
/* Is each for a block of the manifest that has been hashed (a byte a block), and shorter than it? -EINVAL. */
WS_MUST_USE int ws_rank_deltas_check(const struct ws_rank_deltas *r, const struct ws_manifest *m,
                                     unsigned char *const *hashed, struct ws_error *err);
/* Puts them before others (NULL: none). */
struct ws_rank_deltas *ws_rank_deltas_join(struct ws_rank_deltas *r, struct ws_rank_deltas *others);
void ws_rank_deltas_free(struct ws_rank_deltas *r); /* all of the list; NULL is fine */

/* Adds to a growing delta what leads from base to target. The rest is left out: it was made from another
 * base, or is no record. Stops at most_bytes. level: of ws_delta_record_make. workers NULL: on this thread. Returns how many were added. */
size_t ws_rank_deltas_add(const struct ws_rank_deltas *r, struct ws_delta *d, const struct ws_manifest *base,
                          const struct ws_manifest *target, int level, uint64_t most_bytes,
                          struct ws_workers *workers);

#endif
