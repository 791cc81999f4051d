/* A catalog's servers with hostile clients: many that connect and send nothing, bodies from clients without
 * the token, and a lack of descriptors. */
#include "tests/fixtures/private_folder.h"
#include "transports/base/state_file.h"
#include "transports/ipc/serve.h"
#include "transports/tcp/tcp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define CLIENTS 16
#define MANY    60 /* clients that connect and send half a line */

static uint64_t no_seq(void *self)
{
    (void)self;
    return 1;
}

static int no_models(void *self, const char *model, json_t **out, struct ws_error *err)
{
    (void)self, (void)model, (void)err;
    *out = json_pack("{s:i,s:[]}", "seq", 1, "models");
    return 0;
}

static const struct ws_api_route *const *routes(void *self)
{
    static const struct ws_api_route table[] = {WS_API_ROUTE("GET", "/", READ),
                                                WS_API_ROUTE_BODY("POST", "/v1/large", REPORT, 1 << 20),
                                                WS_API_ROUTE("POST", "/v1/x", REPORT),
                                                WS_API_ROUTE("POST", "/", READ),
                                                {0}};
    static const struct ws_api_route *const tables[] = {table, NULL};
    (void)self;
    return tables;
}

static int no_route(void *self, const char *method, const char *path, struct ws_error *err)
{
    (void)self, (void)method;
    return ws_error_set(err, ENOENT, "there is no %s", path);
}

/* What the route of /v1/x holds, and how often it was asked. */
static atomic_bool has_news;
static atomic_uint n_asked;

static int route(void *self, const struct ws_identity *who, const char *method, const char *path,
                 const char *query, const json_t *body, json_t **reply, char **text, struct ws_error *err)
{
    (void)self, (void)who, (void)method, (void)query, (void)text;
    if (strcmp(path, "/") == 0)
        return ws_error_set(err, ENOENT, "nothing is there");
    atomic_fetch_add(&n_asked, 1);
    if (json_object_get(body, "hold_ms") && !atomic_load(&has_news))
        return WS_ROUTE_HELD;
    *reply = json_pack("{s:b}", "taken", 1);
    return 0;
}

static const struct ws_catalog_ops ops = {
    .seq = no_seq, .models = no_models, .routes = routes, .route = route, .no_route = no_route};

static struct ws_tcp_server *serve(const char *token)
{
    struct ws_tcp_server *s;
    struct ws_error err = {0};
    const struct ws_tcp_server_options o = {.listen = "127.0.0.1:0",
                                            .access = {.token = token, .insecure = !token},
                                            .n_threads = 1,
                                            .max_clients = CLIENTS};
    if (ws_tcp_server_new(&s, &(struct ws_catalog){&ops, NULL}, &o, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

static int new_socket(void)
{
    const struct timeval bound = {.tv_sec = 60};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound)), 0);
    return sock;
}

static void begin_call(const struct ws_tcp_server *s, int sock, const char *head)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)ws_tcp_server_port(s)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(sock, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(send(sock, head, strlen(head), MSG_NOSIGNAL), strlen(head));
}

static int call(const struct ws_tcp_server *s, const char *head)
{
    int sock = new_socket();
    begin_call(s, sock, head);
    return sock;
}

/* The status of the reply; 0: the connection ended without one. */
static int status_of(int sock)
{
    char reply[4096] = "";
    size_t n = 0;
    ssize_t more;
    while (!strstr(reply, "\r\n") && (more = recv(sock, reply + n, sizeof(reply) - 1 - n, 0)) > 0)
        n += (size_t)more;
    return n > 12 ? (int)strtol(reply + 9, NULL, 10) : 0;
}

static int ask(const struct ws_tcp_server *s, const char *head)
{
    int sock = call(s, head), status = status_of(sock);
    close(sock);
    return status;
}

#define PROBE "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

