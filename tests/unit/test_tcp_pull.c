/* The mount's side of tcp, and the HTTP client, with misbehaving servers. */
#include "tests/fixtures/bad_server.h"
#include "transports/format/manifest.h"
#include "transports/http/client.h"
#include "transports/transport.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE (1UL << 20)

/* Answers one request with a valid head, and then trickles until its peer gives up. */
static void *drip(void *arg)
{
    char request[4096];
    const int *listener = arg;
    int fd = accept(*listener, NULL, NULL);
    if (fd < 0 || read(fd, request, sizeof(request)) <= 0)
        return NULL;
    dprintf(fd,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-%lu/%lu\r\nContent-Length: %lu\r\n\r\n",
            SIZE - 1, SIZE, SIZE);
    while (send(fd, "x", 1, MSG_NOSIGNAL) == 1)
        (void)poll(NULL, 0, 10);
    close(fd);
    return NULL;
}

static int no_block(void *arg, size_t block, uint64_t hash)
{
    (void)arg, (void)block, (void)hash;
    return 0;
}

static int listen_at(struct sockaddr_in *a)
{
    socklen_t n = sizeof(*a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(listener, (struct sockaddr *)a, n), 0);
    assert_int_equal(listen(listener, 2), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)a, &n), 0);
    return listener;
}

