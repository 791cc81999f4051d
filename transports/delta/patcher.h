/* Patcher: turns blocks of one version into blocks of a later one by a chain of records, one thread's memory
 * for it. Everything is checked before a byte is written. */
#ifndef WS_TRANSPORTS_DELTA_PATCHER_H
#define WS_TRANSPORTS_DELTA_PATCHER_H
#include "transports/delta/record.h"

#define WS_MAX_CHAIN 8

struct ws_patcher;
struct ws_patcher *ws_patcher_new(void); /* NULL: no memory */
void ws_patcher_free(struct ws_patcher *p);
/* The block of len bytes at src, or at dst itself (src NULL), with the records of a chain applied in order;
 * NULL in the chain: nothing changed there. *hash: XXH3-64 of what dst has now. -EBADMSG: a record is
 * damaged, and dst is as it was. -ENOMEM. */
WS_MUST_USE int ws_patcher_block(struct ws_patcher *p, unsigned char *dst, const unsigned char *src,
                                 size_t len, const struct ws_delta_record *const *chain, size_t n,
                                 uint64_t *hash, struct ws_error *err);

#endif
