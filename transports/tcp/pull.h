/* tcp, the mount's side, shared by its files: pull (a source, and its requests in JSON), lane (blocks of files),
 * lane_delta (deltas), guard (progress of all of them). */
#ifndef WS_TRANSPORTS_TCP_PULL_H
#define WS_TRANSPORTS_TCP_PULL_H
#include "transports/http/transfer.h"
#include "transports/simd/copy.h"
#include "transports/tcp/guard.h"
#include "transports/tcp/headers.h"
#include "transports/tcp/tcp.h"

#define WS_TCP_STALL_SECONDS 10L          /* a transfer that moves nothing for so long has lost its peer */
#define WS_TCP_REFUSAL_BYTES (64UL << 10) /* of an answer that is no success, which is kept as the reason */

struct ws_tcp_source {
    struct ws_source head;
    struct ws_source_options options; /* owns its strings */
    struct ws_tcp_headers headers;
    atomic_bool has_spoken; /* HTTP, since it was opened */
};

struct ws_tcp_lane {
    struct ws_lane head;
    CURL *curl;
    struct ws_http_transfer transfer;
    struct ws_hasher *hasher;
    char why[CURL_ERROR_SIZE];
};

/* Sets c up for a request to a source. t->url is set; what else is set in t stays, and so does c's connection. 0 or
 * -ENOMEM. */
WS_MUST_USE int ws_tcp_set_up(CURL *c, struct ws_tcp_source *s, struct ws_http_transfer *t, char *why,
                              struct ws_tcp_guard *guard);
/* As ws_http_errno_from_curl, with one exception: once a source has spoken HTTP, a peer that speaks none, or ends a
 * handshake, is a proxy before a source that is away: -ECONNRESET, and the request is repeated. */
int ws_tcp_errno_from_curl(const struct ws_source *source, CURLcode code);
/* The sentence in an error body {"error":..,"errno":..} of a source's answer at url, without its token; else the
 * status. sent: the request's headers. -ECONNRESET: they had a token that has been exchanged since: it is to be
 * repeated. */
int ws_tcp_status_error(struct ws_source *source, const char *url, long status,
                        const struct ws_http_text *body, const struct curl_slist *sent, struct ws_error *err);

int ws_tcp_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err);
void ws_tcp_lane_close(struct ws_lane *lane);
int ws_tcp_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err);
int ws_tcp_fetch_delta(struct ws_lane *lane, const struct ws_delta_fetch *f, struct ws_error *err);
/* Sets a lane's handle up for this path of its source's, with bytes to go to take(..., arg). Silence ends it. */
WS_MUST_USE int ws_tcp_lane_set_up(struct ws_tcp_lane *l, const char *path, struct ws_tcp_guard *guard,
                                   curl_write_callback take, void *arg, struct ws_error *err);
uint64_t ws_tcp_stall_ns(const struct ws_lane *lane);

#endif
