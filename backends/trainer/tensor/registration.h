/* Registration: what one rank has registered, checked. Plain values. */
#ifndef WS_TRAINER_TENSOR_REGISTRATION_H
#define WS_TRAINER_TENSOR_REGISTRATION_H
#include "backends/trainer/tensor/piece.h"
#include <jansson.h>

/* Identifies one opening of a base checkpoint: a random number in hex. Names and shapes do not distinguish
 * two bases, and hashing a base takes as long as reading it. */
#define WS_BASE_ID_CHARS 32

/* A parameter's piece as one rank registered it, or a base checkpoint's tensor (always whole). */
struct ws_entry {
    struct ws_tensor tensor; /* name is owned; begin and end are set by the placement */
    struct ws_piece piece;
    char *requested_file; /* by this rank; NULL: files are filled by shard_bytes */
    unsigned rank;
    size_t file_index; /* set by the placement */
    bool writes;       /* set by the placement: this rank copies it */
    uint64_t replica;  /* set by the placement: id of the replica (replicas.h); 0: no other rank holds it */
};
struct ws_sidecar {
    char *name;
    uint64_t size_bytes, hash; /* of the content */
};
struct ws_registration {
    unsigned rank;
    bool audits; /* its libwsync does audits, with wsync_config.audit and .audit_warns */
    int audit;
    bool audit_warns;
    size_t n_entries, n_base, n_sidecars;
    struct ws_entry *entries, *base;
    struct ws_sidecar *sidecars;
    char base_id[WS_BASE_ID_CHARS + 1]; /* empty: no base, or libwsync sent none */
    uint64_t id[2]; /* a hash of all of the above but the rank, and but for what the placement sets */
};
/* Reads the JSON of POST /v1/local/register; everything is checked. */
WS_MUST_USE int ws_registration_from_json(const json_t *body, unsigned rank, struct ws_registration **out,
                                          struct ws_error *err);
/* The reverse: an object with params, base, sidecars and the settings of audits; NULL: no memory. */
json_t *ws_registration_to_json(const struct ws_registration *r);
/* Do two ranks say the same, as those of one data-parallel group do? */
bool ws_registration_repeats(const struct ws_registration *a, const struct ws_registration *b);
void ws_registration_free(struct ws_registration *r);

#endif
