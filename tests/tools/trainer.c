/* A trainer that computes nothing: it has a model in Qwen3's shapes, or an adapter, and publishes it on command.
 *   trainer AGENT MODEL 0.6b|1.7b|tiny|SCALE|adapter [RANK WORLD_SIZE]
 * adapter: LoRA of rank 8 of q_proj and v_proj of the tiny model, with the file $ADAPTER_CONFIG. With a rank it is one
 * of several, all with the same numbers: each has a flat range of the embedding and of each lora_A, rows of q, k, v,
 * gate, up and lora_B, columns of o and down, and all of the norms. It answers a failure with "failed ERRNO SENTENCE"
 * and goes on. SIDECARS, BASE, RUN and PREFER in the environment are wsync_config's; UNEVEN: other ranges.
 * Reads commands, a line each, and answers each with a line:
 *   step SHARE        a SHARE of the elements, spread evenly, moves by one unit in the last place: "stepped N"
 *   mix SHARE         the same with steps like Adam's: two thirds by one unit, then fewer and fewer: "stepped N"
 *   offload VERSION   "offloaded VERSION BEGAN ENDED", in seconds of CLOCK_MONOTONIC; the elements may change
 *                     again
 *   wait VERSION      "published VERSION NOW"
 *   delta VERSION     "delta VERSION NOW": the delta to it is there
 *   how VERSION       "how REPORT": how it was offloaded (wsync_offload_report)
 *   begin VERSION     "begun VERSION": and no more, as if the copy took long
 *   abandon VERSION   "abandoned VERSION": what was begun */
#include "backends/trainer/wsync.h"
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LAYERS     28
#define LORA_RANK  8
#define MAX_PARAMS (LAYERS * 8 + 1)

struct model {
    uint64_t hidden, heads, intermediate,
        vocabulary; /* heads: columns of q and o; vocabulary 0: an adapter */
};

static struct {
    wsync_publisher *publisher;
    wsync_param params[MAX_PARAMS];
    char names[MAX_PARAMS][96];
    size_t n;
    uint64_t elements;
    uint16_t *data;
    unsigned rank, world;
} trainer;

static uint64_t seed = 88172645463325252ULL;

