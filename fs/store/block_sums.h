/* Block sums: what is known of the hashes of a version's blocks while their bytes come with different parts, in any
 * order (transports/simd/sums.h).
 *
 * A block has sums from its first bytes to its last. They take a sixteenth of it, so only so many blocks have some at a
 * time: about those that the lanes of two parts are at. Others are hashed when they are here. */
#ifndef WS_FS_STORE_BLOCK_SUMS_H
#define WS_FS_STORE_BLOCK_SUMS_H
#include "transports/format/manifest.h"
#include "transports/simd/sums.h"

struct ws_block_sums;
struct ws_block_sums *ws_block_sums_new(const struct ws_manifest *m); /* NULL: no memory */
void ws_block_sums_free(struct ws_block_sums *b);                     /* NULL is fine */
/* Nothing is known of any block, and all memory is given back. m: has the same files. No other thread uses it. */
void ws_block_sums_rebase(struct ws_block_sums *b, const struct ws_manifest *m);
/* Bytes of the file from `at` on were written. Whatever is written to a block has to be told. Any thread, one at a time for
 * a byte. */
void ws_block_sums_add(struct ws_block_sums *b, size_t file, uint64_t at, const unsigned char *bytes,
                       uint64_t n);
/* Writes them there, adds them to the hasher as well, and tells it, in one pass; unordered (transports/simd/copy.h). The
 * last of them may be held in the seam (ws_sums_copy). to: memory of the file from `at` on. */
struct ws_block_sums_copy {
    struct ws_hasher *hasher;
    struct ws_sums_seam *seam;
};
void ws_block_sums_copy(struct ws_block_sums *b, const struct ws_block_sums_copy *c, size_t file, uint64_t at,
                        unsigned char *to, const unsigned char *bytes, uint64_t n);
/* The hash of a block that is here; nothing is known of it any more. data: its bytes. Once a block. */
uint64_t ws_block_sums_hash(struct ws_block_sums *b, size_t file, size_t block, const unsigned char *data);

#endif