static void test_half_open(void **state)
{
    struct ws_tcp_server *s = serve(NULL);
    int known = call(s, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), half[MANY];
    (void)state;
    assert_int_equal(status_of(known), 200);
    for (unsigned i = 0; i < MANY; i++)
        half[i] = call(s, "GET /v1/mo");
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ask(s, PROBE), 200);
    assert_int_equal(status_of(half[0]), 0); /* closed, as the oldest */
    assert_int_equal(send(known, PROBE, strlen(PROBE), MSG_NOSIGNAL), strlen(PROBE));
    char first[4096];
    assert_true(recv(known, first, sizeof(first), 0) > 0); /* a client that sent a request stays */
    for (unsigned i = 0; i < MANY; i++)
        close(half[i]);
    close(known);
    ws_tcp_server_free(s);
}

/* The end of what a client sends comes with its last request: libmicrohttpd alone would keep it for two minutes. */
static void test_half_closed(void **state)
{
    struct ws_tcp_server *s = serve(NULL);
    char reply[4096];
    ssize_t n;
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        int sock = call(s, PROBE);
        assert_int_equal(shutdown(sock, SHUT_WR), 0);
        assert_int_equal(status_of(sock), 200);
        while ((n = recv(sock, reply, sizeof(reply), 0)) > 0)
            ;
        assert_int_equal(n, 0);
        close(sock);
    }
    ws_tcp_server_free(s);
}

