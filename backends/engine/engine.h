/* Engine: an inference server that loads weights from a path. One const table of stateless functions a
 * kind; everything they need comes in the arguments, nothing is kept between calls. Blocking; thread
 * safe. Bytes that an engine answers are input: bounded (WS_MAX_REPLY_BYTES) and checked; a status
 * code alone is never believed. */
#ifndef WS_ENGINE_ENGINE_H
#define WS_ENGINE_ENGINE_H
#include "transports/base/error.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What becomes of keys and values that were computed with the old weights. */
enum ws_engine_cache {
    WS_CACHE_LOCAL,    /* the engine's own prefix cache is emptied */
    WS_CACHE_EXTERNAL, /* hierarchical and external stores too */
    WS_CACHE_KEEP      /* nothing: the user knows why */
};
/* "local" (NULL too), "external", "keep". -EINVAL. */
WS_MUST_USE int ws_engine_cache_parse(const char *word, enum ws_engine_cache *out, struct ws_error *err);
/* What a probe found: kept by the caller, given back with every call. */
struct ws_engine_facts {
    bool known;       /* false: not probed, everything is tried */
    char release[64]; /* of the server, where it says */
    char lacks[256];  /* routes that are done without, for people; empty: none */
    char draft[16];   /* of a separate draft model: does a load reach it? "loaded", "unchanged", "unknown";
                         empty:   it has none */
    bool labels;      /* it can be told a version without a load */
    unsigned routes;  /* bits of the kind's own */
};
/* Templates of a server of kind `remote`; see remote.c. NULL: a step that it does not have. */
struct ws_engine_templates {
    const char *pause, *load, *flush, *resume, *serving;
};
#define WS_CANCELS 3 /* the mount ends, the writer is interrupted, somebody says cancel */
struct ws_http_client;
struct ws_engine_target {
    struct ws_http_client *http; /* what calls it; required */
    const char *url;             /* http(s)://host:port, no credentials in it */
    const char *token;           /* bearer, or NULL; never logged */
    const char *admin_token;     /* for what changes the engine, where that wants another one; NULL: token */
    const char *ca_file;         /* whom to trust, NULL: the system's authorities */
    const char *ca_below;        /* the folder that ca_file has to lie below; NULL: anywhere */
    const char *pause_mode;      /* the kind's own word, NULL: its default */
    const char *load_format;     /* how SGLang reads files, its own word; NULL: as it was started */
    enum ws_engine_cache cache;
    bool sleeping;       /* it said so: its weights are woken for a load, the rest of it for a resume */
    unsigned timeout_ms; /* of a load */
    unsigned short_ms;   /* of the other calls; 0: a tenth of it, at least 5 s */
    uint64_t end_ns;     /* of all of them, by ws_clock_ns: no call lasts beyond it; 0: there is none */
    const atomic_bool *cancel[WS_CANCELS];       /* looked at while waiting; NULLs are fine */
    const struct ws_engine_facts *facts;         /* may be NULL: not probed */
    const struct ws_engine_templates *templates; /* kind remote only */
};
/* What an engine says that it serves. Empty strings where it does not say. */
struct ws_engine_serving {
    char version[64];
    char path[4096];   /* what it loaded last */
    bool tells_paused; /* it says whether it is paused: */
    bool paused, sleeping;
    bool sleep_unknown; /* it may sleep and does not say: without other knowledge it must not be loaded */
};
struct ws_engine_ops {
    const char *kind;               /* "sglang" */
    const char *const *pause_modes; /* NULL-terminated, the default first */
    bool tells_path;    /* serving fills path where it can; empty: the caller remembers what was loaded */
    bool tells_version; /* serving fills version with what load was told */
    bool external;      /* driven by its own framework: no function is there */
    /* Is it there, and of this kind, and what does it offer? Fills both. -EHOSTUNREACH, -ETIMEDOUT, -EACCES,
     * -EPROTO with what is missing and how it is turned on. */
    int (*probe)(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *err);
    /* After success no request runs on half-loaded weights. */
    int (*pause)(const struct ws_engine_target *t, struct ws_error *err);
    /* NULL: not needed. Waits, as long as a load may take, until it has done what it was told before, whose
     * caller has given up: its late reply would else be taken for that of the next call. */
    int (*settle)(const struct ws_engine_target *t, struct ws_error *err);
    /* NULL: there is none. Has it say another version of the weights that it holds. -EPROTO: it cannot. */
    int (*label)(const struct ws_engine_target *t, const char *version, struct ws_error *err);
    /* Loads path as `version` (text), by ws_engine_load only. 0: the engine itself says that it now serves
     * it. -EREMOTEIO: it refused or failed, and says so (its old weights may go on, but no engine promises
     * that: load the old path back); -ECONNRESET, -ETIMEDOUT: in doubt, ask serving; -EHOSTUNREACH, -EAGAIN:
     * it was never told, since it is not there, or sleeps and could not be woken. */
    int (*load)(const struct ws_engine_target *t, const char *path, const char *version,
                struct ws_error *err);
    /* After a load: empties what t->cache says of the caches. 0: the engine itself says that they are empty.
     * It is asked again while it says that requests are in the way; -EREMOTEIO: they are not empty. */
    int (*flush)(const struct ws_engine_target *t, struct ws_error *err);
    /* It is tried again while a pause that timed out is still under way. 0: no pause is left. */
    int (*resume)(const struct ws_engine_target *t, struct ws_error *err);
    int (*serving)(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err);
    /* Checksum of the weights in the engine's memory as text (malloc'ed); -ENOTSUP. */
    int (*checksum)(const struct ws_engine_target *t, char **out, struct ws_error *err);
};
extern const struct ws_engine_ops ws_engine_sglang, ws_engine_vllm, ws_engine_remote;
/* By kind; NULL when unknown. ws_engine_kinds: NULL-terminated list of names. */
const struct ws_engine_ops *ws_engine_find(const char *kind);
const char *const *ws_engine_kinds(void);

#endif
