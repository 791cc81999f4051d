/* Delta plan: the base, a version that is here, and the deltas of which another version is made. The cost
 * model (store/cost.h) chooses among the bases that the chain leads back to, and a full pull. The base is
 * patched in place, in its own memory, if it may be evicted and no process has read it; else it is copied.
 *
 * Of a model with one copy (store/one_copy.h) the base is always what is in memory, and its memory goes on to the
 * version: by the way back where that leads there, else by the chain, whatever a full pull costs. Of a part it is what
 * lies in its place: the whole has its memory already (assemble_in_place.h), that of its model's one copy, or of a version
 * that nobody wants. */
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
    bool one_copy;             /* it is that of its model */
    bool base_was_whole;       /* ... and the version before was complete: the way back to it can be made */
};

/* Is there anything here that a delta could begin at? Else no source need be asked which ones there are: at a cold start
 * those who would be asked may be mounts that ask, too. With store->lock. */
bool ws_delta_plan_may_have_base(struct ws_version *v);
/* p: zeroed. 1: the version is made of p->base, and has its regions if that is patched in place. 0: it is pulled whole.
 * Negative: the one copy of its model cannot be had (ws_one_copy_move). why: a sentence for the version's how. Without any
 * lock; may wait a moment for readers of the base to end, and with one copy as long as a read waits. */
WS_MUST_USE int ws_delta_plan_make(struct ws_delta_plan *p, struct ws_source_select *sel,
                                   const struct ws_delta_chain *chain, char why[WS_HOW_CHARS],
                                   struct ws_error *err);
/* The steps from bytes of another version to this one, newest first, held ones borrowed: by the way back, else by deltas.
 * 0: there are none. With store->lock. */
size_t ws_delta_plan_find(struct ws_version *v, const struct ws_manifest *from,
                          const struct ws_delta_chain *chain, struct ws_delta_step steps[WS_MAX_DELTA_CHAIN]);
/* Is it quicker to patch these bytes in place by such steps than to pull all of the version? With store->lock. */
bool ws_delta_plan_pays(struct ws_version *v, size_t n, const struct ws_delta_step *steps);
void ws_delta_plan_release(struct ws_delta_plan *p); /* zeroed is fine */

#endif
