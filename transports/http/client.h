/* An HTTP client: one request, one reply, as JSON where it is that. A thin cover over libcurl that is strict where a server may
 * be wrong or hostile: the reply is bounded, every wait has an end and can be cancelled within a tenth of a
 * second, redirects are not followed, and neither a token nor a URL with credentials ever reaches a message.
 * A call blocks its caller; one thread of the client's runs the calls of all callers, and keeps connections
 * for some seconds between them. */
#ifndef WS_TRANSPORTS_HTTP_CLIENT_H
#define WS_TRANSPORTS_HTTP_CLIENT_H
#include "transports/base/error.h"
#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

#define WS_HTTP_KEPT 4
struct ws_http_signer; /* transfer.h */

/* A piece of a reply's body, as it came. */
struct ws_http_piece {
    long status;
    const char *content_range; /* the header's value; NULL: there was none */
    const char *bytes;
    size_t n;
};

struct ws_http_request {
    const char *what;   /* is called, for sentences: "an engine" */
    const char *url;    /* http(s)://host:port[/prefix] */
    const char *path;   /* "/model_info"; added to url */
    const json_t *body; /* borrowed; NULL: GET, else POST of this */
    const char *method; /* "PUT", "DELETE", "HEAD"; NULL: GET or POST, as the body says */
    const char *bytes;  /* a body of another kind than JSON, instead of it: n_bytes, borrowed; NULL: none */
    size_t n_bytes;
    const char *const *headers;          /* more of them, up to a NULL; NULL: none */
    const struct ws_http_signer *signer; /* the headers and the body are signed with it; NULL: they are not */
    const char *keep[WS_HTTP_KEPT];      /* headers of the reply that are kept for the caller; NULL: none */
    /* Takes the body of a reply of 200 or 206 as it comes, on the client's thread, instead of the reply's text; not 0
     * ends the call, -ECANCELED. NULL: it is kept as text. */
    int (*came)(void *arg, const struct ws_http_piece *piece);
    void *arg;
    const char *token; /* bearer, or NULL */
    const char
        *hidden[2]; /* keys that are not shown where a reply repeats them, as the bearer is not; NULL: none */
    const char *ca_file; /* whom to trust instead of the system's authorities; NULL: those */
    const char
        *ca_below; /* the folder that ca_file has to lie below, at this call (below.h); NULL: anywhere */
    bool fresh;    /* on a connection of its own, sent once at most. Else it may be sent again when a
                      connection that was kept is closed without a reply: for what may be repeated. */
    unsigned timeout_ms;    /* of the whole call; connecting ends earlier; 0: none */
    unsigned stall_s;       /* a call that moves nothing for so long is ended, -ETIMEDOUT; 0: it is not */
    unsigned least_bytes_s; /* with stall_s: less than this a second counts as nothing; 0: 1 */
    size_t n_cancel;
    const atomic_bool *const *cancel; /* n_cancel of them, any of them NULL */
};

struct ws_http_client;
WS_MUST_USE int ws_http_client_new(struct ws_http_client **out, struct ws_error *err);
void ws_http_client_free(struct ws_http_client *http); /* no call runs any more; NULL is fine */

struct ws_http_reply {
    long status;
    char *text;               /* NUL-terminated, as it came; never NULL after success */
    json_t *json;             /* the object in it, NULL when it is not JSON */
    char *kept[WS_HTTP_KEPT]; /* the headers that were asked for; NULL: it had none */
};

/* Any thread, any number at once. 0 when any reply came, whatever its status; the reply is then the caller's
 * to release. No byte was sent, on any connection: -EHOSTUNREACH. Else the server may have acted: -ETIMEDOUT,
 * -ECONNRESET (no reply), -ECANCELED; -EPROTO for no HTTP or a reply over WS_MAX_REPLY_BYTES; -EACCES for a
 * certificate that is not trusted, and where ca_file cannot be used; -ENOMEM. */
WS_MUST_USE int ws_http_call(struct ws_http_client *http, const struct ws_http_request *request,
                             struct ws_http_reply *out, struct ws_error *err);
/* Blanks what a server says: that ends up in messages, and some repeat the key that they did not like, as it is or as
 * JSON writes it. token NULL: none. */
void ws_http_blank_token(char *text, const char *token);
void ws_http_reply_release(struct ws_http_reply *reply); /* zeroed is fine */

#endif
