/* GPU: versions that an agent on this host shares device to device, for .wsync/cuda_ipc.json. Thread safe. */
#ifndef WS_FS_PULL_CUDA_IPC_FILE_H
#define WS_FS_PULL_CUDA_IPC_FILE_H
#include "fs/store/store.h"
#include <stdio.h>

/* Does a unix: source list it as shared? Asks nobody. */
bool ws_version_is_on_gpus(struct ws_version *v);
/* What the agent says of it (POST /v1/local/gpu/look), as JSON. May wait for the agent. -ENOENT: it is not
 * shared (any more). */
WS_MUST_USE int ws_gpu_print(struct ws_version *v, FILE *f, struct ws_error *err);

#endif
