/* Changed: how a version's tensors differ from those of the version before it, for .wsync/changed. */
#ifndef WS_FS_CONTROL_TENSOR_DIFF_H
#define WS_FS_CONTROL_TENSOR_DIFF_H
#include "fs/store/store.h"
#include <stdio.h>

/* Prints a line a tensor, after a head line; compared on all cores, with nothing pulled: a sentence instead
 * where this version, or none before it, is here. What was found is kept with the version. May take as long
 * as reading both takes. -ENOMEM. */
WS_MUST_USE int ws_changed_print(struct ws_version *v, FILE *f);

#endif
