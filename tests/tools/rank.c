/* A rank of a trainer that computes nothing: what its tensors hold follows from version and position, so that
 * any reader can check every byte.
 *   rank AGENT MODEL RANK WORLD ELEMENTS [new-run] [run=ID] [salt=N] [timeout=MS] [seed=N] [shard=BYTES]
 *        [threads=N]
 * The model's tensors, with E = ELEMENTS:
 *   rows    BF16 [E/64, 64]   each rank holds a box of rows, the last ones more
 *   flat    U16 [E/2 + 7]     each rank holds a range, not of equal sizes
 *   all     U16 [64, 65]      every rank holds all of it
 *   tail    U8 [4321]         held by the last rank
 *   SEED.x  U16 [3]           with seed=N: a tensor more, of rank 0
 * Element i (of the flattened tensor) of version V is i * 31 + (i >> 11) + (V + salt + (i & 63)) / 64:
 * a version changes each 64th element by one, and no two versions in a row agree in 128 bytes anywhere.
 * As bytes: the low one of it.
 * Reads commands, a line each, and answers each with a line:
 *   fill VERSION      "filled VERSION"; what the tensors hold from here on
 *   offload VERSION   fills, offloads: "offloaded VERSION", or "error NUMBER SENTENCE"
 *   die AT VERSION    the same, and kills itself with SIGKILL when AT of 1000 bytes are copied
 *   stop AT VERSION   the same, but stops itself with SIGSTOP, once
 *   fork VERSION      as offload, and forks in the middle a child that lives as long as the rank
 *   wait VERSION      "published VERSION" or "error NUMBER SENTENCE"
 *   run -             "run NAME"
 *   how -             "how REPORT": how the last version was offloaded
 * PREFER in the environment is wsync_config's. */
#include "backends/trainer/wsync.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define COLUMNS      64
#define ALL_ROWS     64
#define ALL_COLUMNS  65
#define TAIL         4321
#define MAX_PARAMS   5
#define DEFAULT_WAIT 20000

/* A flattened range of a tensor that this rank holds. */
struct part {
    uint64_t start, count;
    void *data;
    int is_bytes;
};

static struct {
    wsync_publisher *publisher;
    wsync_param params[MAX_PARAMS];
    struct part parts[MAX_PARAMS];
    size_t n;
    uint64_t dies_at; /* of 1000; over 1000: never */
    int dies_by;      /* that signal */
    int forks;        /* in the middle of the next offload */
    uint64_t salt;    /* distinguishes the same numbers of several lineages and models */
} rank = {.dies_at = 1001};

static uint16_t value(uint64_t version, uint64_t i)
{
    return (uint16_t)(i * 31 + (i >> 11) + (version + (i & 63)) / 64);
}

static void fill(uint64_t version)
{
    version += rank.salt;
    for (size_t p = 0; p < rank.n; p++) {
        const struct part *part = &rank.parts[p];
        for (uint64_t i = 0; i < part->count; i++) {
            uint16_t v = value(version, part->start + i);
            if (part->is_bytes)
                ((uint8_t *)part->data)[i] = (uint8_t)v;
            else
                ((uint16_t *)part->data)[i] = v;
        }
    }
}

static void progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)arg;
    if (rank.dies_at <= 1000 && done_bytes * 1000 >= rank.dies_at * total_bytes)
        raise(rank.dies_by);
    if (rank.dies_by == SIGSTOP && done_bytes * 1000 >= rank.dies_at * total_bytes)
        rank.dies_at = 1001;
    if (rank.forks && fork() == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            (void)pause();
    }
    rank.forks = 0;
}

static void add(wsync_param param, uint64_t start, uint64_t count, int is_bytes)
{
    struct part *p = &rank.parts[rank.n];
    *p = (struct part){start, count, calloc(count ? count : 1, is_bytes ? 1 : 2), is_bytes};
    if (!p->data)
        exit(1);
    param.data = p->data;
    rank.params[rank.n++] = param;
}

static void lay_out(unsigned r, unsigned world, uint64_t elements, const char *more)
{
    uint64_t rows = elements / COLUMNS, flat = elements / 2 + 7;
    uint64_t first = rows / (world + 1) * r, end = r + 1 == world ? rows : rows / (world + 1) * (r + 1);
    add((wsync_param){.name = "rows",
                      .dtype = WSYNC_BF16,
                      .n_dims = 2,
                      .shape = {rows, COLUMNS},
                      .piece = {.kind = WSYNC_BOX, .offset = {first, 0}, .size = {end - first, COLUMNS}}},
        first * COLUMNS, (end - first) * COLUMNS, 0);
    first = flat * r * r / ((uint64_t)world * world);
    end = flat * (r + 1) * (r + 1) / ((uint64_t)world * world);
    add((wsync_param){.name = "flat",
                      .dtype = WSYNC_U16,
                      .n_dims = 1,
                      .shape = {flat},
                      .piece = {.kind = WSYNC_RANGE, .start = first, .count = end - first}},
        first, end - first, 0);
    add((wsync_param){.name = "all", .dtype = WSYNC_U16, .n_dims = 2, .shape = {ALL_ROWS, ALL_COLUMNS}}, 0,
        (uint64_t)ALL_ROWS * ALL_COLUMNS, 0);
    if (r + 1 == world)
        add((wsync_param){.name = "tail", .dtype = WSYNC_U8, .n_dims = 1, .shape = {TAIL}}, 0, TAIL, 1);
    if (more && r == 0)
        add((wsync_param){.name = more, .dtype = WSYNC_U16, .n_dims = 1, .shape = {3}}, 0, 3, 0);
}

