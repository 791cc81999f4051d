/* Call: one HTTP request to an engine, and what its status means before a kind looks at the body. Built on
 * transports/http/client.h, for the kinds' own files. Blocking; any thread. */
#ifndef WS_ENGINE_CALL_H
#define WS_ENGINE_CALL_H
#include "backends/engine/engine.h"
#include "transports/http/client.h"

/* GET, or POST of body where it is not NULL; fresh: on a new connection, sent once at most. Any status is 0.
 * Every request of this floor is made here; t->acted is kept here, too. */
WS_MUST_USE int ws_call_http(const struct ws_engine_target *t, const char *path, const json_t *body,
                             bool fresh, unsigned timeout_ms, struct ws_http_reply *reply,
                             struct ws_error *err);
/* GET, or POST of body (taken over; NULL: -EINVAL, a text to be sent is not UTF-8). After 0 the caller
 * releases the reply, which holds a JSON object and whose status is 200 or a 4xx that the kind explains
 * itself. -EACCES: it wants a key; -EPROTO: no such route here, or no JSON; -EREMOTEIO: 5xx, with the
 * engine's text. */
WS_MUST_USE int ws_call_get(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                            struct ws_error *err);
WS_MUST_USE int ws_call_post(const struct ws_engine_target *t, const char *path, json_t *body,
                             unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err);
/* The same, sent once at most, on a new connection: for requests that change weights, and for a resume. A
 * POST by ws_call_post may be sent again when a reused connection is closed without a reply. */
WS_MUST_USE int ws_call_post_once(const struct ws_engine_target *t, const char *path, json_t *body,
                                  unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err);
/* The same, for routes that answer success by a text, and a failure of any status by {"error": ...}. After 0 the
 * status is any, and the reply's json an object only where it failed. A 404 without "error" is a route that is not
 * there, -EPROTO. */
WS_MUST_USE int ws_call_explained(const struct ws_engine_target *t, const char *path, json_t *body,
                                  unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err);
/* POST of {}, sent once at most, to a route whose reply may have no body; any status but 200 is an error.
 * busy: the status that reports that requests are in the way, -EBUSY; 0: there is none. reply: as above, where
 * it is not NULL; its json may be NULL. */
WS_MUST_USE int ws_call_plain(const struct ws_engine_target *t, const char *path, long busy,
                              struct ws_http_reply *reply, struct ws_error *err);
/* Calls once() again while it returns -EBUSY, for limit_ms, t->timeout_ms at most; then -EREMOTEIO, with
 * what it said last. */
WS_MUST_USE int ws_call_while_busy(const struct ws_engine_target *t, unsigned limit_ms,
                                   int (*once)(const struct ws_engine_target *t, struct ws_error *err),
                                   struct ws_error *err);
/* GET of a page that need not be JSON; any status but 200 is an error. */
WS_MUST_USE int ws_call_page(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                             struct ws_error *err);
/* *refuses: does it answer a GET of the path with this status? 200: false; any other status is an error. */
WS_MUST_USE int ws_call_refuses(const struct ws_engine_target *t, const char *path, long status,
                                bool *refuses, struct ws_error *err);
/* Is there such a route for POST only? FastAPI answers a GET of it with 405, and with 404 where there is
 * none. */
WS_MUST_USE int ws_call_has_post(const struct ws_engine_target *t, const char *path, bool *has,
                                 struct ws_error *err);

/* The bearer token of a request that changes the engine, or only queries it; NULL: none. */
const char *ws_call_token(const struct ws_engine_target *t, bool changes);
/* The result of a later step of a load: the engine got the load by then, so -EHOSTUNREACH becomes
 * -ECONNRESET. */
int ws_call_after_request(int rc, struct ws_error *err);
/* timeout_ms, or what is left until t->end_ns; 1 where that is over. */
unsigned ws_call_within_ms(const struct ws_engine_target *t, unsigned timeout_ms);
/* For everything but a load. */
unsigned ws_call_short_ms(const struct ws_engine_target *t);
/* For a pause, which lasts as long as the running requests: a load's timeout, unless short_ms is set. */
unsigned ws_call_pause_ms(const struct ws_engine_target *t);
/* A string member of the reply; "" where there is none. */
const char *ws_call_text(const struct ws_http_reply *reply, const char *key);
/* Copies what an engine reports of itself; -EPROTO: it does not fit, so it is no version and no path of
 * wsync. */
int ws_call_copy(const struct ws_engine_target *t, char *out, size_t room, const char *text, const char *what,
                 struct ws_error *err);

#endif
