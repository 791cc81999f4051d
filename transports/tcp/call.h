/* The internals of a catalog's server, shared by its files: serve (its life, and which function serves a request),
 * versions (manifests and files), polls (requests that wait for a change), body and delta_body (what is sent). */
#ifndef WS_TRANSPORTS_TCP_CALL_H
#define WS_TRANSPORTS_TCP_CALL_H
#include "transports/http/server.h"
#include "transports/protocol/api.h"
#include "transports/tcp/body.h"
#include "transports/tcp/delta_body.h"
#include "transports/tcp/tcp.h"
#include <pthread.h>
#include <stdatomic.h>

/* A request that is being served, or waits: thousands do. */
struct ws_tcp_call {
    struct ws_tcp_call *next, *prev; /* in the list of long polls */
    struct ws_tcp_server *server;
    struct ws_http_incoming *in;
    struct ws_api_request *api; /* while a function serves it; NULL: it waits, or is sent */
    struct ws_tcp_body *body;   /* while it cannot be answered yet */
    bool is_suspended;
    bool is_held; /* suspended by its route, not for the catalog's seq */
    int64_t poll_end_ms;
};

struct ws_tcp_server {
    struct ws_catalog catalog;
    struct ws_tcp_bodies bodies;
    struct ws_tcp_deltas deltas;
    struct ws_http_server *http;
    pthread_t clock; /* ends long polls */
    atomic_bool stop;
    _Atomic uint64_t bytes_sent;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic uint64_t held_wakes; /* grows with lock */
    /* guarded by lock */
    struct ws_tcp_call *polls;
};

/* The version's deltas, as JSON; look: those that are known now. */
WS_MUST_USE int ws_tcp_list_deltas(const struct ws_tcp_call *q, bool look, json_t **out,
                                   struct ws_error *err);
/* A manifest, or (a range of) a file. */
void ws_tcp_serve_version(struct ws_tcp_call *q, struct ws_http_answer *a);

/* Suspends the request until wake or the end of its time; false: answer now. */
bool ws_tcp_poll_waits(struct ws_tcp_call *q);
/* The same for a request that its route holds, of which the server was woken `wakes` times before the route was asked;
 * false: ask it again. */
bool ws_tcp_poll_holds(struct ws_tcp_call *q, uint64_t hold_ms, uint64_t wakes);
bool ws_tcp_poll_has_time(const struct ws_tcp_call *q);
void ws_tcp_poll_ended(struct ws_tcp_call *q); /* its request has, whether it waited or not */
WS_MUST_USE int ws_tcp_polls_start(struct ws_tcp_server *s);
void ws_tcp_polls_stop(struct ws_tcp_server *s); /* none waits any more */

#endif
