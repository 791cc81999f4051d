#include "backends/trainer/astraflow/http.h"
#include "transports/http/door.h"
#include "transports/http/server.h"
#include <errno.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BODY        (64UL << 10)
#define MAX_CONNECTIONS 4096U
#define IDLE_SECONDS    30U

struct ws_astraflow_http {
    struct ws_http_door *door;
    const struct ws_astraflow_route *routes;
    void *self;
    unsigned port;
};

/* A request on its way in. */
struct incoming {
    size_t n;
    bool too_large;
    char bytes[];
};

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, json_t *reply) /* steals it */
{
    char *text = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
    struct MHD_Response *r =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    json_decref(reply);
    if (!r) {
        free(text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, "Content-Type", "application/json");
    (void)MHD_add_response_header(r, "Cache-Control", "no-store");
    enum MHD_Result ok = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result serve(struct ws_astraflow_http *h, struct MHD_Connection *c, const char *method,
                             const char *path, const struct incoming *in)
{
    const struct ws_astraflow_route *r = h->routes;
    json_t *body, *reply = NULL;
    while (r->path && (strcmp(r->path, path) != 0 || strcmp(r->method, method) != 0))
        r++;
    if (!r->path)
        return answer(c, MHD_HTTP_NOT_FOUND, json_pack("{s:s}", "error", "not found"));
    if (in->too_large)
        return answer(c, MHD_HTTP_CONTENT_TOO_LARGE, json_pack("{s:s}", "error", "the body is too large"));
    /* A transfer may take long: only idle connections are closed by the clock. */
    (void)MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0U);
    body = json_loadb(in->bytes, in->n, JSON_REJECT_DUPLICATES, NULL);
    unsigned status = r->serve(h->self, json_is_object(body) ? body : NULL, &reply);
    json_decref(body);
    enum MHD_Result ok = answer(c, status, reply);
    (void)MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, IDLE_SECONDS);
    return ok;
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *protocol, const char *bytes, size_t *n, void **state)
{
    struct incoming *in = *state;
    (void)protocol;
    if (!in) { /* the headers are here */
        *state = malloc(sizeof(*in) + MAX_BODY);
        if (*state)
            *(struct incoming *)*state = (struct incoming){0};
        return *state ? MHD_YES : MHD_NO;
    }
    if (*n == 0)
        return serve(self, c, method, path, in);
    if (*n > MAX_BODY - in->n) {
        in->too_large = true; /* read to the end and answered then */
    } else {
        memcpy(in->bytes + in->n, bytes, *n);
        in->n += *n;
    }
    *n = 0;
    return MHD_YES;
}

static void on_completed(void *self, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode code)
{
    (void)self;
    (void)c;
    (void)code;
    free(*state);
    *state = NULL;
}

int ws_astraflow_http_new(struct ws_astraflow_http **out, const char *listen,
                          const struct ws_astraflow_route *routes, void *self, struct ws_error *err)
{
    struct ws_astraflow_http *h = calloc(1, sizeof(*h));
    unsigned flags =
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | WS_HTTP_DOOR_FLAGS;
    if (!h)
        return ws_error_set(err, ENOMEM, "no memory for the HTTP server");
    h->routes = routes;
    h->self = self;
    int rc = ws_http_door_new(&h->door, listen, true, MAX_CONNECTIONS, &h->port, err);
    if (rc == 0) {
        struct MHD_Daemon *daemon = MHD_start_daemon(
            flags, 0, NULL, NULL, on_request, h, WS_HTTP_DOOR_OPTIONS(h->door), MHD_OPTION_CONNECTION_TIMEOUT,
            IDLE_SECONDS, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
        rc = daemon ? ws_http_door_open(h->door, daemon, err)
                    : ws_error_set(err, EIO, "the HTTP server on %s did not start", listen);
    }
    if (rc < 0) {
        ws_astraflow_http_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

unsigned ws_astraflow_http_port(const struct ws_astraflow_http *h)
{
    return h->port;
}

void ws_astraflow_http_free(struct ws_astraflow_http *h)
{
    if (!h)
        return;
    ws_http_door_free(h->door);
    free(h);
}
