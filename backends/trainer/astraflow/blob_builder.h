/* Blob builder: a thread of its own makes the blob (blob.h) that leads to the newest version, as soon as the
 * agent has made its delta and where a receiver has the version that it begins at. A receiver that asks whether
 * there is a blob needs the answer at once, so the blob cannot be made on request. The blob before stays for a
 * moment longer, for receivers that were told of it and ask for it now. Any thread. */
#ifndef WS_TRAINER_ASTRAFLOW_BLOB_BUILDER_H
#define WS_TRAINER_ASTRAFLOW_BLOB_BUILDER_H
#include "backends/trainer/astraflow/blob.h"
#include "backends/trainer/astraflow/latest.h"

struct ws_blob_builder;
/* topic is borrowed. wanted: does any receiver have this version? */
WS_MUST_USE int ws_blob_builder_new(struct ws_blob_builder **out, const struct ws_latest_scope *topic,
                                    bool (*wanted)(void *arg, const struct ws_version_id *base), void *arg,
                                    struct ws_error *err);
void ws_blob_builder_wake(struct ws_blob_builder *a); /* something was published */
/* The blob that leads to a version, with a reference; waits for at most wait_ms while it is made. NULL: none.
 */
struct ws_blob *ws_blob_builder_get_to(struct ws_blob_builder *a, const struct ws_version_id *target,
                                       unsigned wait_ms);
/* The one that begins at a version; the newest wins, also over one whose base has the same number in another
 * lineage: a receiver knows numbers only, so it was not that one that it was told of. */
struct ws_blob *ws_blob_builder_get_from(struct ws_blob_builder *a, const struct ws_version_id *base);
void ws_blob_builder_stop(struct ws_blob_builder *a); /* it makes no more, and holds nothing */
void ws_blob_builder_free(struct ws_blob_builder *a); /* NULL is fine */

#endif
