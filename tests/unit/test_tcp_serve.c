/* What the servers of a catalog do with those who want no good: many who connect and say nothing, bodies of
 * strangers, and no descriptors left. */
#include "tests/fixtures/private_folder.h"
#include "transports/ipc.h"
#include "transports/keep.h"
#include "transports/tcp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
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
#define MANY    60 /* who connect and send half a line */

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

static int route(void *self, const char *method, const char *path, const char *query, const json_t *body,
                 json_t **reply, char **text, struct ws_error *err)
{
    (void)self, (void)method, (void)path, (void)query, (void)body, (void)text, (void)err;
    *reply = json_pack("{s:b}", "taken", 1);
    return 0;
}

static const struct ws_catalog_ops ops = {.seq = no_seq, .models = no_models, .route = route};

static struct ws_tcp_server *serve(const char *token)
{
    struct ws_tcp_server *s;
    struct ws_error err = {0};
    const struct ws_tcp_server_options o = {
        .listen = "127.0.0.1:0", .token = token, .n_threads = 1, .max_clients = CLIENTS};
    if (ws_tcp_server_new(&s, &(struct ws_catalog){&ops, NULL}, &o, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

static int call(const struct ws_tcp_server *s, const char *head)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)ws_tcp_server_port(s)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval bound = {.tv_sec = 60};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound)), 0);
    assert_int_equal(connect(sock, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(send(sock, head, strlen(head), MSG_NOSIGNAL), strlen(head));
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
    assert_int_equal(status_of(half[0]), 0); /* closed, it was the oldest */
    assert_int_equal(send(known, PROBE, strlen(PROBE), MSG_NOSIGNAL), strlen(PROBE));
    char first[4096];
    assert_true(recv(known, first, sizeof(first), 0) > 0); /* who asked for something stays */
    for (unsigned i = 0; i < MANY; i++)
        close(half[i]);
    close(known);
    ws_tcp_server_free(s);
}

/* Of none of these comes the body. */
static void test_bodies_of_strangers(void **state)
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
    assert_int_equal(ask(closed, "POST /v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
                                 "Content-Length: 2\r\n\r\n{}"),
                     200);
    assert_int_equal(ask(closed, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 401);
    ws_tcp_server_free(open);
    ws_tcp_server_free(closed);
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

/* The acceptor waits where there are no descriptors, says so once, and goes on when there are again. */
static void test_no_descriptors(void **state)
{
    char path[108], byte;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ws_ipc_server *s;
    struct ws_error err = {0};
    struct rlimit was, none;
    int waiting[2], log = memfd_create("log", MFD_CLOEXEC), stderr_was = dup(STDERR_FILENO);
    (void)state;
    assert_true(private_path(path, sizeof(path), "test.sock"));
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(
        ws_ipc_server_new(&s, path, (gid_t)-1, &(struct ws_catalog){&ops, NULL}, NULL, NULL, &err), 0);
    for (unsigned i = 0; i < 2; i++)
        waiting[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = (rlim_t)highest(), .rlim_max = was.rlim_max};
    assert_true(dup2(log, STDERR_FILENO) >= 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(connect(waiting[i], (struct sockaddr *)&a, sizeof(a)), 0);
    for (unsigned i = 0; i < 600 && count_lines(log, "nobody more can connect") == 0; i++)
        (void)poll(NULL, 0, 100);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    for (unsigned i = 0; i < 2; i++) { /* both are served now: what is no request ends the connection */
        assert_true(
            send(waiting[i], "no request at all, and long enough to be seen as none", 53, MSG_NOSIGNAL) > 0);
        assert_int_equal(shutdown(waiting[i], SHUT_WR), 0);
        while (recv(waiting[i], &byte, 1, 0) > 0)
            ;
        close(waiting[i]);
    }
    ws_ipc_server_free(s);
    dup2(stderr_was, STDERR_FILENO);
    assert_int_equal(count_lines(log, "nobody more can connect"), 1);
    close(log);
    close(stderr_was);
}

/* A file of which a part was read would be another one: here a list of authorities that lacks the last. */
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
                                            .token = "t",
                                            .tls_cert_file = path,
                                            .tls_key_file = path,
                                            .tls_client_ca_file = path,
                                            .n_threads = 1};
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    for (size_t n = 0; n <= WS_MAX_KEPT_BYTES; n += sizeof(begin) - 1)
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_open), cmocka_unit_test(test_bodies_of_strangers),
        cmocka_unit_test(test_no_descriptors), cmocka_unit_test(test_long_tls_file)};

    return cmocka_run_group_tests_name("tcp_serve", tests, NULL, NULL);
}
