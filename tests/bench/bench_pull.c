/* Full pulls over loopback: the store's pull of 1.2 GB through the agent's HTTP server and libcurl, compared
 * with bare sockets that do the same hashing and storing with as many streams, and with the simplest
 * alternative: six streams of sendfile from plain shared memory into plain shared memory. All memory was
 * touched before (the store reuses the regions of dropped versions); the first pull into fresh memory is
 * printed beside. */
#include "fs/pull/pull.h"
#include "fs/store/store.h"
#include "tests/bench/common.h"
#include "tests/conformance/memory_catalog.h"
#include "transports/simd/copy.h"
#include "transports/tcp/tcp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAMS          4
#define SENDFILE_STREAMS 6
#define BUFFER           (128UL << 10)
#define ROUNDS           9

static uint64_t bytes = 1200000000UL / WS_BLOCK_BYTES * WS_BLOCK_BYTES;

/* One stream of a bare transfer: a connected pair over loopback TCP. */
struct stream {
    int from, to;
    uint64_t begin, end; /* of the bytes; block by block */
    int source_fd, sink_fd;
    unsigned char *source, *sink;
    bool plain; /* sendfile and recv; else send, hash and store */
};

static void connect_pair(struct stream *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof(a)) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&a, &len))
        bench_fail("cannot listen: %s", strerror(errno));
    s->to = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s->to, (struct sockaddr *)&a, sizeof(a)) || (s->from = accept(listener, NULL, NULL)) < 0)
        bench_fail("cannot connect: %s", strerror(errno));
    close(listener);
}

static void *send_all(void *arg)
{
    struct stream *s = arg;
    off_t at = (off_t)s->begin;
    while ((uint64_t)at < s->end) {
        size_t n = s->end - (uint64_t)at < BUFFER * 32 ? s->end - (uint64_t)at : BUFFER * 32;
        ssize_t k;
        if (s->plain) {
            k = sendfile(s->from, s->source_fd, &at, n);
        } else {
            k = send(s->from, s->source + at, n, 0);
            at += k > 0 ? k : 0;
        }
        if (k <= 0)
            bench_fail("cannot send: %s", strerror(errno));
    }
    return NULL;
}

static void *receive_all(void *arg)
{
    struct stream *s = arg;
    struct ws_hasher *h = ws_hasher_new();
    unsigned char *buffer = malloc(BUFFER);
    for (uint64_t at = s->begin; at < s->end;) {
        size_t left = s->end - at < BUFFER ? s->end - at : BUFFER;
        ssize_t n = s->plain ? recv(s->to, s->sink + at, s->end - at, 0) : recv(s->to, buffer, left, 0);
        if (n <= 0)
            bench_fail("cannot receive: %s", strerror(errno));
        if (!s->plain) {
            ws_hasher_copy(h, s->sink + at, buffer, (size_t)n);
            if ((at + (uint64_t)n) / WS_BLOCK_BYTES != at / WS_BLOCK_BYTES) {
                (void)ws_hasher_digest(h);
                ws_hasher_reset(h);
            }
        }
        at += (uint64_t)n;
    }
    free(buffer);
    ws_hasher_free(h);
    return NULL;
}

struct bare {
    struct stream streams[SENDFILE_STREAMS];
    size_t n;
};

static void run_bare(void *arg)
{
    struct bare *b = arg;
    pthread_t senders[SENDFILE_STREAMS], receivers[SENDFILE_STREAMS];
    for (size_t i = 0; i < b->n; i++)
        connect_pair(&b->streams[i]);
    for (size_t i = 0; i < b->n; i++) {
        pthread_create(&receivers[i], NULL, receive_all, &b->streams[i]);
        pthread_create(&senders[i], NULL, send_all, &b->streams[i]);
    }
    for (size_t i = 0; i < b->n; i++) {
        pthread_join(senders[i], NULL);
        pthread_join(receivers[i], NULL);
        close(b->streams[i].from);
        close(b->streams[i].to);
    }
}

static void split(struct bare *b, size_t n, const struct stream *like)
{
    uint64_t blocks = bytes / WS_BLOCK_BYTES;
    b->n = n;
    for (size_t i = 0; i < n; i++) {
        b->streams[i] = *like;
        b->streams[i].begin = blocks * i / n * WS_BLOCK_BYTES;
        b->streams[i].end = blocks * (i + 1) / n * WS_BLOCK_BYTES;
    }
}

