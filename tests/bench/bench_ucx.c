/* Pulls by UCX, without a mount: two lanes fetch and hash 512 MiB out of another process, by shared memory (the
 * kernel's copy between processes) and by TCP, beside the same by tcp; and what the agent's CPU does for it. Each way
 * has processes of its own, because UCX reads its variables once. The baseline of shared memory is memcpy of the same
 * bytes by as many threads, in turns with the pulls; the kernel's copy between processes alone, without UCX and hashing,
 * is the limit of this way. */
#include "tests/bench/common.h"
#include "tests/conformance/memory_catalog.h"
#include "transports/tcp/tcp.h"
#include "transports/transport.h"
#include "transports/ucx/engine.h"
#include "transports/ucx/wire.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LANES  2
#define EXTENT 4 /* blocks, as a mount's */
#define ROUNDS 7

static const uint64_t bytes = 512UL << 20;

struct result {
    double pull, copy, kernel, agent; /* seconds; the agent's CPU a round */
};

static double cpu_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static void transfer(int fd, void *p, size_t n, ssize_t (*move)(int, void *, size_t))
{
    if (move(fd, p, n) != (ssize_t)n)
        bench_fail("the other process has ended");
}

static ssize_t put(int fd, void *p, size_t n)
{
    return write(fd, p, n);
}

/* Serves until its parent closes the pipe; each byte is answered with the CPU time so far. */
static void serve(int from, int to)
{
    struct memory_catalog *c = memory_catalog_new();
    struct ws_catalog catalog = memory_catalog_ops(c);
    struct ws_tcp_server *tcp;
    struct ws_ucx_server *ucx;
    struct ws_error err = {0};
    const struct ws_tcp_server_options o = {.listen = "127.0.0.1:0", .access = {.insecure = true}};
    char question;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memory_catalog_publish(c, "m", 1, &bytes, 1, 1);
    if (ws_ucx_server_new(&ucx, &catalog, &err) < 0)
        bench_fail("%s", err.text);
    memory_catalog_offer_ucx(c, ucx);
    if (ws_tcp_server_new(&tcp, &catalog, &o, &err) < 0)
        bench_fail("%s", err.text);
    unsigned port = ws_tcp_server_port(tcp);
    transfer(to, &port, sizeof(port), put);
    while (read(from, &question, 1) == 1) {
        double s = cpu_seconds();
        transfer(to, &s, sizeof(s), put);
    }
    _exit(0);
}

struct pull {
    struct ws_manifest *manifest;
    struct ws_lane *lanes[LANES];
    struct ws_region *to, *plain;
    pid_t other; /* a process that has memory of its own at `others` */
    void *others;
    _Atomic size_t next;
};

struct work {
    struct pull *pull;
    unsigned index;
};

static int on_block(void *arg, size_t block, uint64_t hash)
{
    if (hash != ((const struct ws_manifest *)arg)->files[0].hashes[block])
        bench_fail("block %zu is wrong", block);
    return 0;
}

static void *fetch(void *arg)
{
    const struct work *w = arg;
    struct pull *p = w->pull;
    const size_t n_blocks = p->manifest->files[0].n_blocks;
    struct ws_error err = {0};
    for (size_t first; (first = atomic_fetch_add(&p->next, EXTENT)) < n_blocks;) {
        const struct ws_fetch f = {.manifest = p->manifest,
                                   .first = first,
                                   .n = n_blocks - first < EXTENT ? n_blocks - first : EXTENT,
                                   .dst = ws_region_data(p->to),
                                   .block = on_block,
                                   .arg = p->manifest};
        if (ws_lane_fetch(p->lanes[w->index], &f, &err) < 0)
            bench_fail("%s", err.text);
    }
    return NULL;
}

static void *copy(void *arg)
{
    const struct work *w = arg;
    const uint64_t half = bytes / LANES, at = w->index * half;
    memcpy((char *)ws_region_data(w->pull->to) + at, (char *)ws_region_data(w->pull->plain) + at, half);
    return NULL;
}

static void *copy_by_kernel(void *arg)
{
    const struct work *w = arg;
    const uint64_t half = bytes / LANES, end = (w->index + 1) * half, step = WS_UCX_PIECE_BYTES;
    for (uint64_t at = w->index * half; at < end; at += step) {
        struct iovec to = {(char *)ws_region_data(w->pull->to) + at, step};
        struct iovec from = {(char *)w->pull->others + at, step};
        if (process_vm_readv(w->pull->other, &to, 1, &from, 1, 0) != (ssize_t)step)
            bench_fail("the kernel does not copy between processes");
    }
    return NULL;
}

/* Until its parent ends. Regions are not a child's: it has memory by another way. */
static void start_other(struct pull *p)
{
    int ready[2];
    char byte = 0;
    p->others = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->others == MAP_FAILED || pipe(ready))
        bench_fail("no memory for the other process");
    p->other = fork();
    if (p->other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        memset(p->others, 1, bytes);
        transfer(ready[1], &byte, 1, put);
        for (;;)
            pause();
    }
    transfer(ready[0], &byte, 1, read);
    close(ready[0]);
    close(ready[1]);
}