static void test_a_source_that_drips(void **state)
{
    struct sockaddr_in a;
    int listener = listen_at(&a);
    struct ws_source_options options = {.stall_ms = 500};
    struct ws_source *source;
    struct ws_lane *lane;
    struct ws_manifest *m;
    struct ws_manifest_file *f;
    struct ws_error err = {0};
    unsigned char *dst = malloc(SIZE);
    pthread_t server;
    char url[64];

    (void)state;
    assert_non_null(dst);
    assert_int_equal(pthread_create(&server, NULL, drip, &listener), 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", ntohs(a.sin_port));
    assert_int_equal(ws_source_open(url, &options, &source, &err), 0);
    assert_int_equal(ws_lane_open(source, &lane, &err), 0);
    assert_int_equal(ws_manifest_new(&m, "m", 1, "r", &err), 0);
    assert_int_equal(ws_manifest_add(m, "config.json", SIZE, 0, &f, &err), 0);
    struct ws_fetch fetch = {.manifest = m, .n = 1, .dst = dst, .block = no_block};
    assert_int_equal(ws_lane_fetch(lane, &fetch, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "less than 1024 bytes a second"));
    ws_lane_close(lane);
    ws_source_close(source);
    ws_manifest_free(m);
    pthread_join(server, NULL);
    close(listener);
    free(dst);
}

/* A request as to an engine. */
static int call(struct ws_http_client *http, const char *url, struct ws_error *err)
{
    const struct ws_http_request request = {.what = "a server", .url = url, .path = "/", .timeout_ms = 10000};
    struct ws_http_reply reply;
    int rc = ws_http_call(http, &request, &reply, err);
    ws_http_reply_release(&reply);
    return rc;
}

static void both_say(struct ws_http_client *http, const char *url, int rc)
{
    struct ws_source *source;
    struct ws_error err = {0};
    json_t *reply = NULL;
    assert_int_equal(ws_source_open(url, NULL, &source, &err), 0);
    assert_int_equal(ws_source_models(source, NULL, 0, 0, NULL, &reply, &err), rc);
    assert_int_equal(call(http, url, &err), rc);
    ws_source_close(source);
}

/* A server that does not speak TLS, for two clients that do. */
static void *greet_two(void *arg)
{
    char hello[4096];
    for (int i = 0; i < 2; i++) {
        int fd = accept(*(const int *)arg, NULL, NULL);
        if (fd >= 0 && read(fd, hello, sizeof(hello)) > 0)
            dprintf(fd, "220 mail.example ESMTP\r\n");
        close(fd);
    }
    return NULL;
}

/* All callers get the same errno for the same behaviour of a server. */
static void test_one_errno(void **state)
{
    static const struct {
        struct bad_step step;
        int rc;
    } cases[] = {
        {{NULL, BAD_REPLY, 0, "220 mail.example ESMTP\r\n"}, -EPROTO},
        {{NULL, BAD_REPLY, 0, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"}, -ECONNRESET},
        {{NULL, BAD_CLOSE, 0, NULL}, -ECONNRESET},
        {{NULL, BAD_FLOOD, 0, NULL}, -EPROTO},
    };
    struct sockaddr_in a;
    struct ws_http_client *http;
    struct ws_error err = {0};
    pthread_t server;
    char url[64];

    (void)state;
    assert_int_equal(ws_http_client_new(&http, &err), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bad_server *s = bad_server_start(&cases[i].step, 1);
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(s));
        both_say(http, url, cases[i].rc);
        bad_server_stop(s);
    }
    int listener = listen_at(&a);
    assert_int_equal(pthread_create(&server, NULL, greet_two, &listener), 0);
    snprintf(url, sizeof(url), "https://127.0.0.1:%u", ntohs(a.sin_port));
    both_say(http, url, -EPROTO);
    pthread_join(server, NULL);
    close(listener);
    ws_http_client_free(http);
}

/* A proxy before a source answers in its place while it is away, and not in HTTP. */
static void test_a_source_that_is_away(void **state)
{
    static const char *const instead[] = {"503 the backend is away\r\n",
                                          "HTTP/1.1 200 OK\r\nno header\r\n\r\n"};
    unsigned char dst[16];

    (void)state;
    for (size_t i = 0; i < sizeof(instead) / sizeof(instead[0]); i++) {
        const struct bad_step steps[] = {{"GET /v1/models", BAD_JSON, 200, "{}"},
                                         {NULL, BAD_REPLY, 0, instead[i]}};
        struct bad_server *server = bad_server_start(steps, 2);
        struct ws_source *source;
        struct ws_lane *lane;
        struct ws_manifest *m, *other;
        struct ws_manifest_file *f;
        struct ws_error err = {0};
        json_t *reply;
        char url[64];

        snprintf(url, sizeof(url), "http://127.0.0.1:%u", bad_server_port(server));
        assert_int_equal(ws_source_open(url, NULL, &source, &err), 0);
        assert_int_equal(ws_manifest_new(&m, "m", 1, "r", &err), 0);
        assert_int_equal(ws_manifest_add(m, "config.json", sizeof(dst), 0, &f, &err), 0);
        assert_int_equal(ws_lane_open(source, &lane, &err), 0);
        assert_int_equal(ws_source_manifest(source, "m", 1, "r", NULL, &other, &err),
                         -EPROTO); /* is it one? */
        assert_int_equal(ws_source_models(source, NULL, 0, 0, NULL, &reply, &err), 0);
        json_decref(reply);
        struct ws_fetch fetch = {.manifest = m, .n = 1, .dst = dst, .block = no_block};
        assert_int_equal(ws_source_manifest(source, "m", 1, "r", NULL, &other, &err), -ECONNRESET);
        assert_int_equal(ws_lane_fetch(lane, &fetch, &err), -ECONNRESET);
        ws_lane_close(lane);
        ws_manifest_free(m);
        ws_source_close(source);
        bad_server_stop(server);
    }
}

/* It is not the source that is away. */
static void test_no_descriptors(void **state)
{
    struct ws_source *source;
    struct ws_error err = {0};
    struct rlimit was, none;
    struct ws_http_client *http;
    json_t *reply = NULL;

    (void)state;
    assert_int_equal(ws_http_client_new(&http, &err), 0);
    assert_int_equal(call(http, "http://127.0.0.1:1", &err), -EHOSTUNREACH);
    assert_int_equal(ws_source_open("http://127.0.0.1:1", NULL, &source, &err), 0);
    assert_true(ws_source_models(source, NULL, 0, 0, NULL, &reply, &err) <
                0); /* so that libraries have opened their files */
    assert_null(strstr(err.text, "descriptors"));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct ws_error of_call = {0};
    const int rc = ws_source_models(source, NULL, 0, 0, NULL, &reply, &err);
    const int rc_of_call = call(http, "http://127.0.0.1:1", &of_call);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(rc_of_call, -EHOSTUNREACH);
    assert_non_null(strstr(of_call.text, "out of file descriptors: raise LimitNOFILE="));
    assert_true(rc < 0);
    assert_non_null(strstr(err.text, "out of file descriptors: raise LimitNOFILE="));
    ws_source_close(source);
    ws_http_client_free(http);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_source_that_drips), cmocka_unit_test(test_one_errno),
        cmocka_unit_test(test_a_source_that_is_away), cmocka_unit_test(test_no_descriptors)};

    return cmocka_run_group_tests_name("tcp_pull", tests, NULL, NULL);
}
