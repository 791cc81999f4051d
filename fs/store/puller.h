/* Puller: the table of functions that bring versions here. The store gets it when it is made, and does not
 * know how the bytes come. fs/pull/pull.h is the one of the mount. */
#ifndef WS_FS_STORE_PULLER_H
#define WS_FS_STORE_PULLER_H
#include "fs/store/store.h"

struct ws_poller;
struct ws_delta_link;
struct ws_pull; /* the puller's own: a version that is being pulled */

/* How much of a version is wanted. A look at a folder needs the manifest, a look at tensors/ the
 * headers, and only an open needs the weights. WS_GOAL_DELTAS, of a part: which deltas lead to it. */
enum ws_goal { WS_GOAL_MANIFEST, WS_GOAL_DELTAS, WS_GOAL_HEADERS, WS_GOAL_ALL };

/* All are called with store->lock held, and none waits. */
struct ws_puller {
    /* Starts a pull, or raises the goal or the priority of the running one. 0 also when nothing is to be
     * done. Negative: none can start now (no source has it, or the last pull failed within a second). */
    int (*request)(struct ws_version *v, enum ws_goal goal, enum ws_priority priority);
    void (*stop)(struct ws_pull *p); /* it ends soon, not before this returns */
    /* Leaves the source with that index for another one, if there is one. */
    void (*leave)(struct ws_pull *p, unsigned index);
    bool (*wants_all)(const struct ws_pull *p); /* is its goal WS_GOAL_ALL? */
    /* When the last byte came, of a whole block or not, or the pull began. */
    uint64_t (*progress_ns)(const struct ws_pull *p);
    /* Leaves sources that were silent for their share of the deadline. When to look again, or WS_NEVER. */
    uint64_t (*check_silence)(struct ws_pull *p, uint64_t now_ns);
    /* Looks at the parents of trees that it uses (parents.h), twice a second: leaves those that are much slower than
     * its other sources. By index: those that have sent nothing for SILENT_MS (pull/source_select.c). */
    uint64_t (*watch_parents)(struct ws_pull *p, uint64_t now_ns);
    /* Which source has not answered, or why the last one failed: words after "nothing came: ". */
    void (*describe)(struct ws_pull *p, char out[WS_ERROR_TEXT / 2]);
    /* A source lists that the model's next version is on its way, from that base (transports/delta/delta.h, a provisional one), and is
     * written on this machine. NULL: nothing comes before a version is announced. */
    void (*coming)(struct ws_poller *p, struct ws_model *m, const struct ws_delta_link *link,
                   uint64_t n_blocks, bool is_here);
    /* Room is wanted. Does memory of the model come back soon that was taken for such a version? With store->lock; NULL: none
     * was. */
    bool (*give_back)(struct ws_model *m);
};

#endif