static double time_of(struct pull *p, void *(*work)(void *))
{
    pthread_t threads[LANES];
    struct work w[LANES];
    const double start = bench_now();
    atomic_store(&p->next, 0);
    for (unsigned i = 0; i < LANES; i++) {
        w[i] = (struct work){p, i};
        if (pthread_create(&threads[i], NULL, work, &w[i]))
            bench_fail("no threads");
    }
    for (unsigned i = 0; i < LANES; i++)
        pthread_join(threads[i], NULL);
    return bench_now() - start;
}

static double ask_cpu(int to, int from)
{
    double s;
    char question = '?';
    transfer(to, &question, 1, put);
    transfer(from, &s, sizeof(s), read);
    return s;
}

static void measure_here(const char *scheme, struct result *out)
{
    struct pull p = {0};
    struct ws_source *source;
    struct ws_error err = {0};
    double pulls[ROUNDS], copies[ROUNDS], kernel[ROUNDS], agent = 0;
    int question[2], answer[2];
    unsigned port;
    char url[64];
    if (pipe(question) || pipe(answer))
        bench_fail("no pipe");
    if (fork() == 0) {
        close(question[1]);
        serve(question[0], answer[1]);
    }
    close(question[0]);
    close(answer[1]);
    transfer(answer[0], &port, sizeof(port), read);
    snprintf(url, sizeof(url), "%s://127.0.0.1:%u", scheme, port);
    if (ws_source_open(url, NULL, &source, &err) < 0 ||
        ws_source_manifest(source, "m", 1, NULL, NULL, &p.manifest, &err) < 0 ||
        ws_region_new(&p.to, bytes, &err) < 0 || ws_region_prefault(p.to, 2, &err) < 0 ||
        ws_region_new(&p.plain, bytes, &err) < 0 || ws_region_prefault(p.plain, 2, &err) < 0)
        bench_fail("%s", err.text);
    for (unsigned i = 0; i < LANES; i++)
        if (ws_lane_open(source, &p.lanes[i], &err) < 0)
            bench_fail("%s", err.text);
    start_other(&p);
    for (int i = -1; i < ROUNDS; i++) { /* the first is a warm-up */
        const double before = ask_cpu(question[1], answer[0]), pulled = time_of(&p, fetch);
        const double after = ask_cpu(question[1], answer[0]), copied = time_of(&p, copy);
        const double by_kernel = time_of(&p, copy_by_kernel);
        if (i < 0)
            continue;
        agent += (after - before) / ROUNDS;
        pulls[i] = pulled;
        copies[i] = copied;
        kernel[i] = by_kernel;
    }
    *out = (struct result){bench_median(pulls, ROUNDS), bench_median(copies, ROUNDS),
                           bench_median(kernel, ROUNDS), agent};
    kill(p.other, SIGKILL);
    (void)waitpid(p.other, NULL, 0);
    munmap(p.others, bytes);
    for (unsigned i = 0; i < LANES; i++)
        ws_lane_close(p.lanes[i]);
    ws_source_close(source);
    ws_manifest_free(p.manifest);
    close(question[1]);
    (void)wait(NULL);
}

static struct result measure(const char *tls, const char *scheme)
{
    struct result r;
    int from[2], status;
    if (pipe(from))
        bench_fail("no pipe");
    const pid_t pid = fork();
    if (pid == 0) {
        setenv("UCX_TLS", tls, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        measure_here(scheme, &r);
        transfer(from[1], &r, sizeof(r), put);
        _exit(0);
    }
    close(from[1]);
    transfer(from[0], &r, sizeof(r), read);
    close(from[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_fail("a pull's process has failed");
    return r;
}

/* In a process of its own: it opens UCX. */
static void check_available(void)
{
    int status;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0)
        _exit(ws_ucx_available(NULL) < 0);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_skip("UCX cannot be used here: wsync doctor ucx");
}

int main(void)
{
    const double gb = (double)bytes / 1e9;
    check_available();
    const struct result shm = measure("posix,sysv,cma,self", "ucx+http"),
                        ucx_tcp = measure("tcp", "ucx+http"), tcp = measure("tcp", "http");
    bench_row(&(struct bench_row){"pull-ucx-shm", bench_rate(bytes, shm.pull), "GB/s",
                                  bench_rate(bytes, shm.copy), BENCH_AT_LEAST, 0.8});
    bench_row(&(struct bench_row){"kernel-copy-shm", bench_rate(bytes, shm.kernel), "GB/s",
                                  bench_rate(bytes, shm.copy), BENCH_NO_GOAL, 0});
    bench_row(
        &(struct bench_row){"agent-cpu-ucx-shm", shm.agent / gb, "s/GB", tcp.agent / gb, BENCH_AT_MOST, 0.1});
    bench_row(&(struct bench_row){"pull-ucx-tcp", bench_rate(bytes, ucx_tcp.pull), "GB/s",
                                  bench_rate(bytes, tcp.pull), BENCH_NO_GOAL, 0});
    bench_row(&(struct bench_row){"agent-cpu-ucx-tcp", ucx_tcp.agent / gb, "s/GB", tcp.agent / gb,
                                  BENCH_NO_GOAL, 0});
    return 0;
}
