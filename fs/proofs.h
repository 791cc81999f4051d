/* Proofs: what a relay passes on of who signed what (transports/sign/proof_path.h). It asks its sources once for each
 * request, whether it has keys itself or not, and keeps the answers for a while: a reader checks them against keys of
 * its own, so a relay cannot change them unseen. Any thread. */
#ifndef WS_FS_PROOFS_H
#define WS_FS_PROOFS_H
#include "fs/store/store.h"
#include <jansson.h>

struct ws_proofs;
WS_MUST_USE int ws_proofs_new(struct ws_proofs **out, struct ws_error *err);
/* The answer to a request for a model's signature; path: with its query. -EAGAIN: it is on its way, ask again; or
 * what the sources answered. */
WS_MUST_USE int ws_proofs_get(struct ws_proofs *p, struct ws_model *m, const char *path, json_t **reply,
                              struct ws_error *err);
void ws_proofs_stop(struct ws_proofs *p); /* does not wait; NULL is fine */
void ws_proofs_free(struct ws_proofs *p); /* after ws_store_stop, which ends requests; NULL is fine */

#endif
