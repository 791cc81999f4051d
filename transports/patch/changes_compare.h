/* Changes by comparing: each tensor of the target with the base's of that name, wherever they lie in the files. */
#ifndef WS_TRANSPORTS_PATCH_CHANGES_COMPARE_H
#define WS_TRANSPORTS_PATCH_CHANGES_COMPARE_H
#include "transports/patch/changes_finder.h"

/* -EPROTO: the tensors' names, types or shapes differ. */
WS_MUST_USE int ws_changes_from_folders(struct ws_changes_finder *j, struct ws_workers *workers,
                                        struct ws_error *err);

#endif
