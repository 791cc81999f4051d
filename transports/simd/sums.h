/* Sums: the hash of a block whose bytes come in any order, from several threads.
 *
 * XXH3-64 goes through a block KiB by KiB: its state after one is a function of the state before and of a sum over that
 * KiB alone (XXH3_accumulate and XXH3_scrambleAcc of the library). So the sum of a KiB is made while its bytes are in the
 * cache, whichever comes first, and the block's hash is joined from the sums: then memory is read again only for KiBs
 * that came in pieces. */
#ifndef WS_TRANSPORTS_SIMD_SUMS_H
#define WS_TRANSPORTS_SIMD_SUMS_H
#include "transports/simd/copy.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A sixteenth of a block: 256 KiB. */
struct ws_sums;
/* Those of n blocks, of nothing, in one piece of memory that comes as they are used, by large pages where these are to be
 * had. NULL: no memory. */
struct ws_sums *ws_sums_new(unsigned n);
struct ws_sums *ws_sums_at(struct ws_sums *all, unsigned i);
void ws_sums_free(struct ws_sums *all, unsigned n); /* NULL is fine */
void ws_sums_reset(struct ws_sums *s);              /* no other thread uses it */
/* Bytes [at, at + n) of the block are these now. Any thread, one at a time for a byte. */
void ws_sums_add(struct ws_sums *s, size_t at, const void *bytes, size_t n);
/* The KiB that a piece has ended in: its bytes are held until those that follow come from the same thread, as pieces of a
 * transfer are small, and end anywhere. A KiB that is copied in two costs as much as ten. All zeros: none is held. */
struct ws_sums_seam {
    struct ws_sums *of;
    size_t kib, has; /* its first bytes */
    unsigned char *to;
    unsigned char bytes[WS_SUM_BYTES];
};
/* Copies n bytes to dst, which is [at, at + n) of the block and as aligned as `at`, adds them to the block's sums and to
 * h, in one pass; unordered (copy.h). The last of them may be held in the seam until the next call with it, or
 * ws_sums_flush. To forget what is held, put it to zeros. */
void ws_sums_copy(struct ws_sums *s, struct ws_sums_seam *seam, struct ws_hasher *h, size_t at, void *dst,
                  const void *src, size_t n);
/* Copies what the seam holds. Before anything else is added to h, and before h or the block's hash is asked. */
void ws_sums_flush(struct ws_sums_seam *seam, struct ws_hasher *h);
/* XXH3-64 of a block of len bytes, all of which were added last as they are now, or not at all. No other thread adds. */
uint64_t ws_sums_hash(const struct ws_sums *s, const void *block, size_t len);

#endif
