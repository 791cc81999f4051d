/* Tensor diff: how a version's tensors differ from those of the version before it, for .wsync/changed. */
#ifndef WS_FS_CONTROL_TENSOR_DIFF_H
#define WS_FS_CONTROL_TENSOR_DIFF_H
#include "fs/store/store.h"
#include <stdio.h>

/* Prints a head line and a line for each tensor. Nothing is pulled: where this version or the one before it is
 * not here, a sentence says so instead. Compares on all cores, which takes as long as reading both versions;
 * the result is kept with the version. -ENOMEM. */
WS_MUST_USE int ws_tensor_diff_print(struct ws_version *v, FILE *f);

#endif
