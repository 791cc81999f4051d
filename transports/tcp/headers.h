/* Headers: what each request to a source carries. An operator's token is read again when its file changes. Without a token of its own a source on this host's loopback is sent
 * the one that its server made (access/local_token.h), looked for until it is there, and again when the server
 * refuses it. Before each request the account that listens there is looked at again: once a server has ended, any
 * account may take its port, and is sent nothing. Thread safe. */
#ifndef WS_TRANSPORTS_TCP_HEADERS_H
#define WS_TRANSPORTS_TCP_HEADERS_H
#include "transports/access/bearer.h"
#include "transports/access/local_token.h"
#include "transports/access/token_hash.h"
#include "transports/base/error.h"
#include <curl/curl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ws_tcp_header_list {
    struct ws_tcp_header_list
        *before; /* with the token of before: transfers may use it until the source is closed */
    struct curl_slist *list;
    char *token; /* in secret memory */
};
struct ws_tcp_headers {
    const char *url;   /* NULL: no token is looked for; as what follows, borrowed */
    const char *plain; /* http:// on this host's loopback, where any account may listen; NULL: it is not */
    bool is_given;     /* there is an operator's token */
    pthread_mutex_t lock;
    /* guarded by lock */
    struct ws_tcp_header_list *newest; /* NULL: none */
    struct ws_bearer_file file;        /* of the operator's token */
    uid_t owner;                       /* whose server it is of */
    bool is_pinned;                    /* an account has listened there: */
    uid_t account;
    uint64_t looked_ns;
    bool was_refused;
};

/* token: NULL or "": as in ws_source_options. file, below: where it was read; file NULL: it never changes. -ENOMEM; destroy
 * is for that, too. url, file and below stay. */
WS_MUST_USE int ws_tcp_headers_init(struct ws_tcp_headers *h, const char *url, const char *token,
                                    const char *file, const char *below);
void ws_tcp_headers_destroy(struct ws_tcp_headers *h); /* wipes them */
/* Before each request, and again before its answer is believed: is it still the account that listened first at an
 * http:// address of this host's loopback? Root and this process's own account may take its place. -EPERM: another one
 * did, since any account may listen there; -EHOSTUNREACH: nobody does any more. */
WS_MUST_USE int ws_tcp_headers_check(struct ws_tcp_headers *h, struct ws_error *err);
struct curl_slist *ws_tcp_headers_now(struct ws_tcp_headers *h); /* stays until destroy */
void ws_tcp_headers_blank(struct ws_tcp_headers *h,
                          char *text); /* takes its token out of what the source says */
/* The source answered 401 to a request with these headers (of ws_tcp_headers_now). Is there another token by now, with
 * which it may be repeated? */
bool ws_tcp_headers_refused(struct ws_tcp_headers *h, const struct curl_slist *sent);
/* Was the token of these headers found in a file of this host's, and in which? */
bool ws_tcp_headers_found(struct ws_tcp_headers *h, const struct curl_slist *sent,
                          char path[WS_LOCAL_TOKEN_PATH + 16]);

#endif
