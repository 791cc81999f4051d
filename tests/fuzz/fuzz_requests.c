/* The HTTP server under libFuzzer: the bytes of a connection. Whatever comes, a handler sees only requests that its
 * route allows, with bodies within its limit; and the server goes on. */
#include "transports/base/log.h"
#include "transports/http/server.h"
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_BODY  1000
#define LOOK_MS   2     /* for an answer to what may be no whole request */
#define ANSWER_MS 20000 /* to what is one */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what) {
        perror("fuzz_requests");
        abort();
    }
}

static void serve(void *self, struct ws_http_incoming *in, struct ws_http_answer *a)
{
    const char *argument = ws_http_argument(in, "a");
    (void)self;
    require(in->path[0] == '/' && in->route && in->route->methods & in->method);
    require(in->route->role == WS_ROLE_OPEN || strcmp(in->who.name, WS_IDENTITY_SHARED) == 0);
    require(in->body.len <= MAX_BODY && (in->body.len == 0 || in->who.name[0]));
    a->json = ws_http_json(in) ? json_pack("{s:O}", "body", in->json) : json_pack("{s:s?}", "a", argument);
    ws_http_arguments(in, &a->json);
    if (!a->json) /* an argument that is no UTF-8 */
        a->json = json_object();
}

static const struct ws_http_route routes[] = {
    WS_HTTP_ROUTE(WS_HTTP_READ, "/healthz", OPEN, serve),
    WS_HTTP_ROUTE(WS_HTTP_POST, "/post", READ, serve),
    WS_HTTP_ROUTE(WS_HTTP_ANY, "/v1/*", READ, serve),
    {0},
};

static struct ws_http_server *server(void)
{
    static struct ws_http_server *s;
    struct ws_error err;
    if (s)
        return s;
    ws_log_set_level(WS_LOG_ERROR);
    require(ws_http_server_new(&s,
                               &(struct ws_http_server_options){.listen = "127.0.0.1:0",
                                                                .access.token = "t",
                                                                .routes = routes,
                                                                .n_threads = 1,
                                                                .max_connections = 64,
                                                                .idle_seconds = 60,
                                                                .max_body = MAX_BODY,
                                                                .limits_unauthenticated = true},
                               &err) == 0);
    return s;
}

/* From one address of loopback after the other: their ports would be used up. */
static int connect_to(unsigned port)
{
    static uint32_t n;
    const int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f010001 + n++ % 65000)};
    (void)setsockopt(sock, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    require(bind(sock, (struct sockaddr *)&a, sizeof(a)) == 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons((uint16_t)port);
    require(connect(sock, (struct sockaddr *)&a, sizeof(a)) == 0);
    return sock;
}

/* What the server answers to it, until the connection ends, or wait_ms have passed without a byte; n: bytes of out. */
static size_t exchange(const uint8_t *data, size_t size, int wait_ms, char *out, size_t n)
{
    const int sock = connect_to(ws_http_server_port(server()));
    const struct linger drop = {.l_onoff = 1, .l_linger = 0};
    struct pollfd p = {.fd = sock, .events = POLLIN};
    char more[4096];
    size_t got = 0;
    ssize_t k;
    for (; size > 0 && (k = send(sock, data, size, MSG_NOSIGNAL)) > 0; size -= (size_t)k)
        data += k;
    while (poll(&p, 1, wait_ms) == 1 && (k = recv(sock, more, sizeof(more), 0)) > 0) {
        const size_t kept = got + (size_t)k < n ? (size_t)k : n - got;
        memcpy(out + got, more, kept);
        got += kept;
    }
    (void)setsockopt(sock, SOL_SOCKET, SO_LINGER, &drop, sizeof(drop));
    close(sock);
    return got;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char good[] =
        "GET /v1/x?a=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nConnection: close\r\n\r\n";
    static unsigned n;
    char reply[64];
    size_t got;
    sigset_t alarm_only;
    /* libFuzzer's timer would interrupt a connect that waits; another thread takes it. */
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    got = exchange(data, size, LOOK_MS, reply, sizeof(reply));
    require(got == 0 || (got > 5 && memcmp(reply, "HTTP/", 5) == 0));
    if (n++ % 16 == 0) {
        got = exchange((const uint8_t *)good, sizeof(good) - 1, ANSWER_MS, reply, sizeof(reply));
        require(got > 12 && memcmp(reply, "HTTP/1.1 200", 12) == 0);
    }
    return 0;
}
