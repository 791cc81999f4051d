/* Guard: checks a request's progress while it runs. curl notices silence; a peer that sends a few bytes now and then
 * is not silent, and would keep a lane for ever. */
#ifndef WS_TRANSPORTS_TCP_GUARD_H
#define WS_TRANSPORTS_TCP_GUARD_H
#include "transports/base/error.h"
#include "transports/protocol/pace.h"
#include <curl/curl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ws_tcp_guard {
    const atomic_bool *cancel;            /* may be NULL */
    struct ws_pace *pace;                 /* may be NULL */
    uint64_t reported_ns, reported_bytes; /* to it, last */
    uint64_t stall_ns;                    /* 0: a trickle is fine */
    bool
        owed; /* what is to come now has begun: a sender that has it only in part has a source that is slow, too */
    uint64_t since_ns, since_bytes;
    bool trickles;
};
int ws_tcp_guard_look(void *guard, curl_off_t total, curl_off_t received, curl_off_t c,
                      curl_off_t d); /* CURLOPT_XFERINFOFUNCTION */
/* The error of a request that was ended because it trickled. */
int ws_tcp_trickled(const char *url, const char *what, struct ws_error *err);

#endif