static int plain_shm(unsigned char **map)
{
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        bench_skip("no plain shared memory: %s", strerror(errno));
    *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*map == MAP_FAILED)
        bench_skip("no plain shared memory: %s", strerror(errno));
    memset(*map, 1, bytes);
    return fd;
}

/* --- the store's pull --- */

struct puller {
    struct ws_store *store;
    struct ws_version *version;
    double first;
};

static void run_pull(void *arg)
{
    struct puller *p = arg;
    struct ws_error err = {0};
    if (ws_version_pull(p->version, WS_PRIORITY_READER, 120000, NULL, &err) < 0)
        bench_fail("the pull failed: %s", err.text);
}

static struct ws_version *version_of(struct ws_store *store, const char *name)
{
    struct ws_error err = {0};
    for (int i = 0; i < 500; i++) {
        struct ws_model *m = ws_store_find(store, "m");
        struct ws_version *v = m ? ws_version_find(m, name, &err) : NULL;
        if (m)
            ws_model_put(m);
        if (v)
            return v;
        usleep(10000);
    }
    bench_fail("version %s did not appear", name);
}

int main(void)
{
    struct ws_error err = {0};
    struct memory_catalog *c = memory_catalog_new();
    struct ws_catalog catalog = memory_catalog_ops(c);
    struct ws_tcp_server_options so = {.listen = "127.0.0.1:0", .access.insecure = true};
    struct ws_store_options o = {.streams = STREAMS, .keep = 1, .cache_bytes = 3 * bytes};
    struct ws_tcp_server *server;
    struct puller p = {0};
    char url[64];
    double seconds[3][ROUNDS];

    memory_catalog_publish(c, "m", 1, &bytes, 1, 1);
    if (ws_tcp_server_new(&server, &catalog, &so, &err) || ws_store_new(&p.store, &ws_puller, &o, &err))
        bench_fail("%s", err.text);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", ws_tcp_server_port(server));
    if (ws_store_add(p.store, url, NULL, NULL, &err))
        bench_fail("%s", err.text);
    p.version = version_of(p.store, "1");
    double start = bench_now();
    run_pull(&p);
    p.first = bench_now() - start;

    struct ws_region *region;
    if (ws_region_new(&region, bytes, &err) || ws_region_prefault(region, 2, &err))
        bench_fail("%s", err.text);
    unsigned char *shm_from, *shm_to;
    int from = plain_shm(&shm_from);
    (void)plain_shm(&shm_to);
    struct bare hashed, plain;
    split(&hashed, STREAMS,
          &(struct stream){.source = (unsigned char *)(uintptr_t)memory_catalog_bytes(c, "m", 1, 0),
                           .sink = ws_region_data(region)});
    split(&plain, SENDFILE_STREAMS, &(struct stream){.source_fd = from, .sink = shm_to, .plain = true});
    for (int i = -1; i < ROUNDS; i++) { /* alternating; the first is a warm-up */
        double t[3];
        if (ws_version_drop(p.version, &err) < 0)
            bench_fail("%s", err.text);
        ws_version_put(p.version);
        usleep(300000); /* the dropped region is returned to the pool */
        p.version = version_of(p.store, "1");
        start = bench_now();
        run_pull(&p);
        t[0] = bench_now() - start;
        start = bench_now();
        run_bare(&hashed);
        t[1] = bench_now() - start;
        start = bench_now();
        run_bare(&plain);
        t[2] = bench_now() - start;
        for (int k = 0; i >= 0 && k < 3; k++)
            seconds[k][i] = t[k];
    }
    double pull = bench_rate(bytes, bench_median(seconds[0], ROUNDS));
    bench_row(&(struct bench_row){"pull-tcp", pull, "GB/s",
                                  bench_rate(bytes, bench_median(seconds[1], ROUNDS)), BENCH_AT_LEAST, 0.9});
    bench_row(&(struct bench_row){"pull-tcp-vs-sendfile", pull, "GB/s",
                                  bench_rate(bytes, bench_median(seconds[2], ROUNDS)), BENCH_AT_LEAST, 1.4});
    bench_row(&(struct bench_row){"pull-tcp-first", bench_rate(bytes, p.first), "GB/s", 0, BENCH_NO_GOAL, 0});
    ws_version_put(p.version);
    ws_store_free(p.store);
    ws_tcp_server_free(server);
    return 0;
}
