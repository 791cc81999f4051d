/* Subset: what a node needs of a version (need.h), as a checkpoint of those tensors alone. It is a map (node_part_map.h)
 * of one part, the source's version, into the files of a smaller whole:
 *
 *     the source's file                     [header][needed][other ........................][needed][other]
 *     blocks that come                      |  0           |  1  |                |  4         |  5 (short)
 *     the file, laid out anew               [header][needed][needed]        of what is needed alone
 *     WS_SUBSET_EDGES                       [other of 0, 1][other of 4, 5]  so that a block can be checked and patched
 *
 * A block of the source comes if it has a byte of a header or of a needed tensor, and is checked by the source's hash.
 * What else is in it goes to the file WS_SUBSET_EDGES, of which nobody but this has a use: with it a block that came can be
 * put together again, so deltas, which are of whole blocks, are applied here as anywhere. Other blocks never come.
 *
 * Safetensors files of which nothing is needed are not among the whole's. Those that are left keep their names, or are
 * numbered anew where some are gone, since a name says how many there are. Headers and the index name only what is there;
 * they are made here, as is WS_SUBSET_FILE, which says of what the subset is: {"source_digest", "need", "tensors",
 * "left_out"}. All else (config.json, tokenizers) is copied. So the layout follows from the source's headers and the
 * need alone, and holds for each version whose headers are the same: they are compared as they come. */
#ifndef WS_TRANSPORTS_FORMAT_SUBSET_H
#define WS_TRANSPORTS_FORMAT_SUBSET_H
#include "transports/format/need.h"
#include "transports/format/node_part_map.h"

#define WS_SUBSET_FILE  "wsync@subset.json"
#define WS_SUBSET_EDGES "wsync@edges"

/* source: of one version, with its files' headers (ws_node_part_described). -EBADMSG: a header is damaged, or a tensor is in
 * two files; what ws_need_select says; -E2BIG, -ENOMEM. The caller has a reference. */
WS_MUST_USE int ws_subset_map_new(struct ws_node_part_map **out, const struct ws_node_part_source *source,
                                  const struct ws_need *need, struct ws_error *err);

/* All of the following take any map. */

bool ws_subset_is(const struct ws_node_part_map *m);
/* Does the block of a part's file come? */
bool ws_subset_wants(const struct ws_node_part_map *m, size_t part_file, size_t block);
/* Bytes of the part's blocks that do not come. */
uint64_t ws_subset_left_out_bytes(const struct ws_node_part_map *m);
/* Is that tensor of the source in the whole? */
bool ws_subset_has_tensor(const struct ws_node_part_map *m, const char *tensor);
/* Is it a tensor of the source that is left out? as: its name as ws_name_to_file has it. */
bool ws_subset_leaves_out(const struct ws_node_part_map *m, const char *as);
/* Tensors of the source that `had` needs (NULL: all), and that are left out; some: one of them, borrowed; NULL: there is
 * none. What ws_need_select says; -ENOMEM. */
WS_MUST_USE int ws_subset_compare(const struct ws_node_part_map *m, const struct ws_need *had, size_t *n,
                                  const char **some, struct ws_error *err);
/* Calls made for what is made here, each the first n bytes of a file of the whole; no part has them. source: the part's
 * manifest. -ENOMEM: not for all. */
WS_MUST_USE int ws_subset_each_made(const struct ws_node_part_map *m, const struct ws_manifest *source,
                                    void (*made)(void *arg, size_t file, const unsigned char *bytes,
                                                 uint64_t n),
                                    void *arg);

#endif
