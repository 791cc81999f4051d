#include "backends/engine/reference/routes.h"

#define MAX_BODY        (1UL << 20)
#define MAX_CONNECTIONS 64U
#define IDLE_SECONDS    60U

void ws_answer_bad(struct ws_http_answer *a, const char *message)
{
    a->status = 400;
    a->json = json_pack("{s:{s:s, s:s}}", "error", "message", message, "type", "BadRequest");
}

/* As the real servers say it. */
static void refuse(void *self, const struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    (void)in;
    a->json = a->status == 401 ? json_pack("{s:s}", "error", "Unauthorized")
              : a->status == 413
                  ? json_pack("{s:s}", "error", "the body is too big")
                  : json_pack("{s:s}", "detail", a->status == 405 ? "Method Not Allowed" : "Not Found");
}

static bool read_arguments(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    (void)self;
    if (in->body.len > 0 && !json_is_object(ws_http_json(in))) {
        ws_answer_bad(a, "the body is no JSON object");
        return false;
    }
    ws_http_arguments(in, &in->json);
    return true;
}

int ws_reference_serve(struct ws_http_server **out, const char *listen, const char *api_key,
                       const struct ws_http_route *routes, void *self, struct ws_error *err)
{
    return ws_http_server_new(
        out,
        &(struct ws_http_server_options){.listen = listen,
                                         .access = {.token = api_key, .insecure = !api_key},
                                         .routes = routes,
                                         .self = self,
                                         .max_connections = MAX_CONNECTIONS,
                                         .idle_seconds = IDLE_SECONDS,
                                         .max_body = MAX_BODY,
                                         .may_be_stored = true,
                                         .before = read_arguments,
                                         .refuse = refuse},
        err);
}