static uint64_t any(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void add(uint64_t rows, uint64_t columns, const char *format, int layer)
{
    size_t i = trainer.n++;
    snprintf(trainer.names[i], sizeof(trainer.names[i]), format, layer);
    trainer.params[i] = (wsync_param){.name = trainer.names[i],
                                      .dtype = WSYNC_BF16,
                                      .n_dims = 2,
                                      .shape = {rows, columns},
                                      .data = trainer.data ? trainer.data + trainer.elements : NULL};
    trainer.elements += rows * columns;
}

#define ATTENTION "base_model.model.model.layers.%d.self_attn."

static void lay_out_adapter(const struct model *m)
{
    for (int l = 0; l < LAYERS; l++) {
        add(LORA_RANK, m->hidden, ATTENTION "q_proj.lora_A.weight", l);
        add(m->heads, LORA_RANK, ATTENTION "q_proj.lora_B.weight", l);
        add(LORA_RANK, m->hidden, ATTENTION "v_proj.lora_A.weight", l);
        add(1024, LORA_RANK, ATTENTION "v_proj.lora_B.weight", l);
    }
    for (size_t i = 0; i < trainer.n; i++)
        trainer.params[i].file = "adapter_model.safetensors";
}

static void lay_out(const struct model *m)
{
    trainer.n = 0;
    trainer.elements = 0;
    if (m->vocabulary == 0) {
        lay_out_adapter(m);
        return;
    }
    add(m->vocabulary, m->hidden, "model.embed_tokens.weight", 0);
    for (int l = 0; l < LAYERS; l++) {
        add(m->heads, m->hidden, "model.layers.%d.self_attn.q_proj.weight", l);
        add(1024, m->hidden, "model.layers.%d.self_attn.k_proj.weight", l);
        add(1024, m->hidden, "model.layers.%d.self_attn.v_proj.weight", l);
        add(m->hidden, m->heads, "model.layers.%d.self_attn.o_proj.weight", l);
        add(m->intermediate, m->hidden, "model.layers.%d.mlp.gate_proj.weight", l);
        add(m->intermediate, m->hidden, "model.layers.%d.mlp.up_proj.weight", l);
        add(m->hidden, m->intermediate, "model.layers.%d.mlp.down_proj.weight", l);
        add(1, m->hidden, "model.layers.%d.input_layernorm.weight", l);
    }
}

static bool read_model(const char *name, struct model *m)
{
    double scale = strtod(name, NULL);
    if (strcmp(name, "0.6b") == 0)
        *m = (struct model){1024, 2048, 3072, 151936};
    else if (strcmp(name, "1.7b") == 0)
        *m = (struct model){2048, 2048, 6144, 151936};
    else if (strcmp(name, "tiny") == 0)
        *m = (struct model){64, 130, 190, 30001};
    else if (strcmp(name, "adapter") == 0)
        *m = (struct model){64, 130, 0, 0};
    else /* of the small model */
        *m = (struct model){1024, 2048, 3072, (uint64_t)(151936 * scale)};
    return strcmp(name, "0.6b") == 0 || strcmp(name, "1.7b") == 0 || strcmp(name, "tiny") == 0 ||
           strcmp(name, "adapter") == 0 || (scale > 0 && scale < 1);
}

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

/* This rank's part of a tensor: uneven if it does not divide. */
static void take_piece(wsync_param *p)
{
    const uint64_t r = trainer.rank, w = trainer.world, rows = p->shape[0], columns = p->shape[1];
    const uint16_t *data = p->data;
    if (has(p->name, "embed") || has(p->name, "lora_A")) {
        const uint64_t n = rows * columns, more = getenv("UNEVEN") ? columns : 0;
        const uint64_t first = n * r / w + (r > 0 ? more : 0), end = n * (r + 1) / w + (r + 1 < w ? more : 0);
        p->piece = (wsync_piece){.kind = WSYNC_RANGE, .start = first, .count = end - first};
        p->data = data + first;
    } else if (has(p->name, "o_proj") || has(p->name, "down")) {
        const uint64_t first = columns * r / w;
        p->piece = (wsync_piece){.kind = WSYNC_BOX,
                                 .offset = {0, first},
                                 .size = {rows, columns * (r + 1) / w - first},
                                 .strides = {(int64_t)columns, 1}};
        p->data = data + first;
    } else if (!has(p->name, "norm")) {
        const uint64_t first = rows * r / w;
        p->piece = (wsync_piece){
            .kind = WSYNC_BOX, .offset = {first, 0}, .size = {rows * (r + 1) / w - first, columns}};
        p->data = data + first * columns;
    }
}

/* Draws distances between changes instead of each element, with the same distribution. */
static uint64_t step(double share, bool mixed)
{
    uint64_t n = 0;
    const double scale = share < 1 ? 1 / log1p(-share) : 0;
    for (uint64_t i = 0;; i++) {
        i += share < 1 ? (uint64_t)(log(((double)(any() >> 11) + 0.5) / 9007199254740992.0) * scale) : 0;
        if (i >= trainer.elements)
            return n;
        uint16_t by = 1;
        while (mixed && any() % 3 == 0)
            by = (uint16_t)(by * 2);
        trainer.data[i] = (uint16_t)(any() & 1 ? trainer.data[i] + by : trainer.data[i] - by);
        n++;
    }
}

/* Like weights: signs and mantissas are noise, exponents are close together. */
static void fill(void)
{
    for (uint64_t i = 0; i < trainer.elements; i++) {
        uint64_t r = any();
        trainer.data[i] = (uint16_t)((r & 0x807f) | (100 + (r >> 20) % 20) << 7);
    }
}

/* The file of an adapter's config, for wsync_config.files; empty where there is none. */
static wsync_sidecar adapter_config(void)
{
    static char text[4096];
    wsync_sidecar out = {.name = "adapter_config.json", .data = text};
    FILE *f = getenv("ADAPTER_CONFIG") ? fopen(getenv("ADAPTER_CONFIG"), "r") : NULL;
    if (f) {
        out.bytes = fread(text, 1, sizeof(text), f);
        fclose(f);
    }
    return out;
}

static int failed(int rc)
{
    if (trainer.world == 1)
        return -1;
    printf("failed %d %s\n", -rc, wsync_error());
    return 0;
}

static int obey(char *line)
{
    int rc = 0;
    char *save = NULL, *word = strtok_r(line, " \n", &save), *value = strtok_r(NULL, " \n", &save);
    const uint64_t version = value ? strtoull(value, NULL, 10) : 0;
    if (!word || !value) {
        printf("what?\n");
    } else if (strcmp(word, "step") == 0 || strcmp(word, "mix") == 0) {
        printf("stepped %" PRIu64 "\n", step(strtod(value, NULL), word[0] == 'm'));
    } else if (strcmp(word, "offload") == 0) {
        double began = now();
        rc = wsync_offload(trainer.publisher, trainer.params, trainer.n, version);
        if (rc == 0)
            printf("offloaded %" PRIu64 " %.6f %.6f\n", version, began, now());
    } else if (strcmp(word, "wait") == 0) {
        rc = wsync_wait_published(trainer.publisher, version, 60000);
        if (rc == 0)
            printf("published %" PRIu64 " %.6f\n", version, now());
    } else if (strcmp(word, "delta") == 0) {
        rc = wsync_wait_delta(trainer.publisher, version, 60000);
        if (rc == 0)
            printf("delta %" PRIu64 " %.6f\n", version, now());
    } else if (strcmp(word, "how") == 0) {
        printf("how %s\n", wsync_offload_report(trainer.publisher));
    } else if (strcmp(word, "abandon") == 0) {
        rc = wsync_abandon(trainer.publisher);
        if (rc == 0)
            printf("abandoned %" PRIu64 "\n", version);
    } else if (strcmp(word, "loaded") == 0) {
        rc = wsync_wait_loaded(trainer.publisher, version, "all", 60000);
        if (rc == 0)
            printf("loaded %" PRIu64 "\n", version);
    } else if (strcmp(word, "begin") == 0) {
        rc = wsync_begin(trainer.publisher, version);
        if (rc < 0) { /* not registered yet, or the group has changed */
            rc = wsync_register(trainer.publisher, trainer.params, trainer.n);
            if (rc == 0)
                rc = wsync_begin(trainer.publisher, version);
        }
        if (rc == 0)
            printf("begun %" PRIu64 "\n", version);
    } else {
        printf("what?\n");
    }
    if (rc < 0 && failed(rc) < 0)
        return -1;
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct model m;
    char line[128];
    trainer.world = argc == 6 ? (unsigned)strtoul(argv[5], NULL, 10) : 1;
    trainer.rank = argc == 6 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
    if ((argc != 4 && argc != 6) || !read_model(argv[3], &m) || trainer.rank >= trainer.world) {
        fprintf(stderr, "usage: trainer AGENT MODEL 0.6b|1.7b|tiny|SCALE|adapter [RANK WORLD_SIZE]\n");
        return 2;
    }
    lay_out(&m);
    trainer.data =
        mmap(NULL, trainer.elements * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (trainer.data == MAP_FAILED)
        return 1;
    (void)madvise(trainer.data, trainer.elements * 2, MADV_HUGEPAGE);
    lay_out(&m);
    fill();
    for (size_t i = 0; trainer.world > 1 && i < trainer.n; i++)
        take_piece(&trainer.params[i]);
    const wsync_sidecar file = adapter_config();
    wsync_config config = {.struct_size = sizeof(config),
                           .agent = argv[1],
                           .model = argv[2],
                           .rank = trainer.rank,
                           .world_size = trainer.world,
                           .sidecars = getenv("SIDECARS"),
                           .base = getenv("BASE"),
                           .run = getenv("RUN"),
                           .timeout_ms = trainer.world > 1 ? 20000 : 0,
                           .n_threads = 2,
                           .prefer = getenv("PREFER"),
                           .files = &file,
                           .n_files = file.bytes > 0};
    if (wsync_publisher_open(&config, &trainer.publisher) < 0) {
        fprintf(stderr, "%s\n", wsync_error());
        return 1;
    }
    printf("ready %" PRIu64 "\n", trainer.elements * 2);
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        if (obey(line) < 0) {
            fprintf(stderr, "%s\n", wsync_error());
            return 1;
        }
    }
    wsync_close(trainer.publisher);
    return 0;
}
