/* Segments: what a map (node_part_map.h) is made of, by node_part_map_make.c or subset.c. Of those three files only. */
#ifndef WS_TRANSPORTS_FORMAT_NODE_PART_SEGMENTS_H
#define WS_TRANSPORTS_FORMAT_NODE_PART_SEGMENTS_H
#include "transports/base/vector.h"
#include "transports/format/node_part_map.h"
#include "transports/simd/box.h"

struct ws_node_part_segment {
    uint64_t at, n;             /* in the part's file */
    size_t file;                /* of the whole */
    uint64_t to;                /* a run: in that file; a box: where its tensor begins */
    struct ws_box_extents *box; /* NULL: it is a run */
    unsigned char *own;         /* the part's own bytes; NULL: they are in a file of the whole */
    bool left_out;              /* it is in no file of the whole, and its bytes do not come */
};
WS_VECTOR(ws_node_part_segments, struct ws_node_part_segment);

struct ws_node_part_map {
    atomic_uint refs;
    size_t n_parts;
    struct ws_node_part *whole;              /* described[0]: its files are the whole's */
    size_t *n_files;                         /* by part */
    struct ws_node_part_segments **segments; /* by part, then by file of its manifest */
    struct ws_subset *subset; /* NULL: the parts have all bytes of the whole, and it has all of theirs */
};
void ws_subset_free(struct ws_subset *s); /* NULL is fine */

#endif
