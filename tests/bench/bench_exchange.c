/* The cost of an exchanged slot: 1.2 GB of warm host memory are offloaded after a process of this host has
 * opened and closed the slot's previous version, so that begin uses other memory for it; compared with the
 * same without that process. From the offload's begin to its end, alternating. */
#include "tests/bench/common.h"
#include "tests/bench/trainer.h"
#include "transports/memory/available.h"

#define THREADS 2
#define REPEATS 9
#define FIRST   3 /* versions that touch the slots' memory */

/* Like a process that maps a version by descriptors and releases it. */
static void look(const char *agent, const char *model, uint64_t version)
{
    wsync_version_files *files;
    if (wsync_open_version(agent, model, version, &files))
        bench_fail("%s", wsync_error());
    wsync_close_version(files);
}

int main(void)
{
    struct bench_rank opened = {0}, alone = {0};
    struct bench_agent agent;
    struct ws_error err = {0};
    double exchanged[REPEATS], kept[REPEATS];
    bench_add_qwen(&opened);
    bench_add_qwen(&alone);
    if (ws_memory_check(7 * opened.bytes, "a model and four slots", &err) < 0)
        bench_skip("%s", err.text);
    unsigned char *src = bench_memory(opened.bytes);
    bench_agent_start(&agent);
    bench_rank_open(&opened, agent.url, "opened", src, THREADS);
    bench_rank_open(&alone, agent.url, "alone", src, THREADS);
    for (int i = -FIRST; i < REPEATS; i++) {
        const double with = bench_timed(bench_offload, &opened);
        bench_settle(&opened);
        look(agent.url, "opened", opened.version);
        const double without = bench_timed(bench_offload, &alone);
        bench_settle(&alone);
        if (i >= 0) {
            exchanged[i] = with;
            kept[i] = without;
        }
    }
    bench_row(&(struct bench_row){"offload-exchanged", bench_median(exchanged, REPEATS), "s",
                                  bench_median(kept, REPEATS), BENCH_NO_GOAL, 0});
    bench_rank_close(&opened);
    bench_rank_close(&alone);
    bench_agent_end(&agent);
    return 0;
}
