/* Delta proof: a cryptographic hash of every record of a delta, and a signature over all of them. A base that was
 * verified once and signed records determine the target, so a step hashes only what travels.
 *
 *     leaf  BLAKE2b-256 of: the byte 2; the record's head on the wire (delta/stream.h) without its hash, 24 bytes;
 *           its data
 *     D     BLAKE2b-256 of: the byte 3; number of records; of each its file and block, 8 bytes each, and its leaf.
 *           In order of file, then of block
 *
 * Numbers are little endian. D is that of statement.h, with the ids of both manifests. A block without a record is
 * as in the base.
 *
 * As JSON, which GET /v1/{model}/{version}/signature?base=B[&base_run=R] answers:
 *
 *     {"format":1,"base":"64 hex digits","target":"64 hex digits","signature":"KEY SIGNATURE",
 *      "files":["16 hex digits of the block's number and 64 of the leaf a record", ...]}
 *
 * base, target: the ids of the two manifests. files: a text for each file up to the last that has a record.
 *
 * A proof never changes once it is made. */
#ifndef WS_TRANSPORTS_SIGN_DELTA_PROOF_H
#define WS_TRANSPORTS_SIGN_DELTA_PROOF_H
#include "transports/delta/delta.h"
#include "transports/sign/statement.h"
#include <jansson.h>

struct ws_proved_record {
    uint64_t file, block;
    unsigned char leaf[WS_HASH_BYTES];
};
struct ws_delta_proof {
    unsigned char base_id[WS_HASH_BYTES], target_id[WS_HASH_BYTES];
    char signature[WS_SIGNATURE_CHARS + 1];
    size_t n;
    struct ws_proved_record *records; /* in order of file, then of block */
};
/* Of a delta that is whole. -ENOMEM. */
WS_MUST_USE int ws_delta_proof_make(struct ws_delta_proof **out, const struct ws_delta *d,
                                    const struct ws_manifest *base, const struct ws_manifest *target,
                                    const struct ws_secret_key *k, struct ws_error *err);
void ws_delta_proof_free(struct ws_delta_proof *p);             /* NULL is fine */
json_t *ws_delta_proof_to_json(const struct ws_delta_proof *p); /* new reference; NULL: no memory */
/* Takes only a proof by a key that is trusted for the model. The caller compares the ids of the manifests.
 * -EBADMSG, with a whole sentence; -ENOMEM. */
WS_MUST_USE int ws_delta_proof_from_json(const json_t *json, const char *model, const struct ws_trust *trust,
                                         struct ws_delta_proof **out, struct ws_error *err);
/* Is this record one of the delta? */
bool ws_delta_proof_has(const struct ws_delta_proof *p, const struct ws_delta_record *r);
/* Has the delta a record of that block? */
bool ws_delta_proof_names(const struct ws_delta_proof *p, size_t file, size_t block);

#endif
