/* Puller: what brings versions here. The store has it from whoever makes the store, and asks it for bytes;
 * how they come it does not know. fs/pull/pull.h is one. */
#ifndef WS_FS_STORE_PULLER_H
#define WS_FS_STORE_PULLER_H
#include "fs/store/store.h"

struct ws_pull; /* the puller's own: a version that is being brought */

/* How much of a version is wanted. A look at a folder needs the manifest, a look at tensors/ the
 * headers, and only an open needs the weights. */
enum ws_goal { WS_GOAL_MANIFEST, WS_GOAL_HEADERS, WS_GOAL_ALL };

/* All are called with store->lock held, and none waits. */
struct ws_puller {
    /* Starts a pull, or has the running one go further or more urgently. 0 also when nothing is to be
     * done; negative: why none can start now (nobody has it, or the last one failed within a second). */
    int (*ask)(struct ws_version *v, enum ws_goal goal, enum ws_priority priority);
    void (*stop)(struct ws_pull *p); /* it ends soon */
    /* The source with that index is used no more where there is another one. */
    void (*leave)(struct ws_pull *p, unsigned index);
    bool (*wants_all)(const struct ws_pull *p);
    /* When the last byte came, of a whole block or not, or the pull began. */
    uint64_t (*progress_ns)(const struct ws_pull *p);
    /* Leaves sources that said nothing for their share of the deadline. When to look again, or WS_NEVER. */
    uint64_t (*hurry)(struct ws_pull *p, uint64_t now_ns);
    /* Who is asked and says nothing, or what the last one said: words after "nothing came: ". */
    void (*describe)(struct ws_pull *p, char out[WS_ERROR_TEXT / 2]);
};

#endif
