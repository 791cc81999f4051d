/* Patcher: turns blocks of one version into blocks of a later one by a chain of records. All records of a
 * block are checked before a byte of it is written. One thread at a time uses a patcher. */
#ifndef WS_TRANSPORTS_DELTA_PATCHER_H
#define WS_TRANSPORTS_DELTA_PATCHER_H
#include "transports/delta/record.h"

#define WS_MAX_DELTA_CHAIN 8

struct ws_patcher;
struct ws_patcher *ws_patcher_new(void); /* NULL: no memory */
void ws_patcher_free(struct ws_patcher *p);
/* Applies the records of a chain, in order, to the block of len bytes at src, and stores the result at dst;
 * src NULL: the block is at dst. NULL in the chain: that delta does not change the block. *hash: XXH3-64 of
 * the result. -EBADMSG: a record is damaged, and dst is as it was. -ENOMEM. */
WS_MUST_USE int ws_patcher_block(struct ws_patcher *p, unsigned char *dst, const unsigned char *src,
                                 size_t len, const struct ws_delta_record *const *chain, size_t n,
                                 uint64_t *hash, struct ws_error *err);
/* The same for a block that is elsewhere (struct ws_delta_flow): parts of the result have been stored when this fails. */
WS_MUST_USE int ws_patcher_block_by(struct ws_patcher *p, const struct ws_delta_flow *flow, size_t len,
                                    const struct ws_delta_record *const *chain, size_t n, uint64_t *hash,
                                    struct ws_error *err);
/* The same for a block of len bytes that lies in runs, where it is changed. -EXDEV: an element lies in two of them. Nothing
 * was written when this fails. */
WS_MUST_USE int ws_patcher_block_runs(struct ws_patcher *p, const struct ws_delta_runs *runs, size_t len,
                                      const struct ws_delta_record *const *chain, size_t n, uint64_t *hash,
                                      struct ws_error *err);

#endif
