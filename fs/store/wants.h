/* Wants: which blocks of a version come when all of it does. All of them, but of two kinds: a part of which the whole leaves
 * something out (part_view.h), and a version of which only what was learned comes (learned.h). Such a version is complete when
 * what it wants is here; what else is in its memory is undefined, so nobody may read it: content.h says what is here. */
#ifndef WS_FS_STORE_WANTS_H
#define WS_FS_STORE_WANTS_H
#include "fs/store/state.h"

/* Blocks by file, a bit each, as in ws_file_state. Never changes once the version has it. */
struct ws_block_set {
    uint64_t bytes;
    size_t n_files;
    uint64_t *blocks[];
};
/* Of no block. NULL: no memory. */
struct ws_block_set *ws_block_set_new(const struct ws_manifest *m);
void ws_block_set_add(struct ws_block_set *w, const struct ws_manifest *m, size_t file, size_t first,
                      size_t end);
void ws_block_set_free(struct ws_block_set *w); /* NULL is fine */

/* All take a version with its manifest. Any thread. */

/* Of a part: once it is shown. */
bool ws_version_wants(const struct ws_version *v, size_t file, size_t block);
/* What comes of it when all does. */
uint64_t ws_version_wanted_bytes(const struct ws_version *v);
/* Is all that it wants here? */
bool ws_version_has_wanted(struct ws_version *v);
/* Is there something of w, which has the same files, that does not come of v? */
bool ws_version_wants_less(const struct ws_version *v, const struct ws_version *w);
/* Is each of blocks [first, first + n) here, or does not come? The range may end past the file. */
bool ws_version_waits_for_none(struct ws_version *v, size_t file, size_t first, size_t n);
/* Does something of them not come, and is not here? */
bool ws_version_leaves_blocks_out(struct ws_version *v, size_t file, size_t first, size_t n);

#endif
