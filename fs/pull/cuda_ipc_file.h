/* The file .wsync/cuda_ipc.json: what an agent on this host shares of a version, device to device. Thread
 * safe. */
#ifndef WS_FS_PULL_CUDA_IPC_FILE_H
#define WS_FS_PULL_CUDA_IPC_FILE_H
#include "fs/store/store.h"
#include <jansson.h>
#include <stdio.h>

/* Does a unix: source list it as shared? Asks no source. */
bool ws_cuda_ipc_file_exists(struct ws_version *v);
/* The agent's answer to POST /v1/local/gpu/look, a new reference; and the same printed as JSON. Both wait for
 * the agent. -ENOENT: it does not share the version (any more). */
WS_MUST_USE int ws_cuda_ipc_file_query(struct ws_version *v, json_t **reply, struct ws_error *err);
WS_MUST_USE int ws_cuda_ipc_file_print(struct ws_version *v, FILE *f, struct ws_error *err);

#endif
