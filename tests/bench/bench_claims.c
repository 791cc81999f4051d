/* The cost of a registration per piece: one tensor on a mesh of 64 x 64 ranks, a box each, compared with
 * sixteen tensors on meshes of 16 x 16. Near-linear: at most twice as much. */
#include "backends/trainer/tensor/piece.h"
#include "tests/bench/common.h"
#include <stdlib.h>

#define RANKS   4096U
#define TENSORS 16U /* of the smaller ones */
#define REPEATS 21

struct subject {
    unsigned n_tensors, side;
    struct ws_piece_holder claims[RANKS];
    uint64_t load[RANKS];
};

static void settle(void *arg)
{
    struct subject *s = arg;
    const unsigned n = s->side * s->side;
    const struct ws_tensor t = {
        .name = "w", .dtype = WS_BF16, .n_dims = 2, .shape = {s->side * 8UL, s->side * 8UL}};
    struct ws_error err = {0};
    for (unsigned i = 0; i < s->n_tensors; i++)
        if (ws_piece_assign_writers(&t, s->claims + i * n, n, s->load, &err) < 0)
            bench_fail("%s", err.text);
}

static struct subject *mesh(unsigned n_tensors, unsigned side)
{
    struct subject *s = calloc(1, sizeof(*s));
    if (!s)
        bench_fail("no memory");
    s->n_tensors = n_tensors;
    s->side = side;
    for (unsigned i = 0; i < RANKS; i++) {
        const unsigned rank = i % (side * side);
        s->claims[i] = (struct ws_piece_holder){
            .rank = rank, .piece = {.offset = {rank / side * 8UL, rank % side * 8UL}, .size = {8, 8}}};
    }
    return s;
}

int main(void)
{
    struct subject *large = mesh(1, 64), *small = mesh(TENSORS, 16);
    struct bench_subject subjects[] = {{.run = settle, .arg = large}, {.run = settle, .arg = small}};
    bench_in_turns(subjects, 2, REPEATS);
    bench_row(&(struct bench_row){"claims-4096-ranks", subjects[0].seconds / RANKS * 1e6, "us",
                                  subjects[1].seconds / RANKS * 1e6, BENCH_AT_MOST, 2.0});
    free(large);
    free(small);
    return 0;
}
