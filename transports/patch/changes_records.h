/* Changes from records: what a delta says of blocks, as elements of tensors. An edit's units are found in the tensors by their bytes; the block
 * before is made of the one after; blocks that came whole are compared with the base's. An element that lies in two blocks is put together. */
#ifndef WS_TRANSPORTS_PATCH_CHANGES_RECORDS_H
#define WS_TRANSPORTS_PATCH_CHANGES_RECORDS_H
#include "transports/patch/changes_finder.h"

/* *fits false: tensors lie otherwise in the base's files, so that records say nothing of them; what was found counts for nothing. */
WS_MUST_USE int ws_changes_from_records(struct ws_changes_finder *j, struct ws_workers *workers, bool *fits,
                                        struct ws_error *err);

#endif
