/* 2,048 ranks register at one agent: lists of up to 1,300 pieces, 0.6 million in all, 76,000 of them distinct, since the
 * eight ranks of a data-parallel group hold the same. Each rank is a connection of this process to a real agent, and sends
 * what libwsync sends. Measured from the last rank's message until all have their places, and the agent's memory. */
#include "backends/trainer/tensor/registration.h"
#include "tests/bench/common.h"
#include "transports/ipc/client.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS     2048U
#define REPLICAS  8U /* ranks with one list */
#define GROUPS    (RANKS / REPLICAS)
#define LONG_ONES 10U /* groups with the longest lists */
#define MOST      1300U
#define OTHERS    256U
#define WAIT_MS   600000

/* Tensors of 4 KiB: where they lie is what counts. */
static struct ws_registration *list_of(unsigned group, size_t first, size_t n)
{
    struct ws_registration *r = calloc(1, sizeof(*r));
    if (r)
        r->entries = calloc(n, sizeof(*r->entries));
    if (!r || !r->entries)
        bench_fail("no memory");
    r->audits = true;
    r->audit = 100;
    for (size_t i = 0; i < n; i++) {
        char *name = NULL;
        if (asprintf(&name, "model.layers.%u.mlp.experts.%zu.down_proj.weight", group / 4, first + i) < 0)
            bench_fail("no memory");
        r->entries[i].tensor =
            (struct ws_tensor){.name = name, .dtype = WS_BF16, .n_dims = 2, .shape = {32, 64}};
        r->entries[i].piece = (struct ws_piece){.size = {32, 64}};
        r->n_entries++;
    }
    return r;
}

static json_t *message(unsigned group, size_t first, size_t n)
{
    struct ws_registration *r = list_of(group, first, n);
    json_t *o = ws_registration_to_json(r);
    json_t *more =
        json_pack("{s:i,s:s,s:s,s:I,s:I,s:I,s:I,s:b}", "api", WS_LOCAL_API, "release", WS_VERSION, "model",
                  "large", "world_size", (json_int_t)RANKS, "shard_bytes", (json_int_t)2 << 20, "max_slots",
                  (json_int_t)2, "timeout_ms", (json_int_t)WAIT_MS, "new_run", 0);
    if (!o || !more || json_object_update(o, more) < 0)
        bench_fail("no memory");
    json_decref(more);
    ws_registration_free(r);
    return o;
}

static pid_t start_agent(const char *at)
{
    const char *wsync = getenv("WSYNC");
    char *args[] = {
        "wsync", "agent", "--listen", "127.0.0.1:0", "--insecure", "--socket", (char *)(uintptr_t)at, NULL};
    pid_t pid;
    int sock;
    if (posix_spawn(&pid, wsync ? wsync : "build/wsync", NULL, NULL, args, environ) != 0)
        bench_fail("cannot start an agent");
    for (int i = 0; i < 3000; i++, usleep(10000))
        if (ws_ipc_connect(at, &sock, NULL) == 0) {
            close(sock);
            return pid;
        }
    kill(pid, SIGKILL);
    bench_fail("the agent did not come up");
}

/* The most that it had. */
static double most_mib(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f) && sscanf(line, "VmHWM: %lu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return (double)kib / 1024;
}

static void send_one(int sock, json_t *o, unsigned rank)
{
    struct ws_error err = {0};
    json_object_set_new(o, "rank", json_integer(rank));
    if (ws_ipc_request_send(sock, "POST", "/v1/local/register", o, NULL, 0, &err) < 0)
        bench_fail("rank %u: %s", rank, err.text);
}

static void receive_one(int sock, unsigned rank, size_t n)
{
    struct ws_error err = {0};
    json_t *reply = NULL;
    size_t n_fds;
    if (ws_ipc_reply_recv(sock, WAIT_MS, &reply, NULL, 0, &n_fds, &err) < 0)
        bench_fail("rank %u: %s", rank, err.text);
    if (json_array_size(json_object_get(reply, "places")) != n)
        bench_fail("rank %u has other places than it asked for", rank);
    json_decref(reply);
}

int main(void)
{
    static int socks[RANKS];
    const char *folder = getenv("TESTDIR");
    struct ws_error err = {0};
    char at[256];
    size_t first = 0, offered = 0;
    struct rlimit files = {8192, 8192};

    (void)setrlimit(RLIMIT_NOFILE, &files);
    snprintf(at, sizeof(at), "%s/register.sock", folder ? folder : "/tmp");
    const pid_t agent = start_agent(at);
    double start = bench_now(), before = 0;
    for (unsigned g = 0; g < GROUPS; g++) {
        const size_t n = g < LONG_ONES ? MOST : OTHERS;
        json_t *o = message(g, first, n);
        for (unsigned k = 0; k < REPLICAS; k++) {
            const unsigned rank = g * REPLICAS + k;
            if (ws_ipc_connect(at, &socks[rank], &err) < 0)
                bench_fail("%s", err.text);
            if (rank + 1 == RANKS) {
                usleep(500000); /* the agent has read the others */
                printf("  %u ranks told in %.1f s, %.1f s of the agent's CPU\n", RANKS - 1,
                       bench_now() - start, before = bench_cpu_of(agent));
                start = bench_now();
            }
            send_one(socks[rank], o, rank);
        }
        json_decref(o);
        first += n;
        offered += n * REPLICAS;
    }
    for (unsigned r = 0; r < RANKS; r++)
        receive_one(socks[r], r, r / REPLICAS < LONG_ONES ? MOST : OTHERS);
    const double seconds = bench_now() - start, cpu = bench_cpu_of(agent) - before, mib = most_mib(agent);
    printf("  %zu offered, %zu distinct\n", offered, first);
    bench_row(&(struct bench_row){"register-2048", seconds, "s", 0, BENCH_AT_MOST, 5});
    printf("    %.2f s of the agent's CPU\n", cpu);
    bench_row(&(struct bench_row){"register-2048-memory", mib, "MiB", 0, BENCH_AT_MOST, 1024});
    kill(agent, SIGKILL);
    waitpid(agent, NULL, 0);
    unlink(at);
    return 0;
}
