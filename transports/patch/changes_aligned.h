/* The changes of an edit whose elements are those of the tensors, as nearly all are: they are listed as they stand in it, and the
 * block before the edit is not made. */
#ifndef WS_TRANSPORTS_PATCH_CHANGES_ALIGNED_H
#define WS_TRANSPORTS_PATCH_CHANGES_ALIGNED_H
#include "transports/patch/changes_finder.h"

/* s->edit made the len bytes in s->after, which are at byte `at` of the file. *listed: each changed element is listed, and s->before
 * has the block's first and last WS_CHANGES_ELEMENT_BYTES bytes before the edit; false: it is no such edit, and nothing was done. */
WS_MUST_USE int ws_changes_list_aligned(struct ws_changes_finder *j, struct ws_changes_scratch *s,
                                        size_t file, uint64_t at, size_t len, bool *listed,
                                        struct ws_error *err);

#endif
