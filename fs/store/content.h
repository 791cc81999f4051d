/* Content: what of a version is here. The manifest says what there is, the regions hold it, and a bit for
 * each block says that it is here and has the manifest's hash. Headers are parsed once their blocks are here.
 * Everything is set once and then only read, so readers take no lock. The bits are sequentially consistent
 * with version->n_waiters: a waiter counts itself and then looks at the bits; the thread that brings a block
 * sets its bit and then looks at the count. So neither misses the other. */
#ifndef WS_FS_STORE_CONTENT_H
#define WS_FS_STORE_CONTENT_H
#include "fs/store/state.h"

/* Sets the version's manifest, which it owns from now on. m is freed on failure, and if another thread was
 * faster. -EBADMSG: m has another digest than the sources list. With store->lock. */
WS_MUST_USE int ws_content_set_manifest(struct ws_version *v, struct ws_manifest *m, struct ws_error *err);
/* The same with a manifest that has no hashes yet, of a version that is made of parts. With store->lock. */
WS_MUST_USE int ws_content_set_unsealed(struct ws_version *v, struct ws_manifest *m, struct ws_error *err);
/* All blocks are here, and their hashes in the manifest. -EBADMSG: that makes another digest than a source lists, or than
 * the version had when it was here before. With store->lock. */
WS_MUST_USE int ws_content_seal(struct ws_version *v, struct ws_error *err);
/* Are these the bytes of the block that were signed? True where they need not be; false while the tree is not here. */
bool ws_content_is_as_signed(struct ws_version *v, size_t file, size_t block, const void *bytes);
/* Marks a block as here, whose bytes were checked: against the manifest, and against what was signed. Any thread,
 * once a block. */
void ws_content_arrived(struct ws_version *v, size_t file, size_t block);
/* Marks all of a file as here: imported memory. */
void ws_content_arrived_all(struct ws_version *v, size_t file);
/* Are blocks [first, first + n) here? The manifest must be; the range may end past the file. */
bool ws_content_has(struct ws_version *v, size_t file, size_t first, size_t n);
/* Blocks that hold the header of a file; 0 for a sidecar. */
size_t ws_content_header_blocks(const struct ws_manifest_file *f);
/* Has every file's header arrived, or been parsed from bytes that were not kept? */
bool ws_content_has_headers(struct ws_version *v);
/* Parses the header of a file from its first bytes and keeps it, unless one is kept already. */
WS_MUST_USE int ws_content_parse_header(struct ws_version *v, size_t file, const void *bytes, size_t n,
                                        struct ws_error *err);
/* Parses every header of a complete version, without keeping them, so that a version that no engine could
 * open never becomes READY. */
WS_MUST_USE int ws_content_check_headers(struct ws_version *v, struct ws_error *err);
uint64_t ws_content_bytes(struct ws_version *v); /* in blocks that are here */
struct ws_region *ws_content_region(struct ws_version *v, size_t file);
void ws_content_free(struct ws_version *v);

#endif
