/* Bodies of responses, sent out of a slot's own memory: a response keeps its lease on the slot until its last byte
 * is sent, and is cut when the lease is revoked. Of a version that is still arriving, a body sends what is here
 * and has its connection suspended until there is more. */
#ifndef WS_TRANSPORTS_TCP_BODY_H
#define WS_TRANSPORTS_TCP_BODY_H
#include "transports/http/answer.h"
#include "transports/protocol/api.h"
#include "transports/protocol/catalog.h"
#include <pthread.h>

struct ws_tcp_body;
/* All bodies of a server. Not copied after init. */
struct ws_tcp_bodies {
    const struct ws_catalog *catalog; /* borrowed */
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    /* guarded by lock */
    struct ws_tcp_body *first;
    bool stop;
};

void ws_tcp_bodies_init(struct ws_tcp_bodies *bodies, const struct ws_catalog *catalog);
/* Before the HTTP server ends: no body waits any more, and no connection stays suspended. */
void ws_tcp_bodies_stop(struct ws_tcp_bodies *bodies);
void ws_tcp_bodies_destroy(struct ws_tcp_bodies *bodies); /* the HTTP server has ended: none is left */
/* A connection ends: its socket's number may be another's from now on, and no body shuts it down any more. */
void ws_tcp_bodies_closed(struct ws_tcp_bodies *bodies, int sock);

/* Leases the version that the request names. Freed by ws_tcp_body_free, or by the response that takes it over. */
WS_MUST_USE int ws_tcp_body_new(struct ws_tcp_body **out, struct ws_tcp_bodies *bodies,
                                const struct ws_http_incoming *in, const struct ws_api_request *request,
                                struct ws_error *err);
void ws_tcp_body_free(struct ws_tcp_body *body);
const struct ws_lease *ws_tcp_body_lease(const struct ws_tcp_body *body);
/* Is it here: the manifest (n 0), or blocks of a file? 1: yes. 0: the connection is suspended, the caller returns, and
 * the handler or the body's reader is called again when it arrives. Else why it will not come. */
WS_MUST_USE int ws_tcp_body_here(struct ws_tcp_body *body, size_t file, size_t first, size_t n,
                                 struct ws_error *err);

/* The same of bytes [at, end) of a file: may the first of them be sent now, or more of its block? */
WS_MUST_USE int ws_tcp_body_begins(struct ws_tcp_body *body, size_t file, uint64_t at, uint64_t end,
                                   struct ws_error *err);

/* The entity tag of the manifest, or of the version's files, in quotes. The manifest is here. */
#define WS_TCP_TAG_BYTES 64
void ws_tcp_body_tag(const struct ws_tcp_body *body, bool of_manifest, char out[WS_TCP_TAG_BYTES]);
/* Responses out of the leased memory; they take body over, also on failure (NULL). The manifest is the version's,
 * which never changes, with one more member, "deltas" (taken over; NULL: not known yet), which does: the response
 * may be cached once all deltas have ended. A file's response has the hashes of the blocks that lie whole in
 * [begin, end) in its header X-Wsync-XXH3, unless there are very many. */
struct MHD_Response *ws_tcp_body_manifest(struct ws_tcp_body *body, json_t *deltas);
struct MHD_Response *ws_tcp_body_range(struct ws_tcp_body *body, const struct ws_manifest_file *file,
                                       uint64_t begin, uint64_t end);
struct MHD_Response *ws_tcp_body_unchanged(struct ws_tcp_body *body, bool of_manifest); /* for a 304 */

#endif
