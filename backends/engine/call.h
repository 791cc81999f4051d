/* Call: one request to an engine of some kind, and what its status means before the body is looked at. Over
 * http.h, for the kinds' own files. Blocking; any thread. */
#ifndef WS_ENGINE_CALL_H
#define WS_ENGINE_CALL_H
#include "backends/engine/engine.h"
#include "transports/http/client.h"

/* GET, or POST of body (stolen; NULL: -EINVAL, what was to be sent is no UTF-8). After 0 the reply is the
 * caller's to release and holds a JSON object; its status is 200 or one of the 4xx that the kind explains
 * itself. -EACCES: it wants a key; -EPROTO: no such route here, or no JSON; -EREMOTEIO: 5xx, with what it
 * said. */
WS_MUST_USE int ws_call_get(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                            struct ws_error *err);
WS_MUST_USE int ws_call_post(const struct ws_engine_target *t, const char *path, json_t *body,
                             unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err);
/* The same, sent once at most, on a connection of its own: for what changes weights, and a resume. A POST by
 * ws_call_post may be sent again when a connection that was kept is closed without a reply. */
WS_MUST_USE int ws_call_post_once(const struct ws_engine_target *t, const char *path, json_t *body,
                                  unsigned timeout_ms, struct ws_http_reply *reply, struct ws_error *err);
/* POST of {}, sent once at most, to a route whose reply may have no body; any status but 200 is an error.
 * reply: as above, where it is not NULL; its json may be NULL. */
WS_MUST_USE int ws_call_plain(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                              struct ws_error *err);
/* once(), again and again while it returns -EBUSY, for limit_ms, t->timeout_ms at most; then -EREMOTEIO. */
WS_MUST_USE int ws_call_while_busy(const struct ws_engine_target *t, unsigned limit_ms,
                                   int (*once)(const struct ws_engine_target *t, struct ws_error *err),
                                   struct ws_error *err);
/* GET of what may be no JSON; any status but 200 is an error. */
WS_MUST_USE int ws_call_page(const struct ws_engine_target *t, const char *path, struct ws_http_reply *reply,
                             struct ws_error *err);
/* Does it answer a GET of that with this status? Not with 200; any other is an error. */
WS_MUST_USE int ws_call_refuses(const struct ws_engine_target *t, const char *path, long status,
                                bool *refuses, struct ws_error *err);
/* Is there such a route that is only POSTed? FastAPI answers a GET of it with 405, and 404 where there is
 * none. */
WS_MUST_USE int ws_call_has_post(const struct ws_engine_target *t, const char *path, bool *has,
                                 struct ws_error *err);

/* The bearer of a request that changes the engine, or only asks it; NULL: none. */
const char *ws_call_token(const struct ws_engine_target *t, bool changes);
/* rc of a later step of a load: the engine has been told by then, so that -EHOSTUNREACH becomes -ECONNRESET.
 */
int ws_call_told(int rc, struct ws_error *err);
/* timeout_ms, or what is left until t->end_ns; 1 where that is over. */
unsigned ws_call_within_ms(const struct ws_engine_target *t, unsigned timeout_ms);
/* For everything but a load. */
unsigned ws_call_short_ms(const struct ws_engine_target *t);
/* For a pause that lasts as long as the requests that run: that of a load, where no other is asked for. */
unsigned ws_call_pause_ms(const struct ws_engine_target *t);
/* A string member of the reply; "" where there is none. */
const char *ws_call_text(const struct ws_http_reply *reply, const char *key);
/* Copies what an engine says of itself; -EPROTO where it does not fit: then it is no version and no path of
 * ours. */
int ws_call_copy(const struct ws_engine_target *t, char *out, size_t room, const char *text, const char *what,
                 struct ws_error *err);

#endif
