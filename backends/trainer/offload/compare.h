/* Compare: finds on a device what the new bytes of blocks have changed in their shadows, hashes the new bytes
 * there, and copies to the host what the caller asks for. Work goes in rounds, of which several are under way
 * at once.
 *
 * The life of a round:
 *   begin    blocks are added; another queue puts their new bytes where ws_compare_add says
 *   send     the blocks are hashed and compared on the device
 *   counts   the host knows how much has changed in each block
 *   copy     the changes are fetched, and those blocks whole that the caller wants whole
 *   wait     all of it is on the host
 * It belongs to one publisher; one thread at a time. Only what a round has found may be encoded by several
 * threads at once. */
#ifndef WS_TRAINER_OFFLOAD_COMPARE_H
#define WS_TRAINER_OFFLOAD_COMPARE_H
#include "backends/trainer/offload/d2h.h"
#include "transports/format/element_widths.h"

#define WS_COMPARE_ROUNDS WS_D2H_ROUNDS
#define WS_COMPARE_BLOCKS 16 /* of a round, at most */

struct ws_compare;
/* blocks: how many a round has at most. -ENOMEM; -ENOTSUP: the device has no kernels. */
WS_MUST_USE int ws_compare_new(struct ws_compare **out, int device, unsigned blocks, struct ws_error *err);
void ws_compare_free(struct ws_compare *c);                   /* NULL is fine */
uint64_t ws_compare_device_bytes(const struct ws_compare *c); /* that it takes of the device's memory */

/* Begins a round. The caller has waited for the earlier round in the same place. */
void ws_compare_begin_round(struct ws_compare *c, unsigned round);
bool ws_compare_is_full(const struct ws_compare *c); /* the round takes no more blocks */
/* Adds a block of len bytes; its number is how many were added before it. *bytes: where its new bytes must be
 * put. That is memory of the round where they are compared or shadow is NULL (the block is hashed only), and
 * the shadow itself otherwise. */
WS_MUST_USE int ws_compare_add(struct ws_compare *c, unsigned char *shadow, uint32_t len, bool compare,
                               const struct ws_element_widths *w, uint64_t offset, unsigned char **bytes,
                               struct ws_error *err);
/* Queues the round's hashing and comparing, after d2h's round of the same number, which puts the new bytes
 * there and was sent. */
WS_MUST_USE int ws_compare_send(struct ws_compare *c, struct ws_d2h *d2h, unsigned round,
                                struct ws_error *err);
/* Waits until it is known how much has changed. */
WS_MUST_USE int ws_compare_wait_counts(struct ws_compare *c, unsigned round, struct ws_error *err);
/* Will the block's changes be there, so that it can be encoded? */
bool ws_compare_can_encode(const struct ws_compare *c, unsigned round, unsigned block);
/* Queues a copy of the whole block to dst, in pinned host memory. */
WS_MUST_USE int ws_compare_copy_whole(struct ws_compare *c, unsigned round, unsigned block,
                                      unsigned char *dst, struct ws_error *err);
/* Queues the copy of the changes; no block of the round is copied whole after it. */
WS_MUST_USE int ws_compare_copy_changes(struct ws_compare *c, unsigned round, struct ws_error *err);
/* Waits until all of the round is on the host. */
WS_MUST_USE int ws_compare_wait(struct ws_compare *c, unsigned round, struct ws_error *err);
uint64_t ws_compare_hash(const struct ws_compare *c, unsigned round, unsigned block);
/* Encodes the delta of a block whose changes are there, once; as ws_block_diff_encode. */
WS_MUST_USE int ws_compare_encode(const struct ws_compare *c, unsigned round, unsigned block,
                                  unsigned char *out, size_t *out_bytes, uint32_t *n_changed,
                                  struct ws_error *err);
/* Copies the whole block to dst and waits for it. The round was waited for, and no other has begun in its
 * place. */
WS_MUST_USE int ws_compare_copy_again(struct ws_compare *c, unsigned round, unsigned block,
                                      unsigned char *dst, struct ws_error *err);
/* After a failure: returns when all queued work is done or lost. */
void ws_compare_stop(struct ws_compare *c);

/* How many bytes were copied to the host since the last call, and how many of them as whole blocks. */
void ws_compare_copied_bytes(struct ws_compare *c, uint64_t *bytes, uint64_t *whole);

#endif
