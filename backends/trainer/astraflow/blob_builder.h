/* Ahead: makes the blob (blob.h) that leads to the newest version by a thread of its own, as soon
 * as the agent has made its delta and where a receiver has the version that it begins at: whether there is
 * one has to be told at once, so it cannot be made when it is asked for. The one before is kept for a moment
 * longer, for receivers that were told of it and ask for it now. Any thread. */
#ifndef WS_TRAINER_ASTRAFLOW_BLOB_BUILDER_H
#define WS_TRAINER_ASTRAFLOW_BLOB_BUILDER_H
#include "backends/trainer/astraflow/blob.h"
#include "backends/trainer/astraflow/latest.h"

struct ws_ahead;
/* topic is borrowed. wanted: does any receiver have this version? */
WS_MUST_USE int ws_ahead_new(struct ws_ahead **out, const struct ws_topic *topic,
                             bool (*wanted)(void *arg, const struct ws_mark *base), void *arg,
                             struct ws_error *err);
void ws_ahead_wake(struct ws_ahead *a); /* something was published */
/* The blob that leads to a version, with a reference; waits for at most wait_ms while it is made. NULL: none.
 */
struct ws_blob *ws_ahead_to(struct ws_ahead *a, const struct ws_mark *target, unsigned wait_ms);
/* The one that begins at a version; the newest wins, also over one whose base has the same number in another
 * lineage: a receiver knows numbers only, so it was not that one that it was told of. */
struct ws_blob *ws_ahead_from(struct ws_ahead *a, const struct ws_mark *base);
void ws_ahead_stop(struct ws_ahead *a); /* it makes no more, and holds nothing */
void ws_ahead_free(struct ws_ahead *a); /* NULL is fine */

#endif
