/* Choice: what a version costs by each way that it can come, in seconds, from sizes and measured speeds.
 * Pure, but for the speeds, which threads note and read without a lock. */
#ifndef WS_FS_STORE_COST_H
#define WS_FS_STORE_COST_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes a second; 0: not measured yet. */
struct ws_speeds {
    _Atomic(double) link;  /* of all lanes of a pull together */
    _Atomic(double) patch; /* of one thread that applies a delta and hashes the result */
    _Atomic(double) copy;  /* the same, with a copy of the base */
    bool given;            /* by the operator, before any thread runs: nothing is measured */
};
/* One of s: the mean of what was and what is now; too few bytes say nothing. */
void ws_speed_note(const struct ws_speeds *s, _Atomic(double) *speed, uint64_t bytes, double seconds);

/* A version was pulled whole because patching is slower, as was measured once. Nothing is measured that is
 * not used, and that once may have been disturbed: each time it is held for a little faster, until it is
 * tried. */
void ws_speeds_doubt(struct ws_speeds *s);

struct ws_cost {
    uint64_t fetch_bytes; /* over the link */
    uint64_t patch_bytes; /* of the model, that are patched; 0: a full pull */
    bool copies;          /* ... after they were copied */
    size_t n_links;
};
double ws_cost_seconds(const struct ws_cost *cost, const struct ws_speeds *speeds, unsigned threads);
/* By which deltas are compared with each other: a copy takes memory where a patch in place takes none, which
 * counts as its time again. A full pull takes as much as a copy: these two are compared by seconds. */
double ws_cost_price(const struct ws_cost *cost, const struct ws_speeds *speeds, unsigned threads);
/* How hard the sender should compress a delta for this link: zstd's level, 0: not at all. */
unsigned ws_choice_level(const struct ws_speeds *speeds);

#endif
