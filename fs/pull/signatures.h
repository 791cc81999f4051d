/* Signatures: what a pull asks its sources for where versions must be signed (verify-key=), and checks before it takes
 * anything. Without such keys all of this does nothing. A source that has no signature is refused: what cannot be
 * told is a no. */
#ifndef WS_FS_PULL_SIGNATURES_H
#define WS_FS_PULL_SIGNATURES_H
#include "fs/pull/source_select.h"
#include "transports/delta/delta.h"
#include "transports/sign/delta_proof.h"

/* Is this manifest signed by a key that is trusted for the model? Logs whose. -EBADMSG. */
WS_MUST_USE int ws_signatures_check_manifest(struct ws_version *v, const struct ws_manifest *m,
                                             struct ws_error *err);
/* Waits until a source has the tree of all blocks, and keeps it with the version. */
WS_MUST_USE int ws_signatures_get_tree(struct ws_source_select *sel, struct ws_error *err);
/* Waits until a source has the proof of a delta. -EBADMSG: none shows it. */
WS_MUST_USE int ws_signatures_get_delta(struct ws_source_select *sel, const struct ws_delta_link *link,
                                        struct ws_delta_proof **out, struct ws_error *err);

#endif
