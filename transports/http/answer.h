/* What a server's handler answers: JSON, a text, or a body of its own, which goes out of memory that is held
 * for it, or is made while it is sent. */
#ifndef WS_TRANSPORTS_HTTP_ANSWER_H
#define WS_TRANSPORTS_HTTP_ANSWER_H
#include "transports/base/error.h"
#include "transports/http/incoming.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct MHD_Response;
/* The first of body, json and text that is there is sent, and freed. None: the connection ends without an
 * answer. */
struct ws_http_answer {
    unsigned status; /* 200 when a handler is called */
    struct MHD_Response *body;
    json_t *json;
    char *text;       /* malloc'ed */
    const char *type; /* the text's; NULL: text/plain */
    unsigned allow;   /* of a 405: the methods that are served */
    bool is_later;    /* the request is suspended, its handler called again */
};

/* {"error": sentence, "errno": name}, with the errno's status. */
void ws_http_refuse(struct ws_http_answer *a, int negative_errno, const struct ws_error *err);
/* The same where nothing of that name but these methods is served. */
void ws_http_refuse_method(struct ws_http_answer *a, const struct ws_http_incoming *in, unsigned allow);

/* Bodies. NULL where there is no memory. drop is called once the body is read no more, and where NULL is
 * returned. */
struct MHD_Response *ws_http_body(const void *data, uint64_t size, void (*drop)(void *arg), void *arg);
/* read fills up to room bytes of what lies at `at` and says how many; 0: it has suspended the connection. */
#define WS_HTTP_STREAM_ENDS  (-1)
#define WS_HTTP_STREAM_FAILS (-2) /* the connection ends */
#define WS_HTTP_SIZE_UNKNOWN UINT64_MAX
struct MHD_Response *ws_http_stream(uint64_t size,
                                    ssize_t (*read)(void *arg, uint64_t at, char *out, size_t room),
                                    void (*drop)(void *arg), void *arg);
void ws_http_body_header(struct MHD_Response *body, const char *name, const char *value);
/* Behind a stream of unknown size; called by its read, before it says that the stream ends. Clients of HTTP/1.0 do not get it. */
void ws_http_body_trailer(struct MHD_Response *body, const char *name, const char *value);

#endif
