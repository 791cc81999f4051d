/* Part view: the bytes of a part of a version that spans nodes, where they lie: in the regions of the whole version.
 *
 * The whole version has the memory; the map (transports/format/node_part_map.h) says where in it each byte of a part
 * is. A block of a part is stored there as it comes, or checked in a small buffer and scattered; one that is to be sent or
 * hashed is gathered, and one that is to be patched, too, where it lies in very short runs. So there is one copy of the
 * model, and each part is a version like any other to those who pull it, patch it or ask this mount for it. A block of
 * the whole is here when all bytes of it have come with their parts. Its hash is made of what passes through the cache on
 * the way (block_sums.h), and joined by the thread that brings the last of them, which makes the whole version's manifest
 * bit by bit: until it is sealed it says which files there are, and no hash or digest.
 *
 * A view holds the whole version, so that its memory stays for those who read a part. When the whole version loses its
 * name so do its parts (store/version.c). */
#ifndef WS_FS_STORE_PART_VIEW_H
#define WS_FS_STORE_PART_VIEW_H
#include "fs/store/block_sums.h"
#include "fs/store/renewal.h"
#include "fs/store/state.h"
#include "transports/delta/block.h"
#include "transports/format/node_part_map.h"

#define WS_PART_RUNS 4096 /* of a block: where they are shorter than a KiB, it is as well copied */

/* Of the whole version. */
struct ws_parts {
    struct ws_node_part_map *map; /* counted */
    unsigned n;
    unsigned char **files;    /* memory by file; NULL for size 0 */
    _Atomic(uint32_t) **left; /* by file, then block: bytes that have not come */
    atomic_bool
        is_wrong; /* a part that came is described otherwise than the map's, or something of it is lost */
    atomic_bool differs; /* a block has another hash than it had when the version was here before */
    struct ws_block_sums *sums;
    struct ws_renewal *renewal; /* of pages that readers of the version before may have */
};

/* What lay in a part's place when the memory of another version went on to the whole version: the one copy of its model
 * (one_copy.h), or that of one which nobody wants (handover.h). */
struct ws_part_base {
    struct ws_manifest *manifest;
    bool is_wanted; /* what its bytes were is kept: there may be a way back to it */
    _Atomic(uint64_t) *
        *here; /* by file: blocks that are that version's; NULL: the part's pull has taken them */
};

/* Of a part. Set once, with store->lock, before anything of it is stored. */
struct ws_part_view {
    struct ws_version *whole; /* counted */
    struct ws_parts *parts;   /* the whole's */
    unsigned index;
    atomic_bool is_ready; /* what describes the part is stored: only then its pull stores the rest */
    struct ws_part_base
        *base; /* NULL: nothing, or what its bytes were is kept (way_back.h). With store->lock */
};

/* Gives the version, whose unsealed manifest and regions are here, a map; *map is its from then on. With store->lock. */
WS_MUST_USE int ws_parts_new(struct ws_version *whole, struct ws_node_part_map *map, unsigned n,
                             struct ws_error *err);
void ws_parts_free(struct ws_version *whole);
/* The memory went on from one version to another, which is laid out alike: so do its parts, of which nothing has come.
 * Nobody reads either. With store->lock. */
void ws_parts_hand_over(struct ws_version *from, struct ws_version *to);
/* Shows the part in the whole, whose index-th it is. *view: zeroed, from malloc, the part's from then on; base: what lies in its
 * place, its own as well. With store->lock. */
void ws_part_view_show(struct ws_version *part, struct ws_version *whole, unsigned index,
                       struct ws_part_base *base, struct ws_part_view **view);
void ws_part_view_free(struct ws_version *part);
struct ws_part_view *ws_part_view(const struct ws_version *v); /* NULL: it is no part, or not shown yet */
/* What lies in a part's place that is not the part's own; NULL: nothing. With store->lock. */
struct ws_part_base *ws_part_base(const struct ws_version *part);
bool ws_part_has_base(const struct ws_version *part); /* without store->lock */
/* Of the part's manifest, with no block. NULL: no memory. */
struct ws_part_base *ws_part_base_new(const struct ws_version *part);
void ws_part_base_free(struct ws_part_base *b); /* NULL is fine */
/* Is that the version? */
bool ws_part_base_is(const struct ws_part_base *b, const struct ws_version *v);
/* Its pull knows all of it, and what its bytes were is kept, or not wanted. Without store->lock. */
void ws_part_base_forget(struct ws_version *part);

/* Has what describes the part in these bytes not changed? Else they cannot be stored. */
bool ws_part_view_fits(struct ws_version *part, size_t file, uint64_t at, uint64_t n,
                       const unsigned char *bytes);
/* Before a block of a part is written to the one copy of its model: has its pages renewed (renewal.h). scratch:
 * WS_BLOCK_BYTES. On failure its bytes are as they were. */
WS_MUST_USE int ws_part_view_renew(struct ws_version *part, size_t file, size_t block, unsigned char *scratch,
                                   struct ws_error *err);
/* Stores bytes of a block of a part that is not here yet. False: what describes the part in them is not what the map was
 * made of, and nothing was stored. Any thread, one at a time for a block. */
bool ws_part_view_write(struct ws_version *part, size_t file, uint64_t at, uint64_t n,
                        const unsigned char *bytes);
/* Stores and hashes bytes of a block as they come: what they are is known when all of it is here, and ws_copy_order was
 * called. seam: zeros when a block begins, then its own, which holds bytes until others come, or the block ends. False as
 * above, and then it is not what the block was to be. */
bool ws_part_view_store(struct ws_version *part, size_t file, uint64_t at, uint64_t n,
                        const unsigned char *bytes, struct ws_hasher *h, struct ws_sums_seam *seam);
/* Where a block of a part lies, to be written there: runs of memory, in order. */
struct ws_part_runs {
    size_t n;
    struct ws_delta_run runs[WS_PART_RUNS];
    struct {
        size_t file;
        uint64_t to;
    } in[WS_PART_RUNS]; /* of each run: where in the files of the whole it begins */
};
/* False: it is more spread than that, some of it is only the part's own, or pages may have to be renewed first. */
bool ws_part_view_runs(struct ws_version *part, size_t file, size_t block, struct ws_part_runs *out);
/* n bytes of a run from its byte `at` on were written. Tells it, before the block is marked as here. */
void ws_part_view_wrote(struct ws_version *part, const struct ws_part_runs *runs, size_t run, size_t at,
                        size_t n);
/* Reads bytes of a part that are here, or of what lies in its place. */
void ws_part_view_read(struct ws_version *part, size_t file, uint64_t at, uint64_t n, unsigned char *out);
/* A block was marked as here: marks blocks of the whole whose last bytes it brought, and wakes their waiters. Without
 * any lock. */
void ws_part_view_arrived(struct ws_version *part, size_t file, size_t block);

/* Of a part of which the whole leaves something out (needs.h): writes what is made here of the whole, its headers and index,
 * and counts it as here. Once for each whole that has its parts shown, before any block of it is. */
WS_MUST_USE int ws_part_view_write_made(struct ws_version *part, struct ws_error *err);
/* Does the block come, of a part that is shown? True of all others. Any thread. */
bool ws_part_view_wants(const struct ws_version *v, size_t file, size_t block);
/* What comes of a version when all of it does: its bytes, less blocks that do not. The manifest is here. */
uint64_t ws_part_view_bytes(const struct ws_version *v);

/* The bytes of a block that is here: in the version's region, or gathered into a buffer of WS_BLOCK_BYTES. */
const unsigned char *ws_content_block(struct ws_version *v, size_t file, size_t block, unsigned char *buffer);

#endif
