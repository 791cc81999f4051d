#include "tests/bench/trainer.h"
#include "tests/bench/common.h"
#include "transports/base/limits.h"
#include "transports/base/vector.h"
#include "transports/simd/copy.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAYERS 28

void bench_agent_start(struct bench_agent *a)
{
    bench_agent_start_with(a, &(struct ws_agent_options){0});
}

void bench_agent_start_with(struct bench_agent *a, const struct ws_agent_options *options)
{
    struct ws_error err = {0};
    char socket[64];
    strcpy(a->dir, "/tmp/wsync-bench.XXXXXX");
    if (!mkdtemp(a->dir))
        bench_fail("cannot make a folder below /tmp");
    snprintf(socket, sizeof(socket), "%s/agent.sock", a->dir);
    snprintf(a->url, sizeof(a->url), "unix:%s", socket);
    struct ws_agent_options o = *options;
    o.tcp.listen = "127.0.0.1:0";
    o.tcp.access.insecure = true;
    o.socket = socket;
    o.socket_gid = (gid_t)-1;
    if (ws_agent_new(&a->agent, &o, &err))
        bench_fail("%s", err.text);
}

void bench_agent_end(struct bench_agent *a)
{
    ws_agent_free(a->agent);
    (void)rmdir(a->dir);
}

void *bench_memory(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        bench_fail("cannot map a source");
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 3, bytes);
    return p;
}

void bench_add(struct bench_rank *r, const char *name, uint64_t rows, uint64_t columns, int shard)
{
    uint64_t world = r->world_size ? r->world_size : 1, whole[2] = {rows, columns};
    r->params = ws_vector_room(r->params, r->n, sizeof(*r->params));
    r->names = ws_vector_room(r->names, r->n, sizeof(*r->names));
    if (!r->params || !r->names)
        bench_fail("no memory for parameters");
    wsync_param *q = &r->params[r->n];
    *q = (wsync_param){.dtype = WSYNC_BF16, .n_dims = 2, .shape = {rows, columns}};
    if (world > 1) {
        uint64_t begin = whole[shard] * r->rank / world, end = whole[shard] * (r->rank + 1) / world;
        q->piece = (wsync_piece){.kind = WSYNC_BOX, .size = {rows, columns}};
        q->piece.offset[shard] = begin;
        q->piece.size[shard] = end - begin;
        rows = q->piece.size[0];
        columns = q->piece.size[1];
    }
    snprintf(r->names[r->n++], sizeof(r->names[0]), "%s", name);
    r->bytes += rows * columns * 2;
}

void bench_add_qwen(struct bench_rank *r)
{
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } shapes[] = {
        {"self_attn.q_proj.weight", 2048, 1024}, {"self_attn.k_proj.weight", 1024, 1024},
        {"self_attn.v_proj.weight", 1024, 1024}, {"self_attn.o_proj.weight", 1024, 2048},
        {"mlp.gate_proj.weight", 3072, 1024},    {"mlp.up_proj.weight", 3072, 1024},
        {"mlp.down_proj.weight", 1024, 3072},    {"input_layernorm.weight", 1, 1024},
    };
    bench_add(r, "model.embed_tokens.weight", 151936, 1024, 0);
    for (size_t layer = 0; layer < LAYERS; layer++) {
        for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
            char name[64];
            snprintf(name, sizeof(name), "model.layers.%zu.%s", layer, shapes[k].name);
            bench_add(r, name, shapes[k].rows, shapes[k].columns, 0);
        }
    }
}

void bench_rank_open(struct bench_rank *r, const char *url, const char *model, void *memory, unsigned threads)
{
    unsigned char *data = memory;
    for (size_t i = 0; i < r->n; i++) {
        wsync_param *q = &r->params[i];
        const uint64_t *size = q->piece.kind == WSYNC_BOX ? q->piece.size : q->shape;
        q->name = r->names[i];
        q->data = data;
        data += size[0] * size[1] * (q->converts ? 4 : 2);
    }
    wsync_config config = {.struct_size = sizeof(config),
                           .agent = url,
                           .model = model,
                           .rank = r->rank,
                           .world_size = r->world_size,
                           .n_threads = threads};
    if (wsync_publisher_open(&config, &r->publisher))
        bench_fail("%s", wsync_error());
}

void bench_rank_close(struct bench_rank *r)
{
    wsync_close(r->publisher);
    free(r->params);
    free(r->names);
}

void bench_offload(void *rank)
{
    struct bench_rank *r = rank;
    if (wsync_offload(r->publisher, r->params, r->n, ++r->version))
        bench_fail("%s", wsync_error());
}

void bench_settle(struct bench_rank *r)
{
    if (wsync_wait_published(r->publisher, r->version, 60000))
        bench_fail("%s", wsync_error());
}

void bench_copy_open(struct bench_copy *c, const void *src, uint64_t bytes, unsigned threads)
{
    struct ws_error err = {0};
    *c = (struct bench_copy){.workers = ws_workers_new(threads, 0), .src = src, .bytes = bytes};
    if (!c->workers || ws_region_new(&c->region, bytes, &err) || ws_region_prefault(c->region, threads, &err))
        bench_fail("%s", err.text);
}

static void one_block(void *arg, size_t i)
{
    const struct bench_copy *c = arg;
    uint64_t at = i * WS_BLOCK_BYTES, n = c->bytes - at < WS_BLOCK_BYTES ? c->bytes - at : WS_BLOCK_BYTES;
    ws_copy_stream((unsigned char *)ws_region_data(c->region) + at, c->src + at, n);
}

void bench_copy_run(void *copy)
{
    struct bench_copy *c = copy;
    ws_workers_run(c->workers, one_block, c, (c->bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES);
}

void bench_copy_close(struct bench_copy *c)
{
    ws_workers_free(c->workers);
    ws_region_free(c->region);
}

double bench_timed(void (*run)(void *arg), void *arg)
{
    double start = bench_now();
    run(arg);
    return bench_now() - start;
}
