/* TLS of a server: its certificate and key, and the authorities that sign its clients' certificates. The files are
 * read again when they change; connections that are open keep what they began with. Any thread. */
#ifndef WS_TRANSPORTS_HTTP_TLS_H
#define WS_TRANSPORTS_HTTP_TLS_H
#include "transports/access/identity.h"
#include "transports/base/error.h"
#include <stdint.h>

struct ws_http_tls_files {
    const char *cert, *key, *client_ca; /* paths of PEM files; client_ca NULL: clients show no certificate */
};

struct MHD_Connection;
struct ws_http_tls;
struct ws_http_credentials; /* what the files held at one time */

/* Reads the files; *out is NULL where there is none. -EINVAL: a key without a certificate, a certificate without a
 * key, authorities without both, files that are none of these, or empty; -ENOENT, -EFBIG and other errors of files. */
WS_MUST_USE int ws_http_tls_new(struct ws_http_tls **out, const struct ws_http_tls_files *files,
                                struct ws_error *err);
void ws_http_tls_free(struct ws_http_tls *tls); /* no connection has credentials of it; NULL is fine */
bool ws_http_tls_has_client_ca(const struct ws_http_tls *tls); /* NULL is fine */
/* When the certificate ends that new connections are shown, seconds since 1970; NULL: 0. */
uint64_t ws_http_tls_end(struct ws_http_tls *tls);
/* PEM of the first reading, for libmicrohttpd, which does not start without. */
const char *ws_http_tls_first_cert(const struct ws_http_tls *tls);
const char *ws_http_tls_first_key(const struct ws_http_tls *tls);

/* A connection that has just begun, before its handshake: what the files hold by now. The caller releases it when
 * the connection has ended. */
struct ws_http_credentials *ws_http_tls_use(struct ws_http_tls *tls, struct MHD_Connection *c);
void ws_http_tls_release(struct ws_http_tls *tls, struct ws_http_credentials *credentials); /* NULL is fine */

#define WS_HTTP_NAMES 8
/* What a certificate calls its holder: names of hosts, URIs, addresses of mail, last the subject's common name. */
struct ws_http_names {
    char text[WS_HTTP_NAMES][WS_IDENTITY_CHARS + 1];
    const char *ptr[WS_HTTP_NAMES];
    size_t n;
};
/* The names of a certificate in DER, those only that a line of a tokens file could have; of one without any, its
 * fingerprint. None: it is no certificate. */
void ws_http_tls_names(const void *der, size_t n, struct ws_http_names *out);
/* Whether the client of a connection has shown a certificate that is signed by one of the authorities, has not
 * expired and is made for clients. NULL: it has, and its names are in out; else why not, in words of at most 200
 * bytes, that are written to text. libmicrohttpd only asks for a certificate, and serves clients without one. */
const char *ws_http_tls_lacks(struct MHD_Connection *c, struct ws_http_names *out, char text[256]);

#endif
