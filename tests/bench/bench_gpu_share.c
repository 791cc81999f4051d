/* Versions shared on GPUs, in another process: opened and every tensor copied, compared with one copy of as
 * many bytes within the device; and 10,000 small tensors in 10,000 allocations, one by one and packed. */
#include "tests/bench/common.h"
#include "tests/bench/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPEATS 7
#define SMALL   10000

struct importer {
    const char *url, *model;
    wsync_gpu_map *map;
    void **dst;
    size_t n;
    uint64_t bytes;
    struct ws_device_queue *q;
    void *from, *to;
};

static void open_it(void *arg)
{
    struct importer *i = arg;
    if (wsync_map_gpu(i->url, i->model, 0, &i->map))
        bench_fail("%s", wsync_error());
}

static void close_it(void *arg)
{
    struct importer *i = arg;
    wsync_unmap_gpu(i->map);
    i->map = NULL;
}

static void copy_it(void *arg)
{
    struct importer *i = arg;
    for (size_t k = 0; k < i->n; k++) {
        const wsync_gpu_tensor *t = wsync_gpu_map_tensor(i->map, k);
        if (wsync_gpu_map_copy(i->map, k, i->dst[k], t->shape[0] * t->shape[1] * 2))
            bench_fail("%s", wsync_error());
    }
}

static void load_it(void *arg)
{
    open_it(arg);
    copy_it(arg);
    close_it(arg);
}

static void one_copy(void *arg)
{
    const struct importer *i = arg;
    bench_gpu_copy(i->q, i->to, i->from, i->bytes);
    bench_gpu_finish(i->q);
}

/* Room for every tensor, one after the other. */
static void prepare(struct importer *i)
{
    const wsync_gpu_tensor *t;
    uint64_t at = 0;
    open_it(i);
    for (i->n = 0; (t = wsync_gpu_map_tensor(i->map, i->n)); i->n++)
        i->bytes += t->shape[0] * t->shape[1] * 2;
    i->q = bench_gpu_queue();
    i->from = bench_gpu_memory(i->bytes);
    i->to = bench_gpu_memory(i->bytes);
    i->dst = calloc(i->n + 1, sizeof(*i->dst));
    if (!i->dst)
        bench_fail("no memory for a list");
    for (size_t k = 0; k < i->n; k++) {
        t = wsync_gpu_map_tensor(i->map, k);
        i->dst[k] = (char *)i->to + at;
        at += t->shape[0] * t->shape[1] * 2;
    }
}

/* The importing process, which inherits no CUDA state. */
static void import_model(const char *url)
{
    struct importer i = {.url = url, .model = "model"};
    bench_gpu_open();
    prepare(&i);
    struct bench_subject copies[] = {{.run = copy_it, .arg = &i}, {.run = one_copy, .arg = &i}};
    bench_in_turns(copies, 2, REPEATS);
    close_it(&i);
    struct bench_subject loads[] = {{.run = load_it, .arg = &i}, {.run = one_copy, .arg = &i}};
    bench_in_turns(loads, 2, REPEATS);
    const double best = bench_rate(i.bytes, loads[1].seconds);
    bench_row(&(struct bench_row){"cuda-ipc-load", bench_rate(i.bytes, loads[0].seconds), "GB/s", best,
                                  BENCH_AT_LEAST, 0.8});
    bench_row(&(struct bench_row){"cuda-ipc-copy", bench_rate(i.bytes, copies[0].seconds), "GB/s",
                                  bench_rate(i.bytes, copies[1].seconds), BENCH_AT_LEAST, 0.8});
}

static void import_small(const char *url)
{
    struct importer tensors = {.url = url, .model = "tensors"}, packed = {.url = url, .model = "packed"};
    struct bench_subject s[] = {{.run = load_it, .arg = &packed}, {.run = load_it, .arg = &tensors}};
    prepare(&tensors);
    close_it(&tensors);
    prepare(&packed);
    close_it(&packed);
    bench_in_turns(s, 2, REPEATS);
    bench_row(&(struct bench_row){"packed-vs-tensor", SMALL / s[0].seconds, "1/s", SMALL / s[1].seconds,
                                  BENCH_AT_LEAST, 5});
}

static void offer(struct bench_rank *r, const char *url, const char *model, const char *share)
{
    wsync_config config = {
        .struct_size = sizeof(config), .agent = url, .model = model, .world_size = 1, .share = share};
    for (size_t i = 0; i < r->n; i++) {
        wsync_param *q = &r->params[i];
        q->name = r->names[i];
        q->data = bench_gpu_memory(q->shape[0] * q->shape[1] * 2);
    }
    if (wsync_publisher_open(&config, &r->publisher))
        bench_fail("%s", wsync_error());
    bench_offload(r);
    bench_settle(r);
}

static void offer_small(struct bench_rank *r, const char *url, const char *model, const char *share)
{
    for (int i = 0; i < SMALL; i++) {
        char name[64];
        snprintf(name, sizeof(name), "layers.%d.weight", i);
        bench_add(r, name, 64, 128, 0);
    }
    offer(r, url, model, share);
}

static void in_child(pid_t child, int go, const char *url)
{
    int status;
    if (write(go, url, strlen(url) + 1) < 0 || waitpid(child, &status, 0) != child)
        bench_fail("no importing process");
    if (status != 0)
        bench_fail("the importing process failed");
}

/* Forked before this process opens the driver; it continues when it gets the agent's address. */
static pid_t importer(void (*import)(const char *url), int *go)
{
    int ends[2];
    char url[80];
    if (pipe(ends))
        bench_fail("no pipe");
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        if (read(ends[0], url, sizeof(url)) > 0)
            import(url);
        exit(0);
    }
    close(ends[0]);
    *go = ends[1];
    return child;
}

int main(void)
{
    struct bench_agent agent;
    struct bench_rank model = {.world_size = 1}, tensors = {.world_size = 1}, packed = {.world_size = 1};
    int go[2];
    pid_t first = importer(import_model, &go[0]), second = importer(import_small, &go[1]);
    bench_gpu_open();
    bench_agent_start(&agent);
    bench_add_qwen_1_7b(&model);
    offer(&model, agent.url, "model", "cuda_ipc");
    in_child(first, go[0], agent.url);
    bench_rank_close(&model);
    offer_small(&tensors, agent.url, "tensors", "cuda_ipc");
    offer_small(&packed, agent.url, "packed", "packed_cuda_ipc");
    in_child(second, go[1], agent.url);
    bench_rank_close(&tensors);
    bench_rank_close(&packed);
    bench_agent_end(&agent);
    return 0;
}
