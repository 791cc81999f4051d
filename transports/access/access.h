/* Access: who a server's clients are. It holds what the server's operator gave: a tokens file, one shared token,
 * or nothing, and looks at the files again when they change. Functions may be called from any thread. */
#ifndef WS_TRANSPORTS_ACCESS_ACCESS_H
#define WS_TRANSPORTS_ACCESS_ACCESS_H
#include "transports/access/identity.h"
#include <stdint.h>

struct ws_access_options {
    const char *tokens_file; /* token_table.h; NULL: none */
    const char *token;       /* one shared token, as wsync 0.1 has; NULL: none */
    const char *token_file;  /* where it was read, and is again when it changes; NULL: it never does */
    bool insecure;           /* without one of the above: a client without an identity is "anonymous" */
    bool nodes; /* the shared token, and anonymous clients, may report as another node's agent, too */
    /* A server on loopback that has nothing of the above makes a token, and puts it where the clients of this host
     * look for it (local_token.h). Without this, and without the above, no client has an identity. */
    bool makes_local_token;
    const char
        *socket; /* where this host's clients need no token, for the sentence of a refusal; NULL: nowhere */
};

struct ws_access;
/* Copies the options. -ENOMEM, or why the tokens file cannot be read. */
WS_MUST_USE int ws_access_new(struct ws_access **out, const struct ws_access_options *options,
                              struct ws_error *err);
/* Before the server gives up its port: the token that it made for this host is there no more. NULL is fine. */
void ws_access_end(struct ws_access *a);
/* Wipes the tokens. NULL is fine. */
void ws_access_free(struct ws_access *a);
/* Is there anything that keeps clients out? It decides whether a server may listen beyond loopback. */
bool ws_access_asks(const struct ws_access *a);
/* Makes the token for this host where the options ask for that; before requests come. Else 0. */
WS_MUST_USE int ws_access_make_local(struct ws_access *a, unsigned port, struct ws_error *err);

/* The identity of a request with that Authorization header (NULL: none), over a connection whose certificate has
 * these names. out->name is empty where nothing says who it is. */
void ws_access_identify(struct ws_access *a, const char *authorization, const char *const *certificate_names,
                        size_t n, struct ws_identity *out);
/* What a client that was refused may do, a sentence's end, with the file of the local token and the socket. Or "". */
const char *ws_access_hint(const struct ws_access *a);

#endif
