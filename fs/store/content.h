/* Content: what of a version is here. The manifest says what there is, the regions hold it, a bit a
 * block says that the block is here and was compared with its hash; headers are parsed once their
 * blocks are here. Everything is set once and then only read, so that readers take no lock. Bits are
 * sequentially consistent with version->n_waits: whoever waits counts itself and then looks at the
 * bits, whoever brings a block sets the bit and then looks at the count, so none misses the other. */
#ifndef WS_FS_STORE_CONTENT_H
#define WS_FS_STORE_CONTENT_H
#include "fs/store/state.h"

/* Takes the manifest (frees it on failure, or when another thread was faster). With store->lock. */
WS_MUST_USE int ws_content_describe(struct ws_version *v, struct ws_manifest *m, struct ws_error *err);
/* Marks a block as here. Any thread, once a block. */
void ws_content_arrived(struct ws_version *v, size_t file, size_t block);
/* Marks all of a file as here (imported memory). */
void ws_content_arrived_all(struct ws_version *v, size_t file);
/* Are blocks [first, first + n) here? The manifest is; the range may end past the file. */
bool ws_content_has(struct ws_version *v, size_t file, size_t first, size_t n);
/* Blocks that hold the header of a file; 0 for a sidecar. */
size_t ws_content_header_blocks(const struct ws_bundle_file *f);
/* Has every file's header arrived, or been parsed from bytes that were not kept? */
bool ws_content_has_headers(struct ws_version *v);
/* Parses the header of a file from its first bytes and keeps it, unless one is kept already. */
WS_MUST_USE int ws_content_parse_header(struct ws_version *v, size_t file, const void *bytes, size_t n,
                                        struct ws_error *err);
/* Reads every header of a complete version and keeps none that was not kept: a version that no
 * engine could open is not handed out. */
WS_MUST_USE int ws_content_check_headers(struct ws_version *v, struct ws_error *err);
uint64_t ws_content_bytes(struct ws_version *v); /* of verified blocks */
struct ws_region *ws_content_region(struct ws_version *v, size_t file);
void ws_content_free(struct ws_version *v);

#endif
