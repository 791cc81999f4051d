/* One suite for every transport: tcp and ipc over a memory catalog, dir over a folder and over an archive,
 * and each of them with faults. It asserts what a mount relies on. ucx has programs of
 * its own, since UCX reads its variables once.
 *
 * timeout: 350, takes: 17
 * beside others */
#include "tests/conformance/suite.h"
#include "tests/fixtures/unwatched.h"
#include "transports/ipc/client.h"
#include "transports/protocol/api.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define B WS_BLOCK_BYTES

static struct world make(void **state)
{
    return *(const struct world *)*state;
}

static void token_is_asked_for(void **state)
{
    struct world w = make(state);
    struct ws_error err = {0};
    json_t *models;
    if (w.faults || strcmp(w.transport, "tcp") != 0)
        skip();
    world_open(&w, "secret");
    world_publish(&w, 1, 1);
    ws_manifest_free(get_manifest(&w, 1));
    static const char *const wrong[] = {NULL, "", "secre", "secret1", "Secret"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ws_source *other;
        struct ws_source_options o = {.token = wrong[i]};
        assert_int_equal(ws_source_open(w.url, &o, &other, &err), 0);
        assert_int_equal(ws_source_models(other, NULL, 0, 0, NULL, &models, &err), -EACCES);
        assert_null(strstr(err.text, "secret1"));
        ws_source_close(other);
    }
    world_close(&w);
}

static void *fetch_for_ever(void *arg)
{
    struct world *w = arg;
    struct ws_error err = {0};
    struct ws_manifest *m = w->manifest;
    struct arrival a = {.file = &m->files[0], .dst = malloc(m->files[0].size_bytes)};
    struct ws_lane *lane;
    assert_int_equal(ws_lane_open(w->source, &lane, &err), 0);
    struct ws_fetch q = {
        .manifest = m, .first = 0, .n = a.file->n_blocks, .dst = a.dst, .block = on_block, .arg = &a};
    while (ws_lane_fetch(lane, &q, &err) == 0)
        ;
    ws_lane_close(lane);
    free(a.dst);
    return NULL;
}

/* Whatever the requests wait for: the end takes only a moment, and every lease is dropped. */
static void server_ends_while_it_waits(void **state)
{
    struct world w = make(state);
    pthread_t threads[4];
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    w.manifest = get_manifest(&w, 1);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fetch_for_ever, &w), 0);
    usleep(300000);
    int64_t start = now_ms();
    world_close_servers(&w);
    assert_true(now_ms() - start < 10000);
    assert_int_equal(memory_catalog_leases(w.catalog), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ws_manifest_free(w.manifest);
    world_close(&w);
}

static void bad_urls_are_refused(void **state)
{
    struct ws_error err = {0};
    struct ws_source *s;
    static const char *const bad[] = {"ftp://x",
                                      "",
                                      "http://user:pass@host",
                                      "dir:/nowhere/at/all",
                                      "unix:",
                                      "fault:what=1:http://x",
                                      "fault:http",
                                      "http://h/?q=1"};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(ws_source_open(bad[i], NULL, &s, &err) < 0);
        assert_true(strlen(err.text) > 5);
        assert_null(strstr(err.text, "pass@"));
    }
}

static void beyond_loopback_needs_a_token(void **state)
{
    struct memory_catalog *c = memory_catalog_new();
    struct ws_catalog catalog = memory_catalog_ops(c);
    struct ws_tcp_server_options o = {.listen = "0.0.0.0:0"};
    struct ws_tcp_server *s;
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(ws_tcp_server_new(&s, &catalog, &o, &err), -EACCES);
    o.access.insecure = true;
    assert_int_equal(ws_tcp_server_new(&s, &catalog, &o, &err), 0);
    ws_tcp_server_free(s);
    memory_catalog_free(c);
}

