/* Adapters of the reference engine: what its routes load, unload and name. An adapter is read from its files as the
 * real servers read it, checked against the model that is served, and kept as the checksum of what was read.
 *
 * What is imitated:
 * - A name that is loaded is refused, whatever path comes with it.
 * - vLLM's: an unload takes the name away at once. A load of the base makes the workers forget: the next request reads the
 *   adapter's path again, and fails where that is gone.
 * - SGLang's: an unload waits for requests under way, and loads and unloads wait for it. A request for an unloaded
 *   name has the path that it had read again, and lists it.
 * Any thread. */
#ifndef WS_ENGINE_REFERENCE_REFERENCE_ADAPTERS_H
#define WS_ENGINE_REFERENCE_REFERENCE_ADAPTERS_H
#include "backends/engine/reference/checkpoint_loader.h"
#include "transports/base/error.h"
#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>

#define WS_REFERENCE_ADAPTERS 64

struct ws_reference_adapter {
    char *name, *path; /* name NULL: no adapter */
    bool listed;
    bool held;      /* by the workers; else it is read again at the next request */
    unsigned users; /* requests under way */
    size_t tensors;
    char checksum[33]; /* of what was read last, as of a model (ws_reference_checksum) */
};
struct ws_reference_adapters {
    unsigned max_rank; /* 0: it was started without adapters */
    bool sglang;
    const char *refuse; /* the name of a load that is refused; NULL: none */
    bool lie;           /* such a load is answered with success */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool unloading; /* guarded by lock, and so is: */
    struct ws_reference_adapter items[WS_REFERENCE_ADAPTERS];
};
struct ws_reference;

/* -ENOTSUP: it was started without; -EEXIST: the name is loaded; -ENOENT: no such folder; -EPROTO: as it refuses it. */
WS_MUST_USE int ws_reference_adapter_load(struct ws_reference *r, const char *name, const char *path,
                                          struct ws_error *err);
/* -ENOTSUP; -ENOENT: no adapter of this name. */
WS_MUST_USE int ws_reference_adapter_unload(struct ws_reference *r, const char *name, struct ws_error *err);
/* For one request: fills {"name", "path", "checksum"} of what it runs on. After 0 `done` is called at its end. -ENOENT,
 * -EPROTO as load. */
WS_MUST_USE int ws_reference_adapter_use(struct ws_reference *r, const char *name, json_t **out,
                                         struct ws_error *err);
void ws_reference_adapter_done(struct ws_reference *r, const char *name);
/* The workers forget all of them, as vLLM's do at a load of the base. */
void ws_reference_adapters_forget(struct ws_reference *r);
/* Cards of /v1/models, added to `cards`. */
void ws_reference_adapters_list(struct ws_reference *r, json_t *cards);
/* {NAME: {"path", "checksum"}} of those that are listed. New reference. */
json_t *ws_reference_adapters_checksums(struct ws_reference *r);
void ws_reference_adapters_release(struct ws_reference_adapters *all);

#endif
