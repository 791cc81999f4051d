/* Cost model: how many seconds a version costs by each way in which it can come, from sizes and measured
 * speeds. Pure, but for the speeds, which threads record and read without a lock. */
#ifndef WS_FS_STORE_COST_H
#define WS_FS_STORE_COST_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes a second; 0: not measured yet. */
struct ws_speeds {
    _Atomic(double) link;   /* of all lanes of a pull together */
    _Atomic(double) patch;  /* of one thread that applies a delta and hashes the result */
    _Atomic(double) copy;   /* the same, with a copy of the base */
    _Atomic(double) making; /* of the model, while a source made the delta that was fetched */
    bool given;             /* by the operator, before any thread runs: they stay as they are */
};
/* Records a measurement of one of s: its new value is the mean of the old and the measured one. Measurements
 * over few bytes are ignored. */
void ws_speeds_record(const struct ws_speeds *s, _Atomic(double) *speed, uint64_t bytes, double seconds);

/* A version was pulled whole because patching was measured to be slower. That measurement may have been
 * disturbed, and what is not used is not measured again. So patching is assumed to be a little faster after
 * each such pull, until it is tried again. */
void ws_speeds_favour_patching(struct ws_speeds *s);

struct ws_cost {
    uint64_t fetch_bytes; /* over the link */
    uint64_t patch_bytes; /* of the model, to which deltas are applied; 0: a full pull */
    bool copies;          /* the base is copied first, not patched in place */
    bool is_made;         /* a source is still making one of the deltas */
    size_t n_deltas;
};
double ws_cost_seconds(const struct ws_cost *cost, const struct ws_speeds *speeds, unsigned threads);
/* By which chains of deltas are compared with each other. A copy takes memory and a patch in place takes
 * none, so the time of patching a copy counts twice. A full pull takes as much memory as a copy: these two
 * are compared by seconds. */
double ws_cost_price(const struct ws_cost *cost, const struct ws_speeds *speeds, unsigned threads);
/* The level of zstd at which a source should compress a delta for this link; 0: not at all. */
unsigned ws_cost_zstd_level(const struct ws_speeds *speeds);

#endif