static void a_dead_peer_lets_go(void **state)
{
    struct world w = {.transport = "ipc"};
    struct ws_error err = {0};
    struct ws_region *regions[8] = {0};
    (void)state;
    world_open(&w, NULL);
    world_publish(&w, 4, 4);
    struct ws_manifest *m = get_manifest(&w, 4);
    assert_int_equal(ws_source_map(w.source, m, regions, &err), 0);
    assert_int_equal(memory_catalog_leases(w.catalog), 1);
    ws_source_close(w.source); /* the connection is closed without an unmap */
    w.source = NULL;
    for (int i = 0; i < 1000 && memory_catalog_leases(w.catalog); i++)
        usleep(10000);
    assert_int_equal(memory_catalog_leases(w.catalog), 0);
    for (size_t i = 0; i < m->n_files; i++)
        ws_region_free(regions[i]);
    ws_manifest_free(m);
    world_close(&w);
}

static void hostile_frames_end_the_connection(void **state)
{
    struct world w = {.transport = "ipc"};
    struct ws_error err = {0};
    static const char *const hostile[] = {"GET / HTTP/1.1\r\n\r\n", "WSF1\xff\xff\xff\xff\0\0\0\0",
                                          "WSF1\2\0\0\0\0\0\0\0[]", "WSF1\1\0\0\0\0\0\0\0{"};
    static const size_t len[] = {18, 12, 14, 13};
    (void)state;
    world_open(&w, NULL);
    world_publish(&w, 1, 1);
    for (size_t i = 0; i < 4; i++) {
        int sock;
        char reply[1024];
        struct timeval limit = {.tv_sec = 30};
        ssize_t n = 1;
        assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
        assert_int_equal(setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
        assert_int_equal(write(sock, hostile[i], len[i]), len[i]);
        while (i != 2 &&
               n > 0) /* it may say why before; a well-formed frame that is no valid request is answered */
            n = read(sock, reply, sizeof(reply));
        assert_true(i == 2 || n == 0 || errno == ECONNRESET);
        close(sock);
    }
    ws_manifest_free(get_manifest(&w, 1)); /* it keeps serving */
    world_close(&w);
}

static struct world tcp = {.transport = "tcp"}, ipc = {.transport = "ipc"}, dir = {.transport = "dir"};
static struct world arriving = {.transport = "tcp", .arriving = true};
static struct world archive = {.transport = "archive"};
static struct world tcp_faults = {.transport = "tcp",
                                  .faults = "seed=1,cut=20,flip=20,lie=10,fail=20,reorder"};
static struct world ipc_faults = {.transport = "ipc",
                                  .faults = "seed=2,cut=20,flip=20,lie=10,fail=20,delay=5"};
static struct world dir_faults = {.transport = "dir",
                                  .faults = "seed=3,cut=20,flip=20,lie=10,fail=20,reorder"};
static struct world archive_faults = {.transport = "archive",
                                      .faults = "seed=4,cut=20,flip=20,lie=10,fail=20,reorder"};

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASES(tcp),
        CASES(ipc),
        CASES(dir),
        CASES(arriving),
        CASES(archive),
        CASES(tcp_faults),
        CASES(ipc_faults),
        CASES(dir_faults),
        CASES(archive_faults),
        {"unknown is not there: tcp", unknown_is_not_there, NULL, NULL, &tcp},
        {"unknown is not there: ipc", unknown_is_not_there, NULL, NULL, &ipc},
        {"unknown is not there: dir", unknown_is_not_there, NULL, NULL, &dir},
        {"unknown is not there: arriving", unknown_is_not_there, NULL, NULL, &arriving},
        {"unknown is not there: archive", unknown_is_not_there, NULL, NULL, &archive},
        {"revoked in the middle: tcp", revoked_in_the_middle, NULL, NULL, &tcp},
        {"revoked in the middle: arriving", revoked_in_the_middle, NULL, NULL, &arriving},
        {"server dies between: tcp", server_dies_between, NULL, NULL, &tcp},
        {"server dies between: arriving", server_dies_between, NULL, NULL, &arriving},
        {"server ends while it waits", server_ends_while_it_waits, NULL, NULL, &arriving},
        {"server dies between: ipc", server_dies_between, NULL, NULL, &ipc},
        {"token is asked for", token_is_asked_for, NULL, NULL, &tcp},
        cmocka_unit_test(bad_urls_are_refused),
        cmocka_unit_test(beyond_loopback_needs_a_token),
        cmocka_unit_test(a_dead_peer_lets_go),
        cmocka_unit_test(hostile_frames_end_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
