/* Plan: of which version that is here another one is made, and by which deltas. The cheapest way by measured
 * speeds (store/cost.h) among the versions that links lead back to and a full pull; the base's memory is
 * taken where it may be patched in place: where it is no longer wanted (may be evicted) and nobody reads it.
 * */
#ifndef WS_FS_PULL_DELTA_PLAN_H
#define WS_FS_PULL_DELTA_PLAN_H
#include "fs/pull/delta_chain.h"
#include "transports/delta/patcher.h"

struct ws_delta_plan {
    size_t n_links;                     /* oldest first */
    struct ws_link links[WS_MAX_CHAIN]; /* held: counted */
    struct ws_manifest *base;
    struct ws_version *copied; /* the base, counted and kept; NULL: its memory is the version's own now */
    _Atomic(uint64_t) **here;  /* ... and these are the blocks of it that are good; NULL: all of them */
};

/* plan: zeroed. True: the route's version is made of plan->base; the regions are there where it is patched in
 * place. False: it is pulled whole. why: for people. Without any lock; may wait a moment for readers of the
 * base to end. */
bool ws_delta_plan_make(struct ws_delta_plan *p, struct ws_route *r, const struct ws_links *k,
                        char why[WS_HOW_CHARS]);
void ws_delta_plan_release(struct ws_delta_plan *p); /* zeroed is fine */

#endif
