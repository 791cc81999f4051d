/* Block runs: which blocks of a version a broadcast carries, as runs of neighbours, in memory and in JSON.
 * Pure functions, callable from any thread. */
#ifndef WS_TRANSPORTS_NCCL_BLOCK_RUNS_H
#define WS_TRANSPORTS_NCCL_BLOCK_RUNS_H
#include "transports/format/manifest.h"
#include <jansson.h>

/* Blocks [first, first + n) of a file. */
struct ws_block_run {
    size_t file, first, n;
};
/* The blocks of a manifest that `in` names, in order; the caller frees *out. *n may be 0. -ENOMEM. */
WS_MUST_USE int ws_block_runs_new(const struct ws_manifest *m,
                                  bool (*in)(void *arg, size_t file, size_t block), void *arg,
                                  struct ws_block_run **out, size_t *n, struct ws_error *err);
/* As the API has them: [[file, first, n]..], in order and apart. */
json_t *ws_block_runs_json(const struct ws_block_run *runs, size_t n); /* new reference; NULL: no memory */
/* -EPROTO: the list names blocks that the manifest does not have, or is empty; -ENOMEM. */
WS_MUST_USE int ws_block_runs_from_json(const json_t *list, const struct ws_manifest *m,
                                        struct ws_block_run **out, size_t *n, struct ws_error *err);

#endif
