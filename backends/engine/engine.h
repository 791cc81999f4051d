/* Engine: an inference server that loads weights from a path. One const table of stateless functions a
 * kind; everything they need comes in the arguments, nothing is kept between calls. Blocking; thread
 * safe. Bytes that an engine answers are input: bounded (WS_MAX_REPLY_BYTES) and checked; a status
 * code alone is never believed. */
#ifndef WS_ENGINE_ENGINE_H
#define WS_ENGINE_ENGINE_H
#include "transports/error.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ws_engine_target {
    const char *url;           /* http(s)://host:port, no credentials in it */
    const char *token;         /* bearer, or NULL; never logged */
    const char *pause_mode;    /* the kind's own word, NULL: its default */
    unsigned timeout_ms;       /* of a load; the other calls take a fraction, at least 5 s */
    const atomic_bool *cancel; /* looked at while waiting; may be NULL */
};
/* What an engine says that it serves. Empty strings where it does not say. */
struct ws_engine_serving {
    char version[64];
    char path[4096];
    bool paused;
};
struct ws_engine_ops {
    const char *kind;               /* "sglang" */
    const char *const *pause_modes; /* NULL-terminated, the default first */
    /* Is it there, and of this kind? Fills serving. -EHOSTUNREACH, -ETIMEDOUT, -EACCES, -EPROTO. */
    int (*probe)(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err);
    /* After success no request runs on half-loaded weights. */
    int (*pause)(const struct ws_engine_target *t, struct ws_error *err);
    /* Loads path as `version` (text). 0: the engine itself says that it now serves it. -EREMOTEIO: it
     * refused or failed, and says so (its old weights may go on, but no engine promises that: load
     * the old path back); -ECONNRESET, -ETIMEDOUT: in doubt, ask serving; -EHOSTUNREACH: it was never
     * told. */
    int (*load)(const struct ws_engine_target *t, const char *path, const char *version,
                struct ws_error *err);
    int (*resume)(const struct ws_engine_target *t, struct ws_error *err);
    int (*serving)(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err);
    /* Checksum of the weights in the engine's memory as text (malloc'ed); -ENOTSUP. */
    int (*checksum)(const struct ws_engine_target *t, char **out, struct ws_error *err);
};
extern const struct ws_engine_ops ws_engine_sglang;
/* By kind; NULL when unknown. ws_engine_kinds: NULL-terminated list of names. */
const struct ws_engine_ops *ws_engine_find(const char *kind);
const char *const *ws_engine_kinds(void);

#endif
