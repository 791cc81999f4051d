/* Weights: what an engine holds in its own memory after it has read a checkpoint folder. The reading
 * follows SGLang and vLLM step by step (checkpoint_loader.c), because it is the mount that is tried out with
 * it. Used by the reference engine; one thread loads, others may read what is loaded. */
#ifndef WS_ENGINE_REFERENCE_CHECKPOINT_LOADER_H
#define WS_ENGINE_REFERENCE_CHECKPOINT_LOADER_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>

struct ws_weight {
    const char *name; /* owned by the weights */
    enum ws_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WS_MAX_DIMS];
    uint64_t offset, bytes; /* in memory */
    bool filled;            /* by the last load; false: kept from the load before */
};

struct ws_weights {
    size_t n_tensors; /* sorted by name (strcmp) */
    struct ws_weight *tensors;
    char *names;
    unsigned char *memory; /* anonymous huge pages, kept for the next load that fits */
    size_t room_bytes, used_bytes;
};

/* For faults on command: called with "open" when all files are open and mapped, with "load" when half
 * of the tensors are copied. */
struct ws_weights_steps {
    void (*reached)(void *arg, const char *step);
    void *arg;
};

/* Reads the folder into `into` (zeroed, or weights that nobody reads any more: their memory is used
 * again). model: what the engine holds, NULL at the first load. As in the real engines the first load
 * settles the model: later ones must keep its shapes, tensors that it does not know are not read, and
 * one that is missing keeps its old bytes (*n_missing counts them) without an error. -ENOENT: no such
 * folder, or no weights in it; -EBADMSG: not a valid safetensors file, a shape that differs, a tensor
 * in two files; -EIO: a file was cut or went away while it was read; into is then empty. */
WS_MUST_USE int ws_weights_load(struct ws_weights *into, const struct ws_weights *model, const char *path,
                                const struct ws_weights_steps *steps, size_t *n_missing,
                                struct ws_error *err);
/* XXH3-64 of one tensor's bytes: the same figure as user.wsync.xxh3 of the tensor's file in a mount. */
uint64_t ws_weight_hash(const struct ws_weights *w, size_t tensor);
void ws_weights_release(struct ws_weights *w);

#endif
