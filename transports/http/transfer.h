/* What all that is asked over HTTP has in common: libcurl's settings, the headers, replies kept as text, and what
 * becomes of libcurl's errors. */
#ifndef WS_TRANSPORTS_HTTP_TRANSFER_H
#define WS_TRANSPORTS_HTTP_TRANSFER_H
#include "transports/base/error.h"
#include "transports/base/vector.h"
#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>

void ws_http_ensure_curl(void); /* before anything of libcurl's is called */
/* libcurl keeps what it sends, and so tokens, in secret memory (base/secret.h); a process that sends anything by TLS
 * leaves no core. For a program in which no other code uses libcurl; called before all else here. */
void ws_http_hide_curl(void);

/* With what AWS's signature, version 4, is made; copied. libcurl 7.88 signs a query as it stands, and a header that
 * only takes one of libcurl's away ("Expect:") as if it were sent: so whoever signs writes queries in their canonical
 * form (sorted, each with its "=", encoded by RFC 3986), and has no such header. */
struct ws_http_signer {
    const char *scope; /* CURLOPT_AWS_SIGV4: "aws:amz:us-east-1:s3" */
    const char *key_id, *secret;
};

/* One request. It, and what it points to, stay until the transfer has ended. */
struct ws_http_transfer {
    const char *url;            /* copied */
    struct curl_slist *headers; /* NULL: none */
    const char *agent;          /* User-Agent; NULL: none */
    const char *method;         /* NULL: GET, or POST where there is a body */
    const char *body;           /* of n_body bytes; NULL: none */
    size_t n_body;
    const struct ws_http_signer *signer;        /* NULL: it is not signed */
    const char *ca_file, *cert_file, *key_file; /* NULL: the system's authorities; no certificate */
    unsigned connect_ms, timeout_ms; /* of connecting (0: WS_CONNECT_TIMEOUT_MS), of all (0: none) */
    char *why;                       /* CURL_ERROR_SIZE bytes for libcurl's own words; NULL: only its code */
    int shortage;                    /* set: EMFILE, ENFILE: there was no descriptor for a socket */
};
/* http and https alone, by no proxy, no redirect; for what else a caller wants it adds its own options. 0 or
 * -ENOMEM. */
WS_MUST_USE int ws_http_set_up(CURL *easy, struct ws_http_transfer *t);

/* libcurl's codes become an errno, and a sentence, here and nowhere else. 0 for CURLE_OK. */
int ws_http_errno_from_curl(CURLcode code);
const char *ws_http_why(const struct ws_http_transfer *t, CURLcode code);

/* Both: 0 or -ENOMEM. */
WS_MUST_USE int ws_http_add_header(struct curl_slist **list, const char *line);
WS_MUST_USE int ws_http_add_bearer(struct curl_slist **list, const char *token);
void ws_http_free_headers(struct curl_slist *list); /* wiped before; NULL is fine */

/* A reply that is kept, NUL-terminated. */
struct ws_http_text {
    struct ws_bytes bytes; /* its length is without the NUL; empty: nothing came */
    size_t limit;
    bool is_too_big, lacks_memory; /* why its taking was refused */
};
size_t ws_http_receive_text(char *bytes, size_t one, size_t n, void *text); /* CURLOPT_WRITEFUNCTION */

#endif
