/* Registration: what one rank says that it holds, checked. */
#ifndef WS_TRAINER_REGISTRATION_H
#define WS_TRAINER_REGISTRATION_H
#include "backends/trainer/piece.h"
#include <jansson.h>

/* A parameter's piece as one rank registered it, or a base checkpoint's tensor (always whole). */
struct ws_entry {
    struct ws_tensor tensor; /* name is owned; begin and end are set by the placement */
    struct ws_piece piece;
    char *asked; /* the file that the rank asked for; NULL: by shard_bytes */
    char *file;  /* set by the placement */
    unsigned rank;
    size_t file_index; /* set by the placement */
    bool writes;       /* set by the placement: this rank copies it */
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
/* The other way round: an object with params, base and sidecars; NULL: no memory. */
json_t *ws_registration_to_json(const struct ws_registration *r);
void ws_registration_free(struct ws_registration *r);

#endif
