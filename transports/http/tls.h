/* TLS of a server: its certificate and key, and the authorities that sign its clients' certificates. */
#ifndef WS_TRANSPORTS_HTTP_TLS_H
#define WS_TRANSPORTS_HTTP_TLS_H
#include "transports/base/error.h"

struct MHD_Connection;
struct ws_http_tls {
    char *cert, *key, *client_ca; /* PEM. Without cert and key the server speaks plain HTTP; without client_ca
                                     it asks clients for no certificate */
};
struct ws_http_tls_files {
    const char *cert, *key, *client_ca; /* paths; NULL: none */
};

/* Reads the files; a path of NULL leaves its part NULL. -EINVAL: a key without a certificate, a certificate
 * without a key, authorities without both or that are none, or an empty file; -ENOENT, -EFBIG and other errors of files. */
WS_MUST_USE int ws_http_tls_read(struct ws_http_tls *tls, const struct ws_http_tls_files *files,
                                 struct ws_error *err);
void ws_http_tls_destroy(struct ws_http_tls *tls);
/* Whether the client of a connection with client_ca has shown a certificate that is signed by one of those
 * authorities, has not expired and is made for clients. NULL: it has; else why not, in words of at most 200 bytes,
 * that are written to text. libmicrohttpd only asks for a certificate, and serves clients without one. */
const char *ws_http_tls_lacks(struct MHD_Connection *c, char text[256]);

#endif
