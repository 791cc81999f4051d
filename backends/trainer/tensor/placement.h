/* Placement: what all ranks registered, laid out into shard files: where each rank's pieces go, and which
 * rank writes each. It is made once for a registration and is immutable then. */
#ifndef WS_TRAINER_TENSOR_PLACEMENT_H
#define WS_TRAINER_TENSOR_PLACEMENT_H
#include "backends/trainer/tensor/replicas.h"

struct ws_placement_file {
    char *name;
    uint64_t size_bytes, header_bytes;
    void *content; /* a header, or a whole generated file; NULL: a sidecar that rank 0 writes */
    size_t content_bytes;
};
struct ws_placement {
    char id[33];                        /* equal placements (and sidecar contents) have equal ids */
    char base_id[WS_BASE_ID_CHARS + 1]; /* the base of the frozen tensors; empty: there are none */
    uint64_t total_bytes;
    size_t n_files; /* by name */
    struct ws_placement_file *files;
    size_t n_frozen;
    char **frozen;
    struct ws_replicas replicas;
};
/* Merges the ranks' registrations (regs[i]->rank == i). Sets file_index, begin, end, writes and replica in
 * their entries and base tensors. -EPROTO: ranks disagree; -EINVAL, -ENODATA: see ws_piece_assign_writers. */
WS_MUST_USE int ws_placement_make(struct ws_registration *const *regs, unsigned world_size,
                                  uint64_t shard_bytes, struct ws_placement **out, struct ws_error *err);
/* Sets the id: a hash of the contents and of the text `more`. */
WS_MUST_USE int ws_placement_set_id(struct ws_placement *l, const char *more, struct ws_error *err);
/* Adds a file named name and suffix, to be filled. NULL: no memory, or it has WS_MAX_FILES. */
struct ws_placement_file *ws_placement_add_file(struct ws_placement *l, const char *name, const char *suffix);
void ws_placement_free(struct ws_placement *l);

#endif