static void answer(int rc, const char *done, uint64_t version)
{
    if (rc < 0)
        printf("error %d %s\n", -rc, wsync_error());
    else
        printf("%s %" PRIu64 "\n", done, version);
}

static void obey(char *line)
{
    char *save = NULL;
    const char *word = strtok_r(line, " \n", &save), *value_text = strtok_r(NULL, " \n", &save);
    if (word && (strcmp(word, "die") == 0 || strcmp(word, "stop") == 0) && value_text) {
        rank.dies_by = strcmp(word, "die") == 0 ? SIGKILL : SIGSTOP;
        rank.dies_at = strtoull(value_text, NULL, 10);
        value_text = strtok_r(NULL, " \n", &save);
    }
    const uint64_t version = value_text ? strtoull(value_text, NULL, 10) : 0;
    if (!word || !value_text) {
        printf("what?\n");
    } else if (strcmp(word, "fill") == 0) {
        fill(version);
        answer(0, "filled", version);
    } else if (strcmp(word, "offload") == 0 || strcmp(word, "die") == 0 || strcmp(word, "stop") == 0 ||
               strcmp(word, "fork") == 0) {
        fill(version);
        rank.forks = strcmp(word, "fork") == 0;
        answer(wsync_offload(rank.publisher, rank.params, rank.n, version), "offloaded", version);
        fill(version + 1000003); /* the sources may change again at once */
    } else if (strcmp(word, "wait") == 0) {
        answer(wsync_wait_published(rank.publisher, version, DEFAULT_WAIT), "published", version);
    } else if (strcmp(word, "how") == 0) {
        printf("how %s\n", wsync_offload_report(rank.publisher));
    } else if (strcmp(word, "run") == 0) {
        printf("run %s\n", wsync_run(rank.publisher));
    } else {
        printf("what?\n");
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[128], more[32] = "";
    if (argc < 6) {
        fprintf(stderr, "usage: rank AGENT MODEL RANK WORLD ELEMENTS [new-run] [run=ID] [salt=N] "
                        "[timeout=MS] [seed=N] [shard=BYTES] [threads=N]\n");
        return 2;
    }
    wsync_config config = {.struct_size = sizeof(config),
                           .agent = argv[1],
                           .model = argv[2],
                           .rank = (unsigned)strtoul(argv[3], NULL, 10),
                           .world_size = (unsigned)strtoul(argv[4], NULL, 10),
                           .n_threads = 2,
                           .timeout_ms = DEFAULT_WAIT,
                           .prefer = getenv("PREFER"),
                           .progress = progress};
    for (int i = 6; i < argc; i++) {
        config.new_run |= strcmp(argv[i], "new-run") == 0;
        if (strncmp(argv[i], "run=", 4) == 0)
            config.run = argv[i] + 4;
        if (strncmp(argv[i], "salt=", 5) == 0)
            rank.salt = strtoull(argv[i] + 5, NULL, 10);
        if (strncmp(argv[i], "timeout=", 8) == 0)
            config.timeout_ms = (unsigned)strtoul(argv[i] + 8, NULL, 10);
        if (strncmp(argv[i], "shard=", 6) == 0)
            config.shard_bytes = strtoull(argv[i] + 6, NULL, 10);
        if (strncmp(argv[i], "threads=", 8) == 0)
            config.n_threads = (unsigned)strtoul(argv[i] + 8, NULL, 10);
        if (strncmp(argv[i], "seed=", 5) == 0)
            snprintf(more, sizeof(more), "%s.x", argv[i] + 5);
    }
    lay_out(config.rank, config.world_size, strtoull(argv[5], NULL, 10), more[0] ? more : NULL);
    if (wsync_publisher_open(&config, &rank.publisher) < 0) {
        printf("error 0 %s\n", wsync_error());
        return 1;
    }
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin))
        obey(line);
    wsync_close(rank.publisher);
    for (size_t i = 0; i < rank.n; i++)
        free(rank.parts[i].data);
    return 0;
}
