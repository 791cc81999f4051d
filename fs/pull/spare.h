/* Spare: a copy of a version that is patched to the next one while the trainer still writes that. Its agent lists what it knows of the
 * step (wsync-api(5), "coming"), the records come as a provisional delta, and each block that one changes is made from the base
 * into the spare, with its hash. Nobody sees a spare. The pull of the version takes its memory, and of its blocks those that have the
 * manifest's hashes; the rest comes as ever. A spare that no pull takes is given back.
 *
 * A spare belongs to its thread; with store->lock the model's `spare` points to it. */
#ifndef WS_FS_PULL_SPARE_H
#define WS_FS_PULL_SPARE_H
#include "fs/pull/source_select.h"

/* As ws_puller's coming. With store->lock. */
void ws_spare_offer(struct ws_poller *p, struct ws_model *m, const struct ws_delta_link *link,
                    uint64_t n_blocks, bool is_here);
/* As ws_puller's give_back. With store->lock. */
bool ws_spare_give_back(struct ws_model *m);
/* As ws_puller's end_coming. With store->lock. */
void ws_spare_end(struct ws_model *m, const struct ws_poller *from);
/* Gives the pull's version the spare that was made for it, if there is one and most of it is right. False: it has nothing of one.
 * *delta: what leads to it, which the caller ends; NULL: no memory for that. By the pull's thread, without any lock. */
struct ws_spare_delta;
bool ws_spare_take(struct ws_source_select *sel, struct ws_spare_delta **delta);
/* The pull is over. Where all of v is there the model keeps the delta, with what no record made compared: engines are patched by
 * it, and other mounts take it. Frees it; NULL is fine. Without any lock. */
void ws_spare_delta_end(struct ws_spare_delta *delta, struct ws_version *v, const atomic_bool *stop);

#endif
