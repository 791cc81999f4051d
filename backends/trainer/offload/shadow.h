/* Shadow: the last published bytes of a rank's blocks, in the memory of the device that they come from, and
 * the version that they belong to.
 *
 * They belong to a version from its commit on, and to none from the begin of the next version to its commit.
 * So an offload that fails, is abandoned or covers only some of the blocks leaves nothing behind that could
 * be taken for a version. It belongs to one publisher; several threads at once may record different blocks.
 * */
#ifndef WS_TRAINER_OFFLOAD_SHADOW_H
#define WS_TRAINER_OFFLOAD_SHADOW_H
#include "transports/base/version_id.h"
#include "transports/device/device.h"

struct ws_shadow_block {
    unsigned char *bytes; /* device memory; NULL: this block has no shadow */
    uint32_t len;
    uint64_t hash;
    uint64_t turn; /* in which it was brought up to date */
};

struct ws_shadow;
/* For the blocks of files of these sizes; none is selected so far. */
WS_MUST_USE int ws_shadow_new(struct ws_shadow **out, int device, const uint64_t *file_sizes, size_t n_files,
                              struct ws_error *err);
void ws_shadow_free(struct ws_shadow *k); /* NULL is fine; no queued work uses it any more */
int ws_shadow_device(const struct ws_shadow *k);
/* A block's number among the blocks of all files, and how many those are. */
size_t ws_shadow_index(const struct ws_shadow *k, size_t file, size_t block);
size_t ws_shadow_n_blocks(const struct ws_shadow *k);
struct ws_shadow_block *ws_shadow_at(struct ws_shadow *k, size_t index);

/* Once: selects the blocks that get a shadow, then allocates memory for them. -ENOMEM: the device has not
 * enough. */
void ws_shadow_select(struct ws_shadow *k, size_t index);
WS_MUST_USE int ws_shadow_allocate(struct ws_shadow *k, struct ws_error *err);
size_t ws_shadow_n_selected(const struct ws_shadow *k);
uint64_t ws_shadow_bytes(const struct ws_shadow *k);

/* Begins a version; from now on the bytes belong to none. */
void ws_shadow_begin(struct ws_shadow *k);
/* The version that they belonged to before; no lineage: to none. */
const struct ws_version_id *ws_shadow_base(const struct ws_shadow *k);
/* Had this block the bytes of that version? */
bool ws_shadow_holds_base(const struct ws_shadow *k, const struct ws_shadow_block *b);
/* The block now has the begun version's bytes. */
void ws_shadow_record(struct ws_shadow *k, struct ws_shadow_block *b, uint64_t hash);
/* The begun version is committed: the bytes belong to it. */
void ws_shadow_commit(struct ws_shadow *k, const struct ws_version_id *version);

#endif
