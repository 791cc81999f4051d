/* A version to a mount by NCCL: from the agent's slot through one device, and from another one into the
 * mount's memory, hashed, compared with the best pinned copy, which is the link's speed. NCCL does not use a
 * device twice, so with one device only its error is shown. */
#include "tests/bench/common.h"
#include "tests/bench/gpu.h"
#include "transports/nccl/broadcast.h"
#include "transports/transport.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPEATS 7
#define MATRIX  2048UL
#define N       128

struct receiver {
    struct ws_source *source;
    struct ws_manifest *manifest;
    unsigned char *data[WS_MAX_FILES];
    unsigned char *came; /* by block of the one large file */
    uint64_t bytes;
    char how[160];
    struct ws_device_queue *q;
    void *device, *pinned;
};

static bool wants(void *arg, size_t file, size_t block)
{
    const struct receiver *r = arg;
    return r->manifest->files[file].n_blocks > 1 && !r->came[block];
}

static int take(void *arg, size_t file, size_t block, uint64_t hash)
{
    struct receiver *r = arg;
    if (hash != r->manifest->files[file].hashes[block])
        bench_fail("block %zu is not what was published", block);
    r->came[block] = 1;
    return 0;
}

static void receive(void *arg)
{
    struct receiver *r = arg;
    struct ws_error err = {0};
    struct ws_broadcast_fetch f = {.manifest = r->manifest,
                                   .data = r->data,
                                   .wants = wants,
                                   .block = take,
                                   .arg = r,
                                   .device = ws_cuda_device.count() > 1};
    memset(r->came, 0, r->bytes / WS_BLOCK_BYTES + 1);
    if (ws_broadcast_fetch(r->source, &f, &err) < 0) {
        printf("  broadcast: not measured, with %u device(s): %s\n", ws_cuda_device.count(), err.text);
        exit(0);
    }
    memcpy(r->how, f.how, sizeof(r->how));
}

static void one_copy(void *arg)
{
    const struct receiver *r = arg;
    bench_gpu_copy(r->q, r->device, r->pinned, r->bytes);
    bench_gpu_finish(r->q);
}

static void receive_all(const char *url)
{
    struct ws_error err = {0};
    struct receiver r = {0};
    bench_gpu_open();
    if (ws_broadcast_available(&err) < 0)
        bench_skip("%s", err.text);
    if (ws_source_open(url, &(struct ws_source_options){.mount_id = "bench"}, &r.source, &err) < 0 ||
        ws_source_manifest(r.source, "model", 1, NULL, NULL, &r.manifest, &err) < 0)
        bench_fail("%s", err.text);
    for (size_t i = 0; i < r.manifest->n_files; i++) {
        const struct ws_manifest_file *f = &r.manifest->files[i];
        r.data[i] = bench_memory(f->size_bytes + 1);
        r.bytes = f->n_blocks > 1 ? f->size_bytes : r.bytes;
    }
    r.came = calloc(r.bytes / WS_BLOCK_BYTES + 1, 1);
    r.q = bench_gpu_queue();
    r.device = bench_gpu_memory(r.bytes);
    r.pinned = bench_gpu_pinned(r.bytes);
    struct bench_subject s[] = {{.run = receive, .arg = &r}, {.run = one_copy, .arg = &r}};
    bench_in_turns(s, 2, REPEATS);
    bench_row(&(struct bench_row){"broadcast", bench_rate(r.bytes, s[0].seconds), "GB/s",
                                  bench_rate(r.bytes, s[1].seconds), BENCH_AT_LEAST, 0.8});
    printf("  %s\n", r.how);
}

int main(void)
{
    struct ws_error err = {0};
    struct bench_agent agent;
    struct bench_rank model = {.world_size = 1};
    int ends[2], status;
    char url[80];
    if (pipe(ends))
        bench_fail("no pipe");
    pid_t child = fork(); /* before this process opens the driver */
    if (child == 0) {
        close(ends[1]);
        if (read(ends[0], url, sizeof(url)) > 0)
            receive_all(url);
        exit(0);
    }
    close(ends[0]);
    if (ws_broadcast_available(&err) < 0)
        bench_skip("%s", err.text);
    bench_agent_start_with(&agent, &(struct ws_agent_options){.broadcast = "0"});
    for (int i = 0; i < N; i++) {
        char name[64];
        snprintf(name, sizeof(name), "layers.%d.weight", i);
        bench_add(&model, name, MATRIX, MATRIX, 0);
    }
    bench_rank_open(&model, agent.url, "model", bench_memory(model.bytes), 0);
    bench_offload(&model);
    bench_settle(&model);
    if (write(ends[1], agent.url, strlen(agent.url) + 1) < 0 || waitpid(child, &status, 0) != child || status)
        bench_fail("the receiving process failed");
    bench_rank_close(&model);
    bench_agent_end(&agent);
    return 0;
}
