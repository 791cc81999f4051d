/* The HTTP of the reference engine, on libmicrohttpd with a thread a connection, because a load blocks
 * for as long as it takes while /model_info goes on answering. */
#include "backends/engine/reference/routes.h"
#include "transports/http/door.h"
#include "transports/http/server.h"
#include <errno.h>
#include <microhttpd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BODY        (1UL << 20)
#define MAX_CONNECTIONS 64U
#define IDLE_SECONDS    60U

struct ws_reference_http {
    struct ws_http_door *door;
    const struct ws_reference_route *routes;
    size_t n_routes;
    void *self;
    char *api_key; /* NULL: none */
    unsigned port;
};

/* A request on its way in. */
struct incoming {
    size_t used;
    bool too_big;
    char *bytes;
};

void ws_answer_bad(struct ws_answer *a, const char *message)
{
    a->status = MHD_HTTP_BAD_REQUEST;
    a->json = json_pack("{s:{s:s, s:s}}", "error", "message", message, "type", "BadRequest");
}

static bool is_allowed(const struct ws_reference_http *h, struct MHD_Connection *connection)
{
    if (!h->api_key)
        return true;
    return ws_http_bearer(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization"),
                          h->api_key);
}

static enum MHD_Result send_answer(struct MHD_Connection *connection, const struct ws_answer *a)
{
    char *text = a->json ? json_dumps(a->json, JSON_COMPACT) : strdup(a->text ? a->text : "");
    struct MHD_Response *response;
    enum MHD_Result rc;

    if (!text)
        return MHD_NO;
    response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", a->json ? "application/json" : "text/plain");
    rc = MHD_queue_response(connection, a->status, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result take_argument(void *arg, enum MHD_ValueKind kind, const char *key, const char *value)
{
    json_t **body = arg;
    (void)kind;
    if (!*body)
        *body = json_object();
    json_object_set_new(*body, key, json_string(value ? value : ""));
    return MHD_YES;
}

static void serve(struct ws_reference_http *h, struct MHD_Connection *connection,
                  const struct ws_reference_route *route, const struct incoming *in, struct ws_answer *a)
{
    json_t *body = NULL;

    if (!route->open && !is_allowed(h, connection)) {
        a->status = MHD_HTTP_UNAUTHORIZED;
        a->json = json_pack("{s:s}", "error", "Unauthorized");
        return;
    }
    if (in->too_big) {
        a->status = MHD_HTTP_CONTENT_TOO_LARGE;
        a->json = json_pack("{s:s}", "error", "the body is too big");
        return;
    }
    if (in->used)
        body = json_loadb(in->bytes, in->used, JSON_REJECT_DUPLICATES, NULL);
    if (in->used && !json_is_object(body))
        ws_answer_bad(a, "the body is no JSON object");
    else {
        (void)MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, take_argument, &body);
        route->serve(h->self, body, a);
    }
    json_decref(body);
}

static void collect(struct incoming *in, const char *bytes, size_t n)
{
    char *more;

    if (in->too_big || n > MAX_BODY - in->used || !(more = realloc(in->bytes, in->used + n))) {
        in->too_big = true;
        return;
    }
    memcpy(more + in->used, bytes, n);
    in->bytes = more;
    in->used += n;
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *protocol, const char *bytes,
                                  size_t *n_bytes, void **state)
{
    unsigned wanted = !strcmp(method, "GET") ? WS_GET : !strcmp(method, "POST") ? WS_POST : 0;
    struct ws_reference_http *h = self;
    struct ws_answer a = {.status = MHD_HTTP_OK};
    struct incoming *in = *state;
    const struct ws_reference_route *route = NULL;
    enum MHD_Result rc;

    (void)protocol;
    if (!in) { /* the headers are here */
        *state = calloc(1, sizeof(*in));
        return *state ? MHD_YES : MHD_NO;
    }
    if (*n_bytes) {
        collect(in, bytes, *n_bytes);
        *n_bytes = 0;
        return MHD_YES;
    }
    /* A load or a held request may take long: only idle connections are closed by the clock. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0U);
    for (size_t i = 0; i < h->n_routes; i++) {
        if (!strcmp(h->routes[i].path, path))
            route = &h->routes[i];
    }
    if (route && (route->methods & wanted)) {
        serve(h, connection, route, in, &a);
    } else {
        a.status = route ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND;
        a.json = json_pack("{s:s}", "detail", route ? "Method Not Allowed" : "Not Found");
    }
    rc = send_answer(connection, &a);
    json_decref(a.json);
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, IDLE_SECONDS);
    return rc;
}

static void on_completed(void *self, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct incoming *in = *state;

    (void)self;
    (void)connection;
    (void)code;
    if (in)
        free(in->bytes);
    free(in);
    *state = NULL;
}

static int start(struct ws_reference_http *h, const char *listen, struct ws_error *err)
{
    unsigned flags =
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | WS_HTTP_DOOR_FLAGS;
    int rc = ws_http_door_new(&h->door, listen, true, MAX_CONNECTIONS, &h->port, err);
    if (rc)
        return rc;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, h, WS_HTTP_DOOR_OPTIONS(h->door), MHD_OPTION_CONNECTION_TIMEOUT,
        IDLE_SECONDS, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
    return daemon ? ws_http_door_open(h->door, daemon, err)
                  : ws_error_set(err, EIO, "the HTTP server on %s did not start", listen);
}

int ws_reference_http_new(struct ws_reference_http **out, const char *listen, const char *api_key,
                          const struct ws_reference_route *routes, size_t n_routes, void *self,
                          struct ws_error *err)
{
    struct ws_reference_http *h = calloc(1, sizeof(*h));
    int rc;

    if (!h || (api_key && !(h->api_key = strdup(api_key)))) {
        free(h);
        return ws_error_set(err, ENOMEM, "no memory for the HTTP server");
    }
    h->routes = routes;
    h->n_routes = n_routes;
    h->self = self;
    rc = start(h, listen, err);
    if (rc) {
        ws_reference_http_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

unsigned ws_reference_http_port(const struct ws_reference_http *h)
{
    return h->port;
}

void ws_reference_http_free(struct ws_reference_http *h)
{
    if (!h)
        return;
    ws_http_door_free(h->door);
    free(h->api_key);
    free(h);
}
