/* Kept: the last published bytes of a rank's blocks, in the memory of the device that they come from, and
 * which version they are of.
 *
 * They are of a version from its commit on, and of none from the beginning of the next one to its commit: an
 * offload that fails, is abandoned or brings only some of the blocks leaves nothing behind that could be
 * taken for a version. One publisher's; blocks may be noted by several threads at once. */
#ifndef WS_TRAINER_OFFLOAD_SHADOW_H
#define WS_TRAINER_OFFLOAD_SHADOW_H
#include "transports/base/version_id.h"
#include "transports/device/device.h"

struct ws_kept_block {
    unsigned char *bytes; /* device memory; NULL: it is not kept */
    uint32_t len;
    uint64_t hash;
    uint64_t turn; /* in which it was brought up to date */
};

struct ws_kept;
/* For blocks of files of these sizes, none of them kept so far. */
WS_MUST_USE int ws_kept_new(struct ws_kept **out, int device, const uint64_t *file_sizes, size_t n_files,
                            struct ws_error *err);
void ws_kept_free(struct ws_kept *k); /* NULL is fine; nothing is queued that uses them */
int ws_kept_device(const struct ws_kept *k);
size_t ws_kept_index(const struct ws_kept *k, size_t file, size_t block); /* among the blocks of all files */
size_t ws_kept_blocks(const struct ws_kept *k);                           /* how many those are */
struct ws_kept_block *ws_kept_at(struct ws_kept *k, size_t index);

/* Once: which are kept, and their memory. -ENOMEM: the device has no room. */
void ws_kept_want(struct ws_kept *k, size_t index);
WS_MUST_USE int ws_kept_take(struct ws_kept *k, struct ws_error *err);
size_t ws_kept_wanted(const struct ws_kept *k);
uint64_t ws_kept_bytes(const struct ws_kept *k);

/* A version begins; from now on they are of none. */
void ws_kept_begin(struct ws_kept *k);
/* What they were of before; no run: of none. */
const struct ws_mark *ws_kept_base(const struct ws_kept *k);
/* Had this block that version's bytes? */
bool ws_kept_knows(const struct ws_kept *k, const struct ws_kept_block *b);
/* It has the begun version's bytes. */
void ws_kept_note(struct ws_kept *k, struct ws_kept_block *b, uint64_t hash);
/* The begun version is committed: they are of it. */
void ws_kept_commit(struct ws_kept *k, const struct ws_mark *version);

#endif
