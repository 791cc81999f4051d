/* HTTP to an engine: one request, one JSON reply, nothing kept. A thin cover over libcurl that is
 * strict where an engine may be wrong or hostile: the reply is bounded, every wait has an end and can
 * be cancelled within a tenth of a second, redirects are not followed, and neither a token nor a URL
 * with credentials ever reaches a message. Blocking; any thread. */
#ifndef WS_ENGINE_HTTP_H
#define WS_ENGINE_HTTP_H
#include "transports/error.h"
#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

struct ws_http_request {
    const char *url;     /* http(s)://host:port[/prefix] */
    const char *path;    /* "/model_info"; added to url */
    const json_t *body;  /* borrowed; NULL: GET, else POST of this */
    const char *token;   /* bearer, or NULL */
    unsigned timeout_ms; /* of the whole call; connecting ends earlier */
    size_t n_cancel;
    const atomic_bool *const *cancel; /* n_cancel of them, any of them NULL */
};

struct ws_http_reply {
    long status;
    char *text;   /* NUL-terminated, as it came; never NULL after success */
    json_t *json; /* the object in it, NULL when it is not JSON */
};

/* Is this the address of an engine? -EINVAL for another scheme, credentials, a query or a fragment;
 * the sentence never repeats credentials. */
WS_MUST_USE int ws_http_check_url(const char *url, struct ws_error *err);
/* 0 when any reply came, whatever its status; the reply is then the caller's to release. Before the
 * connection stands nothing was sent: -EHOSTUNREACH. After that the engine may have acted:
 * -ETIMEDOUT, -ECONNRESET (no reply), -ECANCELED; -EPROTO for no HTTP or a reply over
 * WS_MAX_REPLY_BYTES; -EACCES for a certificate that is not trusted; -ENOMEM. */
WS_MUST_USE int ws_http_call(const struct ws_http_request *request, struct ws_http_reply *out,
                             struct ws_error *err);
void ws_http_reply_release(struct ws_http_reply *reply); /* zeroed is fine */

#endif