/* None of these bodies is kept. */
static void test_bodies_without_token(void **state)
{
    struct ws_tcp_server *open = serve(NULL), *closed = serve("secret");
    (void)state;
    assert_int_equal(ask(closed, "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"), 401);
    assert_int_equal(ask(closed, "POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"),
                     401);
    assert_int_equal(ask(closed, "POST /v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
                                 "Content-Length: 100000000\r\n\r\n"),
                     413);
    assert_int_equal(ask(open, "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"), 413);
    assert_int_equal(ask(open, "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 16385\r\n\r\n"), 413);
    assert_int_equal(ask(open, "POST /v1/large HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n"), 413);
    assert_int_equal(ask(closed, "POST /v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
                                 "Content-Length: 2\r\n\r\n{}"),
                     200);
    assert_int_equal(ask(closed, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
    ws_tcp_server_free(open);
    ws_tcp_server_free(closed);
}

static uint64_t most_memory_kib(void)
{
    char text[4096] = "";
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    (void)!read(fd, text, sizeof(text) - 1);
    close(fd);
    const char *p = strstr(text, "VmHWM:");
    return p ? strtoull(p + 6, NULL, 10) : 0;
}

/* True: all of it; the server may end the connection meanwhile. */
static bool send_all(int sock, const char *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t sent = send(sock, data + at, n - at, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += (size_t)sent;
    }
    return true;
}

/* Also the body of a request to a route without a token: it is dropped, and ends with the limit. */
static void test_bodies_are_dropped(void **state)
{
    enum { CHUNK = 1 << 20, CHUNKS = 48 };
    struct ws_tcp_server *s = serve("secret");
    struct ws_tcp_server_stats stats;
    char *chunk = malloc(CHUNK + 32);
    const int head = snprintf(chunk, 32, "%x\r\n", CHUNK);
    (void)state;
    memset(chunk + head, 'x', CHUNK);
    memcpy(chunk + head + CHUNK, "\r\n", 2);
    const uint64_t before = most_memory_kib();
    int sock = call(s, "GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (unsigned i = 0; i < CHUNKS && send_all(sock, chunk, (size_t)head + CHUNK + 2); i++)
        ;
    assert_int_equal(status_of(sock), 0);
    ws_tcp_server_stats(s, &stats);
    assert_int_equal(stats.ended[WS_HTTP_ENDS_BODY], 1);
    assert_true(before > 0 && most_memory_kib() - before < CHUNKS * CHUNK / 2 / 1024);
    close(sock);
    sock = call(
        s, "GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
    assert_int_equal(status_of(sock), 200);
    close(sock);
    free(chunk);
    ws_tcp_server_free(s);
}

static int highest(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    return fd;
}

static unsigned count_lines(int fd, const char *what)
{
    char text[8192] = "";
    unsigned n = 0;
    (void)!pread(fd, text, sizeof(text) - 1, 0);
    for (const char *p = text; (p = strstr(p, what)); p++)
        n++;
    return n;
}

/* No descriptors are left; the log is kept. */
struct shortage {
    struct rlimit was;
    int log, stderr_was;
};

static void begin_shortage(struct shortage *n)
{
    n->log = memfd_create("log", MFD_CLOEXEC);
    n->stderr_was = dup(STDERR_FILENO);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &n->was), 0);
    assert_true(dup2(n->log, STDERR_FILENO) >= 0);
    const struct rlimit none = {.rlim_cur = (rlim_t)highest(), .rlim_max = n->was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
}

/* Once it was logged. */
static void end_shortage(struct shortage *n)
{
    for (unsigned i = 0; i < 600 && count_lines(n->log, "nobody more can connect") == 0; i++)
        (void)poll(NULL, 0, 100);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &n->was), 0);
}

static void look_at_log(struct shortage *n)
{
    dup2(n->stderr_was, STDERR_FILENO);
    assert_int_equal(count_lines(n->log, "nobody more can connect"), 1);
    close(n->log);
    close(n->stderr_was);
}

/* The acceptor waits while there are no descriptors, logs that once, and continues when there are some. */
static void test_no_descriptors(void **state)
{
    char path[108], byte;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ws_ipc_server *s;
    struct ws_error err = {0};
    struct shortage shortage;
    int waiting[2];
    (void)state;
    assert_true(private_path(path, sizeof(path), "test.sock"));
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(
        ws_ipc_server_new(&s, path, (gid_t)-1, &(struct ws_catalog){&ops, NULL}, NULL, NULL, &err), 0);
    for (unsigned i = 0; i < 2; i++)
        waiting[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    begin_shortage(&shortage);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(connect(waiting[i], (struct sockaddr *)&a, sizeof(a)), 0);
    end_shortage(&shortage);
    for (unsigned i = 0; i < 2; i++) { /* both are served now: malformed requests end the connection */
        assert_true(
            send(waiting[i], "no request at all, and long enough to be seen as none", 53, MSG_NOSIGNAL) > 0);
        assert_int_equal(shutdown(waiting[i], SHUT_WR), 0);
        while (recv(waiting[i], &byte, 1, 0) > 0)
            ;
        close(waiting[i]);
    }
    ws_ipc_server_free(s);
    look_at_log(&shortage);
}

/* So does the HTTP server's; no connected client is closed for a waiting one. */
static void test_no_descriptors_for_http(void **state)
{
    struct ws_tcp_server *s = serve(NULL);
    struct shortage shortage;
    int known = call(s, PROBE), waiting[2];
    (void)state;
    assert_int_equal(status_of(known), 200);
    for (unsigned i = 0; i < 2; i++)
        waiting[i] = new_socket();
    begin_shortage(&shortage);
    for (unsigned i = 0; i < 2; i++)
        begin_call(s, waiting[i], PROBE);
    end_shortage(&shortage);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(status_of(waiting[i]), 200);
        close(waiting[i]);
    }
    close(known);
    ws_tcp_server_free(s);
    look_at_log(&shortage);
}

/* More arguments than libmicrohttpd has memory for are answered too. */
static void test_many_arguments(void **state)
{
    static const unsigned counts[] = {20, 63, 500, 1500}, bytes[] = {1, 20, 200, 2000, 20000};
    static char head[48 << 10];
    struct ws_tcp_server *s = serve(NULL);
    (void)state;
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (unsigned k = 0; k < sizeof(bytes) / sizeof(bytes[0]); k++) {
            size_t n = (size_t)snprintf(head, sizeof(head), "GET /healthz?a=%0*d", (int)bytes[k], 1);
            for (unsigned j = 1; j < counts[i]; j++)
                n += (size_t)snprintf(head + n, sizeof(head) - n, "&a%u=1", j);
            snprintf(head + n, sizeof(head) - n, " HTTP/1.1\r\nHost: x\r\n\r\n");
            int sock = call(s, head);
            const int status = status_of(sock);
            if (counts[i] <= 63 && bytes[k] <= 2000)
                assert_int_equal(status, 200);
            else
                assert_true(status == 404 || status == 414);
            close(sock);
        }
    ws_tcp_server_free(s);
}

/* A file that was read only in part would be another file: here a list of authorities without the last
 * one. */
#define HELD(ms)                                                                                             \
    "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "                   \
    "17\r\n\r\n{\"hold_ms\":" ms "}"

/* A held request takes no thread of the server's: others are answered. It is answered when there is news, else when its
 * time is over, and a wake without news does not end it. */
static void test_held(void **state)
{
    (void)state;
    struct ws_tcp_server *s = serve(NULL);
    atomic_store(&has_news, false);
    atomic_store(&n_asked, 0);
    int sock = call(s, HELD("99999"));
    while (atomic_load(&n_asked) == 0)
        usleep(1000);
    assert_int_equal(ask(s, PROBE), 200);
    while (atomic_load(&n_asked) == 1) {
        ws_tcp_server_wake_held(s);
        usleep(1000);
    }
    char byte;
    assert_int_equal(recv(sock, &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
    atomic_store(&has_news, true);
    ws_tcp_server_wake_held(s);
    assert_int_equal(status_of(sock), 200);
    close(sock);

    atomic_store(&has_news, false);
    atomic_store(&n_asked, 0);
    assert_int_equal(ask(s, HELD("1    ")), 200);
    assert_true(atomic_load(&n_asked) >= 2);

    sock = call(s, HELD("99999")); /* the end of the server does not wait for it */
    ws_tcp_server_free(s);
    close(sock);
}

static void test_long_tls_file(void **state)
{
    static const char begin[] = "-----BEGIN CERTIFICATE-----\n";
    const char *folder = getenv("TESTDIR");
    struct ws_error err = {0};
    struct ws_tcp_server *s = NULL;
    char path[256];
    (void)state;
    snprintf(path, sizeof(path), "%.200s/long.%d.pem", folder ? folder : "/tmp", (int)getpid());
    const struct ws_tcp_server_options o = {.listen = "127.0.0.1:0",
                                            .access.token = "t",
                                            .tls_cert_file = path,
                                            .tls_key_file = path,
                                            .tls_client_ca_file = path,
                                            .n_threads = 1};
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    for (size_t n = 0; n <= WS_MAX_STATE_FILE_BYTES; n += sizeof(begin) - 1)
        assert_true(fputs(begin, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(ws_tcp_server_new(&s, &(struct ws_catalog){&ops, NULL}, &o, &err), -EFBIG);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(ws_tcp_server_new(&s, &(struct ws_catalog){&ops, NULL}, &o, &err), -EINVAL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ws_tcp_server_new(&s, &(struct ws_catalog){&ops, NULL}, &o, &err), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_half_open),
                                       cmocka_unit_test(test_half_closed),
                                       cmocka_unit_test(test_bodies_without_token),
                                       cmocka_unit_test(test_bodies_are_dropped),
                                       cmocka_unit_test(test_no_descriptors),
                                       cmocka_unit_test(test_no_descriptors_for_http),
                                       cmocka_unit_test(test_many_arguments),
                                       cmocka_unit_test(test_held),
                                       cmocka_unit_test(test_long_tls_file)};

    return cmocka_run_group_tests_name("tcp_serve", tests, NULL, NULL);
}
