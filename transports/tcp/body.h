/* The bodies of responses that lie in held slots: they are sent out of the slot's own memory, so a
 * response holds the slot until its last byte is out, and is cut when the hold is revoked. Of a version that
 * is still arriving a body passes on what is here and has its connection suspended until there is more. */
#ifndef WS_TRANSPORTS_TCP_BODY_H
#define WS_TRANSPORTS_TCP_BODY_H
#include "transports/http/answer.h"
#include "transports/protocol/api.h"
#include "transports/protocol/catalog.h"
#include <pthread.h>

struct ws_tcp_body;
/* All of a server's. Not copied after init. */
struct ws_tcp_bodies {
    const struct ws_catalog *catalog; /* borrowed */
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    /* guarded by lock */
    struct ws_tcp_body *first;
    bool stop;
};

void ws_tcp_bodies_init(struct ws_tcp_bodies *bodies, const struct ws_catalog *catalog);
/* Before the HTTP server ends: nothing is waited for any more, no connection is left suspended. */
void ws_tcp_bodies_stop(struct ws_tcp_bodies *bodies);
void ws_tcp_bodies_destroy(struct ws_tcp_bodies *bodies); /* the HTTP server has ended: none is left */
/* A connection ends: its socket's number may be another's from now on, and no body shuts it down any more. */
void ws_tcp_bodies_closed(struct ws_tcp_bodies *bodies, int sock);

/* Holds the version that the request names. Freed by ws_tcp_body_free, or by the response that it goes into.
 */
WS_MUST_USE int ws_tcp_body_new(struct ws_tcp_body **out, struct ws_tcp_bodies *bodies,
                                const struct ws_http_incoming *in, const struct ws_api_request *request,
                                struct ws_error *err);
void ws_tcp_body_free(struct ws_tcp_body *body);
const struct ws_hold *ws_tcp_body_hold(const struct ws_tcp_body *body);
/* Is it here: the manifest (n 0), blocks of a file? 1: yes; 0: the connection is suspended, and
 * its handler, or the body's reader, called again when there is more to say: the caller is to return; else why it will not come. */
WS_MUST_USE int ws_tcp_body_here(struct ws_tcp_body *body, size_t file, size_t first, size_t n,
                                 struct ws_error *err);

/* The entity tag of the manifest, or of the version's files, in quotes. The manifest is here. */
#define WS_TCP_TAG_BYTES 64
void ws_tcp_body_tag(const struct ws_tcp_body *body, bool of_manifest, char out[WS_TCP_TAG_BYTES]);
/* Responses over the held memory; they take body over, also on failure (NULL). The manifest's is the
 * version's, which never changes, with one member more, "deltas" (taken over; NULL: not known yet), which
 * does: it may be cached once they have all ended. A file's has the hashes of the blocks that lie whole in
 * [begin, end) in its header X-Wsync-XXH3, unless there are very many. */
struct MHD_Response *ws_tcp_body_manifest(struct ws_tcp_body *body, json_t *deltas);
struct MHD_Response *ws_tcp_body_range(struct ws_tcp_body *body, const struct ws_bundle_file *file,
                                       uint64_t begin, uint64_t end);
struct MHD_Response *ws_tcp_body_unchanged(struct ws_tcp_body *body, bool of_manifest); /* for a 304 */

#endif
