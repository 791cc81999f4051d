/* Registration: what one rank says that it holds, checked. */
#ifndef WS_TRAINER_TENSOR_REGISTRATION_H
#define WS_TRAINER_TENSOR_REGISTRATION_H
#include "backends/trainer/tensor/piece.h"
#include <jansson.h>

/* Which opening of a base checkpoint its tensors are of: a random number in hex. Names and shapes do not tell
 * one base from the next, and hashing all of one takes as long as reading it. */
#define WS_BASE_ID_CHARS 32

/* A parameter's piece as one rank registered it, or a base checkpoint's tensor (always whole). */
struct ws_entry {
    struct ws_tensor tensor; /* name is owned; begin and end are set by the placement */
    struct ws_piece piece;
    char *asked; /* the file that the rank asked for; NULL: by shard_bytes */
    char *file;  /* set by the placement */
    unsigned rank;
    size_t file_index; /* set by the placement */
    bool writes;       /* set by the placement: this rank copies it */
    uint64_t replica;  /* set by the placement: others hold it, too (replicas.h); 0: nobody does */
};
struct ws_sidecar {
    char *name;
    uint64_t size_bytes, hash; /* of the content */
};
struct ws_registration {
    unsigned rank;
    bool audits; /* its libwsync knows audits: wsync_config.audit and .audit_warns */
    int audit;
    bool audit_warns;
    size_t n_entries, n_base, n_sidecars;
    struct ws_entry *entries, *base;
    struct ws_sidecar *sidecars;
    char base_id[WS_BASE_ID_CHARS + 1]; /* empty: no base, or it was not said */
};
/* From and to the JSON of POST /v1/local/register. Everything is checked. */
WS_MUST_USE int ws_registration_of(const json_t *body, unsigned rank, struct ws_registration **out,
                                   struct ws_error *err);
/* The other way round: an object with params, base, sidecars and what it says of audits; NULL: no memory. */
json_t *ws_registration_to_json(const struct ws_registration *r);
void ws_registration_free(struct ws_registration *r);

#endif
