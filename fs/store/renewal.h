/* Renewal: fresh pages for the one copy of a model (one_copy.h) that is in parts.
 *
 * A reader may still have pages of it in a pipe or a socket (transports/memory/region.h). A block of a file has bytes of
 * several parts, which different threads patch at the same time. Before the first of them writes to a block, that gets
 * fresh pages with the same bytes, once. While it does, nobody reads it: who reads a block that is still due holds its
 * lock. The locks are few, taken in ascending order, and alone. */
#ifndef WS_FS_STORE_RENEWAL_H
#define WS_FS_STORE_RENEWAL_H
#include "transports/format/manifest.h"
#include "transports/memory/region.h"

struct ws_renewal;
/* NULL: no memory. No block is due. */
struct ws_renewal *ws_renewal_new(const struct ws_manifest *m);
void ws_renewal_free(struct ws_renewal *r); /* NULL is fine */
/* It goes on to another version of the same files. No other thread uses it. */
void ws_renewal_rebase(struct ws_renewal *r, const struct ws_manifest *m);
/* All blocks of the file are due, or none. No other thread uses it. */
void ws_renewal_reset(struct ws_renewal *r, size_t file, bool due);
/* Was any block made due at all? */
bool ws_renewal_is_any(const struct ws_renewal *r);
/* A bit for the lock of the block, if it is due; else 0. Any thread, as the two that follow. */
uint64_t ws_renewal_lock_of(const struct ws_renewal *r, size_t file, size_t block);
/* To read blocks that have those locks. */
void ws_renewal_hold(struct ws_renewal *r, uint64_t locks);
void ws_renewal_let_go(struct ws_renewal *r, uint64_t locks);
/* Gives the block fresh pages, if it is due. region: the file's; scratch: WS_BLOCK_BYTES. On failure it is as it was. */
WS_MUST_USE int ws_renewal_run(struct ws_renewal *r, struct ws_region *region, size_t file, size_t block,
                               unsigned char *scratch, struct ws_error *err);

#endif
