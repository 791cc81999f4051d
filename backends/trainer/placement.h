/* Placement: what all ranks registered, laid out into shard files: where each rank's pieces go, and who
 * writes which. Made once a registration, immutable then. */
#ifndef WS_TRAINER_PLACEMENT_H
#define WS_TRAINER_PLACEMENT_H
#include "backends/trainer/piece.h"
#include <jansson.h>

/* A parameter's piece as one rank registered it, or a base checkpoint's tensor (always whole). */
struct ws_entry {
    struct ws_tensor tensor; /* name is owned; begin and end are set by the layout */
    struct ws_piece piece;
    char *file; /* NULL: by shard_bytes */
    unsigned rank;
    size_t file_index; /* set by the layout */
    bool writes;       /* set by the layout: this rank copies it */
};
struct ws_sidecar {
    char *name;
    uint64_t size_bytes, hash; /* of the content */
};
struct ws_registration {
    unsigned rank;
    size_t n_entries, n_base, n_sidecars;
    struct ws_entry *entries, *base;
    struct ws_sidecar *sidecars;
};
/* From and to the JSON of POST /v1/local/register. Everything is checked. */
WS_MUST_USE int ws_registration_of(const json_t *body, unsigned rank, struct ws_registration **out,
                                   struct ws_error *err);
void ws_registration_free(struct ws_registration *r);

struct ws_layout_file {
    char *name;
    uint64_t size_bytes, header_bytes;
    void *content; /* a header, or a whole generated file; NULL: a sidecar that rank 0 writes */
    size_t content_bytes;
};
struct ws_layout {
    char id[33]; /* equal layouts (and sidecar contents) have equal ids */
    uint64_t total_bytes;
    size_t n_files; /* by name */
    struct ws_layout_file *files;
    size_t n_frozen;
    char **frozen;
};
/* Unifies the ranks' registrations (regs[i]->rank == i), sets file_index, begin, end and writes in their
 * entries and base tensors. -EPROTO: ranks disagree; -EINVAL, -ENODATA: see ws_claims_settle. */
WS_MUST_USE int ws_layout_make(struct ws_registration *const *regs, unsigned world_size, uint64_t shard_bytes,
                               struct ws_layout **out, struct ws_error *err);
void ws_layout_free(struct ws_layout *l);

#endif
