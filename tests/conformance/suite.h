/* Suite: the cases that hold for every transport. Each test's state is a struct world, which it opens a copy of.
 * One thread. */
#ifndef WS_TESTS_SUITE_H
#define WS_TESTS_SUITE_H
#include "tests/conformance/world.h"

#define MAX_BLOCKS 16

int64_t now_ms(void);
/* Control calls may fail on purpose; the answer must come in the end. */
struct ws_manifest *get_manifest(struct world *w, unsigned version);

struct arrival {
    const struct ws_manifest_file *file;
    unsigned char *dst;
    unsigned good[MAX_BLOCKS], bad;
    size_t stop_after;
};
int on_block(void *arg, size_t block, uint64_t hash); /* arg: a struct arrival */

void lists_models(void **state);
void long_poll_wakes(void **state);
void cancel_ends_a_poll(void **state);
void moves_every_byte(void **state);
void moves_one_block(void **state);
void blocks_go_elsewhere(void **state);
void block_can_stop(void **state);
void unknown_is_not_there(void **state);
void maps_or_says_that_it_cannot(void **state);
void reports_arrive(void **state);
void revoked_in_the_middle(void **state);
void server_dies_between(void **state);

#define CASES(world)                                                                                         \
    {"lists models: " #world, lists_models, NULL, NULL, &world},                                             \
        {"a long poll wakes: " #world, long_poll_wakes, NULL, NULL, &world},                                 \
        {"cancel ends a poll: " #world, cancel_ends_a_poll, NULL, NULL, &world},                             \
        {"moves every byte: " #world, moves_every_byte, NULL, NULL, &world},                                 \
        {"moves one block: " #world, moves_one_block, NULL, NULL, &world},                                   \
        {"blocks go elsewhere: " #world, blocks_go_elsewhere, NULL, NULL, &world},                           \
        {"block can stop: " #world, block_can_stop, NULL, NULL, &world},                                     \
        {"maps or cannot: " #world, maps_or_says_that_it_cannot, NULL, NULL, &world},                        \
    {                                                                                                        \
        "reports arrive: " #world, reports_arrive, NULL, NULL, &world                                        \
    }

#endif
