/* Proof path: of the request for a tree (tree.h) or a delta proof (delta_proof.h):
 *     GET /v1/{model}/{version}/signature[?run=R]                           of all blocks of the version
 *     GET /v1/{model}/{version}/signature?base=B[&base_run=R][&run=R]       of the delta that leads to it from B
 * The answer is JSON; 404: nobody signed it; 410: it is gone; 503: it is being made, ask again. Pure functions. */
#ifndef WS_TRANSPORTS_SIGN_PROOF_PATH_H
#define WS_TRANSPORTS_SIGN_PROOF_PATH_H
#include "transports/base/limits.h"
#include "transports/base/version_id.h"
#include <stdbool.h>
#include <stddef.h>

#define WS_PROOF_VERB        "signature"
#define WS_PROOF_QUERY_CHARS (2 * WS_LINEAGE_CHARS + 64)

/* The query; base NULL: none. The lineages are safe names. */
void ws_proof_query(char out[WS_PROOF_QUERY_CHARS], const char *lineage, const struct ws_version_id *base);
/* Is a base in it? -EINVAL: it is malformed. base->lineage empty: the target's. */
int ws_proof_base(const char *query, bool *has_base, struct ws_version_id *base);

#endif
