/* Gate: may a version take the place of the one that a model's engines serve? Asked before any engine is
 * told, because none of them checks that a checkpoint is complete: a missing tensor is answered 200 and
 * leaves a mix. */
#ifndef WS_FS_GATE_H
#define WS_FS_GATE_H
#include "fs/store.h"

/* Compares names, dtypes and shapes with those of the current version; frozen tensors are in the files and
 * count. 0 too where nothing is served yet. -EPROTO with the list of what is missing, extra or different. */
WS_MUST_USE int ws_gate(struct ws_model *model, struct ws_version *version, struct ws_error *err);

#endif
