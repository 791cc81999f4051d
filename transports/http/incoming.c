#include "transports/http/exchange.h"
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

const char *ws_http_header(const struct ws_http_incoming *in, const char *name)
{
    return MHD_lookup_connection_value(in->connection, MHD_HEADER_KIND, name);
}

const char *ws_http_argument(const struct ws_http_incoming *in, const char *name)
{
    return MHD_lookup_connection_value(in->connection, MHD_GET_ARGUMENT_KIND, name);
}

static enum MHD_Result add_argument(void *arg, enum MHD_ValueKind kind, const char *key, const char *value)
{
    json_t **object = arg;
    (void)kind;
    if (!*object)
        *object = json_object();
    json_object_set_new(*object, key, json_string(value ? value : ""));
    return MHD_YES;
}

void ws_http_arguments(const struct ws_http_incoming *in, json_t **object)
{
    (void)MHD_get_connection_values(in->connection, MHD_GET_ARGUMENT_KIND, add_argument, object);
}

json_t *ws_http_json(struct ws_http_incoming *in)
{
    if (!in->json && in->body.len > 0)
        in->json = json_loadb(in->body.ptr, in->body.len, JSON_REJECT_DUPLICATES, NULL);
    return in->json;
}

int ws_http_connection_socket(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

int ws_http_socket(const struct ws_http_incoming *in)
{
    return ws_http_connection_socket(in->connection);
}

void ws_http_peer(const struct ws_http_incoming *in, char out[96])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(in->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    if (info && info->client_addr)
        (void)getnameinfo(info->client_addr,
                          info->client_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                                   : sizeof(struct sockaddr_in),
                          host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, 96, "%.64s:%.8s", host, port);
}

void ws_http_suspend(const struct ws_http_incoming *in)
{
    MHD_suspend_connection(in->connection);
}

void ws_http_resume(const struct ws_http_incoming *in)
{
    MHD_resume_connection(in->connection);
}
