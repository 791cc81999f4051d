/* A trainer on 256 nodes, with a rank on each: this process speaks for all of their agents to one real primary, each on a
 * connection of its own, as agent/group/secondary.c does. What is measured is the primary: a version from its first
 * begin until every node has heard that it is announced, with nothing to copy or hash in between, and the primary's
 * CPU a version; beside 64 nodes, since its work should grow as the nodes do.
 *   bench_group [polls]     polls: the nodes ask again every 10 ms, as those of older releases, and no request is held */
#include "backends/trainer/tensor/registration.h"
#include "tests/bench/common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES   256U
#define FEW     64U
#define STEPS   50U
#define WARM    3U
#define HOLD_MS 250
#define AGAIN_S 0.01
#define OTHERS  8 /* other clients, as mounts are: more than the agent has threads for them */
#define WAIT_MS 60000
#define MOST    (8U << 20) /* bytes of a reply: the registrations of all ranks are in one */

enum stage { BEGINS, HAS_COMMITTED, HAS_SEALED, IS_OVER };

struct node {
    unsigned rank;
    int sock;
    enum stage stage;
    uint64_t id, epoch, round;
    char *reply;
    size_t have;
    double again; /* when to ask again; 0: a reply is on its way, or it is over */
};

static struct {
    struct node nodes[NODES];
    unsigned n;
    int others[OTHERS];
    uint16_t port;
    bool polls;
    uint64_t version;
    char lineage[64];
} group;

static uint16_t free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    const int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0 || bind(sock, (struct sockaddr *)&at, n) < 0 ||
        getsockname(sock, (struct sockaddr *)&at, &n) < 0)
        bench_fail("there is no free port");
    close(sock);
    return ntohs(at.sin_port);
}

