/* Delta plan: the base, a version that is here, and the deltas of which another version is made. The cost
 * model (store/cost.h) chooses among the bases that the chain leads back to, and a full pull. The base is
 * patched in place, in its own memory, if it may be evicted and no process has read it; else it is copied. */
#ifndef WS_FS_PULL_DELTA_PLAN_H
#define WS_FS_PULL_DELTA_PLAN_H
#include "fs/pull/delta_chain.h"
#include "transports/delta/patcher.h"

struct ws_delta_plan {
    size_t n_steps;                                 /* oldest first */
    struct ws_delta_step steps[WS_MAX_DELTA_CHAIN]; /* held: counted */
    struct ws_manifest *base;
    struct ws_version *copied; /* the base, counted and retained; NULL: the version has its memory now */
    _Atomic(uint64_t) **here;  /* bitmaps, by file, of the base's good blocks; NULL: all are good */
};

/* p: zeroed. True: the version is made of p->base, and has its regions if that is patched in place. False: it
 * is pulled whole. why: a sentence for the version's how. Without any lock; may wait a moment for readers of
 * the base to end. */
bool ws_delta_plan_make(struct ws_delta_plan *p, struct ws_source_select *sel,
                        const struct ws_delta_chain *chain, char why[WS_HOW_CHARS]);
void ws_delta_plan_release(struct ws_delta_plan *p); /* zeroed is fine */

#endif
