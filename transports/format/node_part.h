/* Node part: what one node holds of a version, where a trainer spans several nodes.
 *
 * A part is a version of its own, of the model "MODEL@INDEX.COUNT", so that hashing, transfers, deltas,
 * leases and archives treat it like any other. Of each shard file of the whole version it has a safetensors
 * file of the same name whose tensors "0000000", "0000001", ... are the pieces that the node's ranks write,
 * dense. The file WS_NODE_PART_FILE says what they are. The part of the node with rank 0 has the rest, too:
 * sidecars and index under their own names, and the headers of the shard files as NAME WS_NODE_PART_HEADER.
 *
 * All parts of one version and placement make the whole files again: node_part_map.h. What is read here is input:
 * bounds and sizes are checked. Pure functions over memory. */
#ifndef WS_TRANSPORTS_FORMAT_NODE_PART_H
#define WS_TRANSPORTS_FORMAT_NODE_PART_H
#include "transports/format/manifest.h"
#include <stdbool.h>

#define WS_NODE_PART_FILE       "wsync@part.json"
#define WS_NODE_PART_HEADER     "@header"
#define WS_NODE_PART_ID_CHARS   32
#define WS_NODE_PART_NAME_BYTES 8 /* of a piece's tensor, with the NUL */

/* A box or a range (elements of the flattened tensor) of a tensor of the whole version. */
struct ws_node_part_piece {
    char *tensor;
    bool range;
    unsigned n_dims; /* of the box */
    uint64_t offset[WS_MAX_DIMS], size[WS_MAX_DIMS];
    uint64_t start, count;
};
struct ws_node_part_file { /* a file of the WHOLE version */
    char *name;
    uint64_t size_bytes, header_bytes;
    size_t n_pieces; /* that this part has of it, in the order of their names */
    struct ws_node_part_piece *pieces;
};
struct ws_node_part {
    unsigned index, count;
    char placement[WS_NODE_PART_ID_CHARS + 1]; /* equal in all parts that belong together */
    size_t n_files;                            /* all of the whole version, by name */
    struct ws_node_part_file *files;
};

/* "actor@0.2" of the model "actor". -ENAMETOOLONG. */
WS_MUST_USE int ws_node_part_model(char out[WS_MAX_NAME + 1], const char *model, unsigned index,
                                   unsigned count, struct ws_error *err);
/* The tensor of piece i in its file. */
void ws_node_part_tensor(char out[WS_NODE_PART_NAME_BYTES], size_t i);
/* Has a part's file of that name bytes of that file of the whole? */
bool ws_node_part_is_of(const char *part_file, const char *file);
/* The text of WS_NODE_PART_FILE; malloc, NUL-terminated. NULL: no memory. */
char *ws_node_part_to_json(const struct ws_node_part *p);
/* -EBADMSG: it is none, or longer than WS_MAX_NODE_PART_BYTES, with what is wrong. Never builds a tree of all of
 * it. */
WS_MUST_USE int ws_node_part_from_json(const char *text, size_t n, struct ws_node_part **out,
                                       struct ws_error *err);
void ws_node_part_free(struct ws_node_part *p); /* NULL is fine */

#endif
