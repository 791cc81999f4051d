/* A trainer in plain C: RANK of WORLD ranks holds its shard of each parameter in float32 and publishes it as
 * bfloat16, once a step.
 *
 *     cc offload.c $(pkg-config --cflags --libs wsync) -o offload
 *     for r in 0 1; do ./offload unix:/run/wsync/agent.sock actor $r 2 & done; wait
 *
 * Parameter 0 is sharded on its rows, 1 on its columns, 2 is on every rank; element i of each is step + i
 * / 8. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wsync.h>

#define STEPS   3
#define ROWS    5
#define COLUMNS 6

/* torch.chunk: what rank r of n has of an extent. */
static void share(uint64_t extent, unsigned r, unsigned n, uint64_t *begin, uint64_t *count)
{
    uint64_t each = (extent + n - 1) / n;
    *begin = r * each < extent ? r * each : extent;
    *count = extent - *begin < each ? extent - *begin : each;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: offload AGENT MODEL RANK WORLD\n");
        return 2;
    }
    unsigned rank = (unsigned)strtoul(argv[3], NULL, 10), world = (unsigned)strtoul(argv[4], NULL, 10);
    wsync_config config = {
        .struct_size = sizeof(config), .agent = argv[1], .model = argv[2], .rank = rank, .world_size = world};
    wsync_publisher *pub;
    if (wsync_publisher_open(&config, &pub) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, wsync_error());
        return 1;
    }

    /* What this rank holds, as torch would say it; libwsync works out which bytes of the file these are. */
    float local[3][ROWS * COLUMNS];
    uint64_t begin[2], count[2];
    share(ROWS, rank, world, &begin[0], &count[0]);
    share(COLUMNS, rank, world, &begin[1], &count[1]);
    wsync_held held[3] = {
        {.name = "model.by_rows.weight",
         .n_placements = 1,
         .placements = {{WSYNC_SHARD, 0, 0, world, rank}},
         .local = {count[0], COLUMNS}},
        {.name = "model.by_columns.weight",
         .n_placements = 1,
         .placements = {{WSYNC_SHARD, 1, 0, world, rank}},
         .local = {ROWS, count[1]}},
        {.name = "model.everywhere.weight", .local = {ROWS, COLUMNS}},
    };
    for (int i = 0; i < 3; i++) {
        held[i].dtype = WSYNC_F32;
        held[i].n_dims = 2;
        held[i].shape[0] = ROWS;
        held[i].shape[1] = COLUMNS;
        held[i].data = local[i];
    }
    wsync_extract_options options = {.struct_size = sizeof(options), .kind = "fsdp", .dtype = "BF16"};
    wsync_extraction *extraction;
    if (wsync_extract(&options, held, 3, &extraction) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, wsync_error());
        return 1;
    }

    size_t n;
    const wsync_param *params = wsync_extraction_params(extraction, &n);
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint64_t i = 0; i < ROWS; i++) { /* training */
            for (uint64_t k = 0; k < COLUMNS; k++) {
                float value = (float)step + (float)(i * COLUMNS + k) / 8;
                if (i >= begin[0] && i < begin[0] + count[0])
                    local[0][(i - begin[0]) * COLUMNS + k] = value;
                if (k >= begin[1] && k < begin[1] + count[1])
                    local[1][i * count[1] + k - begin[1]] = value;
                local[2][i * COLUMNS + k] = value;
            }
        }
        if (wsync_offload(pub, params, n, step) < 0 || wsync_wait_published(pub, step, 60000) < 0) {
            fprintf(stderr, "rank %u, step %" PRIu64 ": %s\n", rank, step, wsync_error());
            return 1;
        }
    }
    wsync_extraction_free(extraction);
    wsync_close(pub);
    return 0;
}