static int connect_one(void)
{
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(group.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (sock < 0 || connect(sock, (const struct sockaddr *)&at, sizeof(at)) < 0) {
        if (sock >= 0)
            close(sock);
        return -1;
    }
    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return sock;
}

static pid_t start_agent(const char *at)
{
    const char *wsync = getenv("WSYNC");
    char listen[64];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", group.port);
    char *args[] = {"wsync",   "agent",      "--listen", listen,
                    "--nodes", "--insecure", "--socket", (char *)(uintptr_t)at,
                    NULL};
    pid_t pid;
    if (posix_spawn(&pid, wsync ? wsync : "build/wsync", NULL, NULL, args, environ) != 0)
        bench_fail("cannot start an agent");
    for (int i = 0; i < 3000; i++, usleep(10000)) {
        const int sock = connect_one();
        if (sock >= 0) {
            close(sock);
            return pid;
        }
    }
    kill(pid, SIGKILL);
    bench_fail("the agent did not come up");
}

/* One tensor of 4 KiB a rank. */
static json_t *registration_of(unsigned rank)
{
    char name[64];
    struct ws_entry e = {.tensor = {.name = name, .dtype = WS_BF16, .n_dims = 2, .shape = {32, 64}},
                         .piece = {.size = {32, 64}}};
    struct ws_registration r = {.rank = rank, .audits = true, .n_entries = 1, .entries = &e};
    snprintf(name, sizeof(name), "model.layers.%u.weight", rank);
    return ws_registration_to_json(&r);
}

static void send_all(int sock, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(sock, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            bench_fail("cannot send to the agent: %s", strerror(errno));
        text += sent;
        n -= (size_t)sent;
    }
}

/* What agent/group/secondary.c reports; registers: with what its rank has. */
static void report(struct node *n, bool registers)
{
    char name[32], key[16], head[256];
    snprintf(name, sizeof(name), "node%u:1", n->rank);
    snprintf(key, sizeof(key), "%u", n->rank);
    json_t *o = json_pack("{s:s,s:b,s:I,s:I,s:I,s:b,s:I,s:[[i,i]],s:{},s:i,s:s}", "node", name, "repeats", 1,
                          "id", (json_int_t)n->id, "world_size", (json_int_t)group.n, "shard_bytes",
                          (json_int_t)0, "new_run", 0, "epoch", (json_int_t)n->epoch, "ranks", (int)n->rank,
                          1, "registrations", "gave_up", 0, "why", "");
    if (registers)
        json_object_set_new(json_object_get(o, "registrations"), key, registration_of(n->rank));
    if (group.version) {
        json_object_set_new(o, "round", json_integer((json_int_t)n->round));
        json_object_set_new(o, "version", json_integer((json_int_t)group.version));
        json_object_set_new(o, "version_run", json_string(group.lineage));
        json_object_set_new(o, "committed", json_boolean(n->stage >= HAS_COMMITTED));
        json_object_set_new(o, "sealed", json_boolean(n->stage >= HAS_SEALED));
        if (n->stage >= HAS_COMMITTED && !group.polls)
            json_object_set_new(o, "hold_ms", json_integer(HOLD_MS));
    }
    char *text = json_dumps(o, JSON_COMPACT);
    if (!text)
        bench_fail("no memory");
    const int used = snprintf(head, sizeof(head),
                              "POST /v1/actor/node HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                              "application/json\r\nContent-Length: %zu\r\n\r\n",
                              strlen(text));
    send_all(n->sock, head, (size_t)used);
    send_all(n->sock, text, strlen(text));
    json_decref(o);
    free(text);
    n->have = 0;
    n->again = 0;
}

/* Reads on; NULL: the reply is not all here. */
static json_t *receive(struct node *n)
{
    const ssize_t got = recv(n->sock, n->reply + n->have, MOST - n->have, 0);
    if (got <= 0)
        bench_fail("node %u: the agent ended the connection", n->rank);
    n->have += (size_t)got;
    n->reply[n->have] = '\0';
    char *body = strstr(n->reply, "\r\n\r\n"), *length = strcasestr(n->reply, "\r\nContent-Length:");
    if (!body || !length || length > body)
        return NULL;
    body += 4;
    const size_t bytes = strtoul(length + 17, NULL, 10);
    if ((size_t)(n->reply + n->have - body) < bytes)
        return NULL;
    json_t *o = json_loadb(body, bytes, 0, NULL);
    if (!o || strncmp(n->reply, "HTTP/1.1 200", 12) != 0)
        bench_fail("node %u: %.500s", n->rank, n->reply);
    return o;
}

static uint64_t number(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

static json_t *receive_all(struct node *n)
{
    json_t *o = NULL;
    struct pollfd p = {.fd = n->sock, .events = POLLIN};
    while (!o) {
        if (poll(&p, 1, WAIT_MS) != 1)
            bench_fail("node %u: no reply", n->rank);
        o = receive(n);
    }
    return o;
}

/* All ranks are told, and then each node takes the placement. */
static void register_all(void)
{
    for (unsigned i = 0; i < group.n; i++) {
        struct node *n = &group.nodes[i];
        *n = (struct node){.rank = i, .sock = connect_one(), .id = 1000 + i, .reply = malloc(MOST + 1)};
        if (n->sock < 0 || !n->reply)
            bench_fail("node %u cannot connect", i);
        report(n, true);
        json_decref(receive_all(n));
    }
    for (unsigned i = 0; i < group.n; i++) {
        struct node *n = &group.nodes[i];
        report(n, false);
        json_t *o = receive_all(n);
        if (!json_object_get(o, "group"))
            bench_fail("node %u has no placement: %.500s", i, n->reply);
        n->epoch = number(o, "epoch");
        n->round = number(o, "round");
        snprintf(group.lineage, sizeof(group.lineage), "%s", json_string_value(json_object_get(o, "run")));
        json_decref(o);
    }
}

static void step_on(struct node *n, const json_t *reply)
{
    const enum stage before = n->stage;
    const uint64_t round = number(reply, "round");
    if (n->stage == HAS_SEALED && number(reply, "announced_round") == n->round) {
        n->stage = IS_OVER;
        n->round = round;
        return;
    }
    if (round != n->round)
        bench_fail("node %u: %s", n->rank, json_string_value(json_object_get(reply, "why")));
    if (n->stage == BEGINS)
        n->stage = HAS_COMMITTED;
    else if (n->stage == HAS_COMMITTED && json_is_true(json_object_get(reply, "hashing")))
        n->stage = HAS_SEALED;
    if (n->stage != before)
        report(n, false);
    else
        n->again = bench_now() + AGAIN_S;
}

/* libmicrohttpd takes 128 events at a time, and where exactly as many are there, it waits for one more before it looks at
 * them (seen with 0.9.75): 256 connections on two threads meet that, and without other clients nobody would end it. */
static void ask_as_others(void)
{
    static const char question[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char answer[4096];
    for (unsigned i = 0; i < OTHERS; i++) {
        if (recv(group.others[i], answer, sizeof(answer), MSG_DONTWAIT) == 0)
            bench_fail("the agent ended a connection");
        send_all(group.others[i], question, sizeof(question) - 1);
    }
}

static double publish(uint64_t version)
{
    struct pollfd fds[NODES];
    const double start = bench_now();
    unsigned over = 0;
    group.version = version;
    for (unsigned i = 0; i < group.n; i++) {
        struct node *n = &group.nodes[i];
        n->stage = BEGINS;
        fds[i] = (struct pollfd){.fd = n->sock, .events = POLLIN};
        report(n, false);
    }
    while (over < group.n) {
        const int ready = poll(fds, group.n, 20);
        if (ready == 0)
            ask_as_others();
        if (ready < 0 || bench_now() - start > WAIT_MS / 1e3)
            bench_fail("version %" PRIu64 " was not announced: %u of %u nodes", version, over, group.n);
        for (unsigned i = 0; i < group.n; i++) {
            struct node *n = &group.nodes[i];
            json_t *o = fds[i].revents ? receive(n) : NULL;
            if (o)
                step_on(n, o);
            over += o && n->stage == IS_OVER;
            json_decref(o);
            if (n->again > 0 && n->again <= bench_now())
                report(n, false);
        }
    }
    return bench_now() - start;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct result {
    double p50, p99, cpu; /* seconds a version */
};

static struct result run(unsigned nodes, const char *folder)
{
    double seconds[STEPS];
    char at[300];
    snprintf(at, sizeof(at), "%s/group.sock", folder);
    group.n = nodes;
    group.version = 0;
    group.port = free_port();
    const pid_t agent = start_agent(at);
    const double began = bench_now();
    for (unsigned i = 0; i < OTHERS; i++)
        if ((group.others[i] = connect_one()) < 0)
            bench_fail("cannot connect");
    ask_as_others();
    register_all();
    printf("  %u nodes registered and placed in %.2f s, %.2f s of the primary's CPU\n", nodes,
           bench_now() - began, bench_cpu_of(agent));
    for (unsigned i = 0; i < WARM; i++)
        (void)publish(1 + i);
    const double before = bench_cpu_of(agent);
    for (unsigned i = 0; i < STEPS; i++)
        seconds[i] = publish(1 + WARM + i);
    const double cpu = (bench_cpu_of(agent) - before) / STEPS;
    for (unsigned i = 0; i < OTHERS; i++)
        close(group.others[i]);
    for (unsigned i = 0; i < nodes; i++) {
        close(group.nodes[i].sock);
        free(group.nodes[i].reply);
    }
    kill(agent, SIGKILL);
    waitpid(agent, NULL, 0);
    unlink(at);
    qsort(seconds, STEPS, sizeof(seconds[0]), ascending);
    const struct result r = {seconds[STEPS / 2], seconds[STEPS - 1], cpu};
    printf("  %u nodes: p50 %.1f ms, p99 %.1f ms, %.1f ms of the primary's CPU a version\n", nodes,
           r.p50 * 1e3, r.p99 * 1e3, cpu * 1e3);
    return r;
}

int main(int argc, char **argv)
{
    const char *folder = getenv("TESTDIR");
    group.polls = argc > 1 && strcmp(argv[1], "polls") == 0;
    folder = folder ? folder : "/tmp";
    const struct result few = run(FEW, folder), all = run(NODES, folder);
    bench_row(&(struct bench_row){"group-256", all.p50 * 1e3, "ms", 0, BENCH_AT_MOST, 100});
    bench_row(&(struct bench_row){"group-256-p99", all.p99 * 1e3, "ms", 0, BENCH_AT_MOST, 500});
    /* Of four times as many nodes. */
    bench_row(&(struct bench_row){"group-256-cpu", all.cpu * 1e3, "ms", few.cpu * NODES / FEW * 1e3,
                                  BENCH_AT_MOST, 1.25});
    return 0;
}
