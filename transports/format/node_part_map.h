/* Map: where each byte of a version's parts lies in the files of the whole version.
 *
 * A part's file is a sequence of segments. A segment is a run of bytes of one of the whole's files (a header, a
 * sidecar, a piece that is a range), or a box of a tensor, whose rows are runs; or it is only the part's own, as its
 * description and the headers of its files are. Those bytes the map keeps. So a part needs no memory beside the whole
 * version's: a block of it that came is scattered, one that is to be sent or hashed is gathered, run by run. A box is
 * never written out as a list of runs, of which a model may have hundreds of millions.
 *
 * Everything that it is made of is input: bounds and sizes are checked, and that the parts cover each file of the
 * whole exactly once. It is made from descriptions and headers alone, never changes, and may be used by any thread;
 * versions of one placement share it. */
#ifndef WS_TRANSPORTS_FORMAT_NODE_PART_MAP_H
#define WS_TRANSPORTS_FORMAT_NODE_PART_MAP_H
#include "transports/format/node_part.h"
#include <stdatomic.h>

/* One part of a map. */
struct ws_node_part_source {
    const char *from; /* for people: the agent that has it */
    const struct ws_manifest *manifest;
    /* Memory, one a file of the manifest, as far as ws_node_part_described says; else NULL. */
    const unsigned char *const *files;
};
/* How much of a part's file describes it, from its first byte on: a map is made of that. */
uint64_t ws_node_part_described(const struct ws_manifest_file *f);

struct ws_node_part_map; /* subset.h makes one that leaves things out */
/* Reads and compares n parts, and copies what it keeps. *stop: ends soon with -ECANCELED; may be NULL. -EBADMSG: one
 * is damaged; -EPROTO: they do not belong together, with two of them by name. The caller has a reference. */
WS_MUST_USE int ws_node_part_map_new(struct ws_node_part_map **out, const struct ws_node_part_source *parts,
                                     size_t n, const atomic_bool *stop, struct ws_error *err);
struct ws_node_part_map *ws_node_part_map_get(struct ws_node_part_map *m);
void ws_node_part_map_put(struct ws_node_part_map *m); /* NULL is fine */
/* The files of the whole version, by name. */
size_t ws_node_part_map_n_files(const struct ws_node_part_map *m);
const struct ws_node_part_file *ws_node_part_map_file(const struct ws_node_part_map *m, size_t i);
/* The whole version's manifest for the parts' manifests in their order, without hashes and without a digest. */
WS_MUST_USE int ws_node_part_map_manifest(const struct ws_node_part_map *m, const char *model,
                                          const struct ws_manifest *const *parts, struct ws_manifest **out,
                                          struct ws_error *err);

/* Bytes of a part's file: [at, at + n). part: its place among those that the map was made of. */
struct ws_node_part_range {
    unsigned part;
    size_t file;
    uint64_t at, n;
};
/* Calls run for each run of the range that lies in a file of the whole: n bytes of the part's file from at on are
 * those of the whole's from to on. What is only the part's own is left out. */
void ws_node_part_map_each(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                           void (*run)(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n),
                           void *arg);
/* Where the bytes of a part are stored. */
struct ws_node_part_target {
    unsigned char *const *files; /* memory of the whole's files, NULL for size 0 */
    /* NULL, or called for pieces of what is scattered, just before that: n bytes of a file from `to` on. */
    void (*stored)(void *arg, size_t file, uint64_t to, const unsigned char *bytes, uint64_t n);
    void *arg;
};
/* Stores the range where it belongs. */
void ws_node_part_map_scatter(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                              const unsigned char *src, const struct ws_node_part_target *target);
/* What takes all bytes of a range, in order. */
struct ws_node_part_store {
    /* n bytes that lie in a file of the whole from `to` on. */
    void (*run)(void *arg, size_t file, uint64_t to, const unsigned char *bytes, uint64_t n);
    void (*own)(void *arg, const unsigned char *bytes, uint64_t n); /* only the part's own */
    void *arg;
};
/* False: what is only the part's own is not what the map has. */
bool ws_node_part_map_store(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                            const unsigned char *src, const struct ws_node_part_store *store);
/* Reads the range. files: as above. */
void ws_node_part_map_gather(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                             unsigned char *dst, unsigned char *const *files);
/* Are the range's bytes that are only the part's own those that the map keeps? */
bool ws_node_part_map_fits(const struct ws_node_part_map *m, const struct ws_node_part_range *range,
                           const unsigned char *src);
/* The first range, in a part's file from *segment on, that has bytes of [at, at + n) of a file of the whole; moves
 * *segment on. It may have others, too. False: there is none. Start with a zero in *segment, for each file. */
bool ws_node_part_map_find(const struct ws_node_part_map *m, unsigned part, size_t part_file, size_t *segment,
                           size_t file, uint64_t at, uint64_t n, struct ws_node_part_range *out);

#endif
