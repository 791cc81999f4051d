/* Trainers for the benchmarks of the offload: an agent, ranks that hold parameters in warm memory, and the
 * best streaming copy to compare with. Ends the program on failure. */
#ifndef WS_BENCH_TRAINER_H
#define WS_BENCH_TRAINER_H
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/wsync.h"
#include "transports/base/workers.h"
#include "transports/memory/region.h"

struct bench_agent {
    struct ws_agent *agent;
    char dir[32], url[80];
};
void bench_agent_start(struct bench_agent *a);
void bench_agent_start_with(struct bench_agent *a, const struct ws_agent_options *options);
void bench_agent_end(struct bench_agent *a);
/* Anonymous memory in huge pages, touched. Never freed. */
void *bench_memory(uint64_t bytes);

/* One rank. Its parameters' data are one after another in its own memory. */
struct bench_rank {
    wsync_publisher *publisher;
    wsync_param *params;
    char (*names)[64];
    size_t n;
    unsigned rank, world_size;
    uint64_t version, bytes; /* bytes: of its sources */
};
/* Adds a BF16 matrix; its piece: whole, or this rank's share of dimension `shard` (0 or 1). */
void bench_add(struct bench_rank *r, const char *name, uint64_t rows, uint64_t columns, int shard);
void bench_add_qwen(struct bench_rank *r); /* 1.19 GB in tensors of Qwen3-0.6B's sizes, Shard(0) */
/* Assigns the parameters' data (r->bytes at memory) and connects. */
void bench_rank_open(struct bench_rank *r, const char *url, const char *model, void *memory,
                     unsigned threads);
void bench_rank_close(struct bench_rank *r);
void bench_offload(void *rank);          /* the next version */
void bench_settle(struct bench_rank *r); /* until it is announced; a trainer computes meanwhile */

/* The best streaming copy of n bytes, into memory like a slot's. */
struct bench_copy {
    struct ws_workers *workers;
    struct ws_region *region;
    const unsigned char *src;
    uint64_t bytes;
};
void bench_copy_open(struct bench_copy *c, const void *src, uint64_t bytes, unsigned threads);
void bench_copy_run(void *copy);
void bench_copy_close(struct bench_copy *c);
double bench_timed(void (*run)(void *arg), void *arg);

#endif
