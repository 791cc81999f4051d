/* Comparer: finds out on a device what its blocks' new bytes have changed in the kept ones, and what hash
 * they have, and brings what is wanted of them to the host, in rounds, several of which are under way at
 * once.
 *
 * A round: blocks are added, whose bytes another queue puts where they were said to go; sent: hashed and
 * compared; counted: the host knows how much changed; brought: the changes are there, and the blocks that go
 * whole are in their place. One publisher's, by one thread at a time; what a round has found may be encoded
 * by several threads at once. */
#ifndef WS_TRAINER_OFFLOAD_COMPARE_H
#define WS_TRAINER_OFFLOAD_COMPARE_H
#include "backends/trainer/offload/d2h.h"
#include "transports/format/element_widths.h"

#define WS_COMPARER_ROUNDS WS_CARRIER_ROUNDS
#define WS_COMPARER_BLOCKS 16 /* of a round, at most */

struct ws_comparer;
/* blocks: that a round has at most. -ENOMEM, -ENOTSUP: no kernels. */
WS_MUST_USE int ws_comparer_new(struct ws_comparer **out, int device, unsigned blocks, struct ws_error *err);
void ws_comparer_free(struct ws_comparer *c);            /* NULL is fine */
uint64_t ws_comparer_bytes(const struct ws_comparer *c); /* of the device's memory */

/* A round begins; the one before in its place has been waited for. */
void ws_comparer_round(struct ws_comparer *c, unsigned round);
bool ws_comparer_full(const struct ws_comparer *c);
/* One more block of it, of len bytes. *bytes: where the new ones go: the kept ones' place, unless they are to
 * be compared; kept NULL: nothing is kept, they are hashed in the round's own memory. Its number is how many
 * were added before. */
WS_MUST_USE int ws_comparer_add(struct ws_comparer *c, unsigned char *kept, uint32_t len, bool compare,
                                const struct ws_widths *w, uint64_t offset, unsigned char **bytes,
                                struct ws_error *err);
/* All of the round is added; what puts the new bytes there is the carrier's round of the same number, which
 * was sent. */
WS_MUST_USE int ws_comparer_send(struct ws_comparer *c, struct ws_carrier *carrier, unsigned round,
                                 struct ws_error *err);
/* Waits until it is known how much changed. */
WS_MUST_USE int ws_comparer_count(struct ws_comparer *c, unsigned round, struct ws_error *err);
/* Will the block's changes be there, so that it can be encoded? */
bool ws_comparer_packs(const struct ws_comparer *c, unsigned round, unsigned block);
/* The block shall go whole to dst, in pinned host memory. */
WS_MUST_USE int ws_comparer_whole(struct ws_comparer *c, unsigned round, unsigned block, unsigned char *dst,
                                  struct ws_error *err);
/* The changes shall come; nothing goes whole any more. */
WS_MUST_USE int ws_comparer_bring(struct ws_comparer *c, unsigned round, struct ws_error *err);
/* Until all of it is there. */
WS_MUST_USE int ws_comparer_wait(struct ws_comparer *c, unsigned round, struct ws_error *err);
uint64_t ws_comparer_hash(const struct ws_comparer *c, unsigned round, unsigned block);
/* The delta of a block whose changes are there, once: as ws_diff_encode. */
WS_MUST_USE int ws_comparer_encode(const struct ws_comparer *c, unsigned round, unsigned block,
                                   unsigned char *out, size_t *out_bytes, uint32_t *n_changed,
                                   struct ws_error *err);
/* The block whole to dst, now; the round was waited for and no other has begun in its place. */
WS_MUST_USE int ws_comparer_again(struct ws_comparer *c, unsigned round, unsigned block, unsigned char *dst,
                                  struct ws_error *err);
/* Everything that is queued is through, or lost. */
void ws_comparer_stop(struct ws_comparer *c);

/* What came to the host since the last call: in all, and of it blocks that came whole. */
void ws_comparer_figures(struct ws_comparer *c, uint64_t *bytes, uint64_t *whole);

#endif
