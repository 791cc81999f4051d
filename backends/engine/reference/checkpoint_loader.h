/* Checkpoint loader: reads a checkpoint folder into an engine's own memory. The reading follows SGLang and
 * vLLM step by step (checkpoint_loader.c), because the reference engine is there to try out mounts. One
 * thread loads; other threads may read what is loaded. */
#ifndef WS_ENGINE_REFERENCE_CHECKPOINT_LOADER_H
#define WS_ENGINE_REFERENCE_CHECKPOINT_LOADER_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>

struct ws_checkpoint_tensor {
    const char *name; /* owned by the checkpoint */
    enum ws_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WS_MAX_DIMS];
    uint64_t offset, bytes; /* in memory */
    bool filled;            /* by the last load; false: kept from the load before */
};

struct ws_checkpoint {
    size_t n_tensors; /* sorted by name (strcmp) */
    struct ws_checkpoint_tensor *tensors;
    char *names;
    unsigned char *memory; /* anonymous huge pages, kept for the next load that fits */
    size_t room_bytes, used_bytes;
};

/* For faults on command: `reached` is called with "open" when all files are open and mapped, with "load" when
 * half of the tensors are copied. */
struct ws_checkpoint_hooks {
    void (*reached)(void *arg, const char *step);
    void *arg;
};

/* Reads the folder into `into` (zeroed, or a checkpoint that no thread reads any more, whose memory is used
 * again). model: what the engine holds; NULL at the first load. As in the real engines the first load fixes
 * the model: later loads must keep its shapes, tensors that it does not have are not read, and a missing
 * tensor keeps its old bytes without an error (*n_missing counts them). -ENOENT: no such folder, or no
 * weights in it; -EBADMSG: not a valid safetensors file, a shape that differs, a tensor in two files; -EIO: a
 * file was cut or went away during the read, and `into` is empty. */
WS_MUST_USE int ws_checkpoint_load(struct ws_checkpoint *into, const struct ws_checkpoint *model,
                                   const char *path, const struct ws_checkpoint_hooks *steps,
                                   size_t *n_missing, struct ws_error *err);
/* By name; NULL: it has none. Borrowed. */
struct ws_checkpoint_tensor *ws_checkpoint_find(const struct ws_checkpoint *w, const char *name);
/* XXH3-64 of one tensor's bytes: the same figure as user.wsync.xxh3 of the tensor's file in a mount. */
uint64_t ws_checkpoint_tensor_hash(const struct ws_checkpoint *w, size_t tensor);
void ws_checkpoint_release(struct ws_checkpoint *w);

#endif
