/* Part description: the beginning of each file of a part of a version that spans nodes, as far as
 * ws_node_part_described says (transports/format/node_part_map.h), in blocks that were checked. Without it nobody knows
 * where the bytes of the part belong, so it has memory of its own, until the map is made.
 *
 * Other mounts need it before anything else, and as soon as this one: they are sent blocks of it while it comes, as they
 * are of all else. What is kept for that is bounded: a small share of the part, which is claimed from no cache. Of files
 * beyond that only the bytes that describe the part are kept. Those blocks come twice, and each mount has them from an
 * agent, so that no mount waits for what another has not kept. Which files these are is the same at all mounts.
 *
 * The version's pull makes it, and its threads alone fill it. */
#ifndef WS_FS_STORE_PART_DESCRIPTION_H
#define WS_FS_STORE_PART_DESCRIPTION_H
#include "fs/store/state.h"

struct ws_part_description {
    atomic_uint refs;
    size_t n_files;
    struct ws_part_described_file {
        uint64_t described; /* bytes; 0: nothing of it describes the part */
        bool is_kept;       /* whole blocks are */
        unsigned char *bytes;
        _Atomic(uint64_t) *here; /* of blocks that are kept, a bit each */
        atomic_bool is_whole;    /* all of it is here */
    } * files;
};

/* Of the part's manifest, with no block. NULL: no memory. */
struct ws_part_description *ws_part_description_new(const struct ws_manifest *m);
void ws_part_description_put(struct ws_part_description *d); /* NULL is fine */
/* The version's; counted; NULL: it has none. With store->lock. */
struct ws_part_description *ws_part_description_get(struct ws_version *part);
/* Are these blocks in the version's? With store->lock. */
bool ws_part_description_shows(const struct ws_version *part, size_t file, size_t first, size_t n);
/* Are blocks [first, first + n) in it? Any thread that has a reference. */
bool ws_part_description_has(const struct ws_part_description *d, size_t file, size_t first, size_t n);
/* A block was checked, and its bytes are there. Of a file that is kept. */
void ws_part_description_arrived(struct ws_part_description *d, size_t file, size_t block);
/* Is all of it here? */
bool ws_part_description_is_whole(const struct ws_part_description *d);

#endif
