/* Four ranks, a process each, that offload their quarters (Shard(0)) of 1.19 GB at the same time, compared
 * with the best streaming copy of all of it with 2 threads. Timed from the start signal until the last rank
 * may continue. */
#include "tests/bench/common.h"
#include "tests/bench/trainer.h"
#include "transports/memory/available.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS        4U
#define COPY_THREADS 2
#define REPEATS      9

struct process {
    pid_t pid;
    int to, from; /* pipes; a byte each way: offload, done; settle, done; its end ends the process */
};

static char word(int from)
{
    char c;
    return read(from, &c, 1) == 1 ? c : 0;
}

static void say(int to, char c)
{
    if (write(to, &c, 1) != 1)
        bench_fail("a rank has ended");
}

/* Its share of two cores is half a thread; it gets one. */
static void be_rank(unsigned rank, int from, int to)
{
    struct bench_rank r = {.rank = rank, .world_size = RANKS};
    char url[80];
    bench_add_qwen(&r);
    void *memory = bench_memory(r.bytes);
    if (read(from, url, sizeof(url)) != (ssize_t)sizeof(url))
        exit(1);
    bench_rank_open(&r, url, "ranks", memory, 1);
    for (char c; (c = word(from)) != 0; say(to, 'd')) {
        if (c == 'o')
            bench_offload(&r);
        else
            bench_settle(&r);
    }
    bench_rank_close(&r);
    exit(0);
}

/* Before any thread exists. */
static struct process start(unsigned rank, const struct process *before)
{
    int down[2], up[2];
    if (pipe(down) || pipe(up))
        bench_fail("cannot make a pipe");
    struct process p = {.pid = fork(), .to = down[1], .from = up[0]};
    if (p.pid < 0)
        bench_fail("cannot start a rank");
    if (p.pid == 0) {
        for (unsigned i = 0; i < rank; i++) {
            close(before[i].to); /* else it would never end */
            close(before[i].from);
        }
        close(down[1]);
        close(up[0]);
        be_rank(rank, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    return p;
}

static void tell_all(const struct process *p, char c)
{
    for (unsigned i = 0; i < RANKS; i++)
        say(p[i].to, c);
    for (unsigned i = 0; i < RANKS; i++)
        if (word(p[i].from) != 'd')
            bench_fail("rank %u has ended", i);
}

static void offload_all(void *processes)
{
    tell_all(processes, 'o');
}

int main(void)
{
    struct process ranks[RANKS];
    struct bench_rank whole = {0};
    struct bench_agent agent;
    struct bench_copy copy;
    struct ws_error err = {0};
    double offload[REPEATS], copied[REPEATS];
    int failed = 0;
    bench_add_qwen(&whole); /* for the size */
    if (ws_memory_check(5 * whole.bytes, "a model twice, its slots and a copy", &err) < 0)
        bench_skip("%s", err.text);
    for (unsigned i = 0; i < RANKS; i++)
        ranks[i] = start(i, ranks);
    bench_agent_start(&agent);
    for (unsigned i = 0; i < RANKS; i++)
        if (write(ranks[i].to, agent.url, sizeof(agent.url)) != (ssize_t)sizeof(agent.url))
            bench_fail("a rank has ended");
    bench_copy_open(&copy, bench_memory(whole.bytes), whole.bytes, COPY_THREADS);
    for (int i = -2; i < REPEATS; i++) { /* alternating; the first two touch the slots' memory */
        double t = bench_timed(offload_all, ranks);
        tell_all(ranks, 's');
        double t_copy = bench_timed(bench_copy_run, &copy);
        if (i >= 0) {
            offload[i] = t;
            copied[i] = t_copy;
        }
    }
    bench_row(&(struct bench_row){"offload-4-ranks", bench_rate(whole.bytes, bench_median(offload, REPEATS)),
                                  "GB/s", bench_rate(whole.bytes, bench_median(copied, REPEATS)),
                                  BENCH_AT_LEAST, 0.85});
    for (unsigned i = 0; i < RANKS; i++) {
        int status;
        close(ranks[i].to);
        close(ranks[i].from);
        failed |= waitpid(ranks[i].pid, &status, 0) != ranks[i].pid || status != 0;
    }
    bench_copy_close(&copy);
    bench_agent_end(&agent);
    return failed;
}
