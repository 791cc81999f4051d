/* Engine: an inference server that loads weights from a path. Each kind is one const table of stateless
 * functions: everything they need comes in the arguments, and nothing is kept between calls. They block, and
 * any thread may call them. What an engine answers is input: its length is bounded (WS_MAX_REPLY_BYTES) and
 * its contents are checked. A status code alone is never believed. */
#ifndef WS_ENGINE_ENGINE_H
#define WS_ENGINE_ENGINE_H
#include "transports/base/error.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What happens to keys and values that were computed with the old weights. */
enum ws_engine_cache {
    WS_CACHE_LOCAL,    /* the engine's own prefix cache is emptied */
    WS_CACHE_EXTERNAL, /* hierarchical and external stores too */
    WS_CACHE_KEEP      /* nothing: the operator has decided so */
};
/* "local" (NULL too), "external", "keep". -EINVAL. */
WS_MUST_USE int ws_engine_cache_parse(const char *word, enum ws_engine_cache *out, struct ws_error *err);
/* How deep another program, as a trainer on the same GPU, puts the engine to sleep. */
enum ws_engine_sleep {
    WS_SLEEP_UNTOLD, /* it is not known that one does */
    WS_SLEEP_KEEPS,  /* its weights come back as they were */
    WS_SLEEP_LOSES,  /* they are undefined from then on until a load */
    WS_SLEEP_KV      /* its keys and values alone */
};
/* "1", "2", "kv"; NULL: untold. -EINVAL. */
WS_MUST_USE int ws_engine_sleep_parse(const char *word, enum ws_engine_sleep *out, struct ws_error *err);
/* The word for it; NULL: untold. */
const char *ws_engine_sleep_word(enum ws_engine_sleep sleep);
/* What a probe found. The caller keeps it and passes it with every call. */
struct ws_engine_facts {
    bool known;        /* false: not probed, so everything is tried */
    char release[64];  /* of the server, where it reports one */
    char missing[256]; /* routes that it does not offer, for people; empty: none */
    char draft[16];    /* of a separate draft model: does a load reach it? "loaded", "unchanged", "unknown";
                        * empty: it has none */
    bool labels;       /* its version can be changed without a load */
    bool patches;      /* says that wsync's package is in its workers, so that they may know how to patch */
    bool loads_draft;  /* load_draft will be taken, as far as it says what it was started with */
    bool stays_awake;  /* says that it has no sleep mode: it answers a sleep, and does nothing */
    /* What a load leaves wrong answers of (cpu_reload.h): */
    bool frees_int8_scales;    /* INT8 weights, or it does not say what it was started with */
    bool leaves_experts;       /* experts that are not quantised */
    unsigned max_adapter_rank; /* the largest that it takes; 0: not known, or it takes no adapters */
    unsigned routes;           /* bits of the kind's own */
};
/* Templates of a server of kind `remote`; see remote.c. NULL: a step that it does not have. */
struct ws_engine_templates {
    const char *pause, *load, *flush, *resume, *serving, *patch;
};
#define WS_CANCELS 3 /* the mount ends, the writer is interrupted, the operator cancels */
struct ws_http_client;
struct ws_engine_target {
    struct ws_http_client *http; /* that calls it; required */
    const char *url;             /* http(s)://host:port, no credentials in it */
    const char *token;           /* bearer, or NULL; never logged */
    const char *admin_token;     /* for calls that change the engine, where they want another; NULL: token */
    const char *ca_file;         /* certificate authorities; NULL: the system's */
    const char *ca_below;        /* the folder that ca_file has to lie below; NULL: anywhere */
    const char *pause_mode;      /* the kind's own word, NULL: its default */
    const char *load_format;     /* how SGLang reads files, its own word; NULL: as it was started */
    enum ws_engine_cache cache;
    enum ws_engine_sleep sleep;
    bool sleeping;       /* it reported so: a load wakes its weights, a resume the rest */
    unsigned timeout_ms; /* of a load */
    unsigned short_ms;   /* of the other calls; 0: a tenth of it, at least 5 s */
    uint64_t end_ns;     /* of all calls, by ws_clock_ns: none lasts beyond it; 0: there is none */
    const atomic_bool *cancel[WS_CANCELS]; /* looked at while waiting; NULLs are fine */
    uint64_t *
        resumed_ns; /* NULL, or set to when it said that it resumes, by ws_clock_ns; it is asked for that afterwards */
    bool *acted; /* NULL, or set to true when the engine may have acted on a request: it was sent, and not
                  * refused beforehand */
    bool
        only_named; /* `serving` asks for version and path alone, not whether it is paused or sleeps: one request less */
    const struct ws_engine_facts *facts;         /* may be NULL: not probed */
    const struct ws_engine_templates *templates; /* kind remote only */
};
/* What an engine reports that it serves. Empty strings where it does not report it. */
struct ws_engine_serving {
    char version[64];
    char path[4096];     /* that it loaded last */
    bool reports_paused; /* it reports whether it is paused: */
    bool paused, sleeping;
    bool sleep_unknown; /* it may sleep and does not report it: then it must not be loaded */
};
#define WS_ENGINE_PROCESS_CHARS 31
/* The adapters that an engine lists, each under the name that requests give. */
#define WS_MAX_ENGINE_ADAPTERS  64
#define WS_ADAPTER_NAME_CHARS   160
struct ws_engine_adapters {
    size_t n;
    bool more; /* it lists more than there is room for */
    struct ws_engine_adapter {
        char name[WS_ADAPTER_NAME_CHARS + 1];
        char path[4096]; /* that it was loaded from; empty: not reported */
    } items[WS_MAX_ENGINE_ADAPTERS];
};
struct ws_engine_patch; /* patch.h */
struct ws_engine_patch_reply;
struct ws_engine_ops {
    const char *kind;               /* "sglang" */
    const char *const *pause_modes; /* NULL-terminated, the default first */
    bool reports_path;    /* serving fills path where it can; empty: the caller remembers what was loaded */
    bool reports_version; /* serving fills version with what load sent */
    bool external;        /* driven by its own framework: no function is there */
    /* Is it there, is it of this kind, and what does it offer? Fills facts and out. -EHOSTUNREACH,
     * -ETIMEDOUT, -EACCES; -EPROTO says what is missing and how to turn it on. */
    int (*probe)(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *err);
    /* After success no request runs on half-loaded weights. */
    int (*pause)(const struct ws_engine_target *t, struct ws_error *err);
    /* NULL: not needed. Waits, as long as a load may take, until the engine has finished earlier requests
     * whose callers have given up. Their late replies would be taken for those of the next call. */
    int (*drain)(const struct ws_engine_target *t, struct ws_error *err);
    /* NULL: there is none. Makes it report another version for the weights that it holds. -EPROTO: it
     * cannot. */
    int (*label)(const struct ws_engine_target *t, const char *version, struct ws_error *err);
    /* Loads path as `version` (text); called by ws_engine_load only. 0: the engine itself reports that it now
     * serves it. -EREMOTEIO: it refused or failed, and reports so. Its old weights may go on, but no engine
     * promises that: load the old path again. -ECONNRESET, -ETIMEDOUT: the result is unknown, ask serving.
     * -EHOSTUNREACH, -EAGAIN: the load was never sent, since the engine is not there, or sleeps and could not
     * be woken. */
    int (*load)(const struct ws_engine_target *t, const char *path, const char *version,
                struct ws_error *err);
    /* After a load: empties the caches that t->cache names. 0: the engine itself reports that they are empty.
     * It is asked again while it reports that requests are in the way; -EREMOTEIO: they are not empty. */
    int (*flush)(const struct ws_engine_target *t, struct ws_error *err);
    /* Is tried again while a pause that timed out is still under way. 0: no pause is left. */
    int (*resume)(const struct ws_engine_target *t, struct ws_error *err);
    int (*serving)(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err);
    /* NULL: serving reports the path. Fills out->path with the folder that the engine was started with; it may
     * have loaded another one since. */
    int (*start_path)(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err);
    /* Adapters. All three NULL: the kind has none. They want no pause, and requests under way go on with the adapter that
     * they began with. A name is given to one path for ever: engines keep files and caches by name. */
    bool
        load_drops_adapters; /* a load of the base makes it forget what adapters hold: it reads their paths again at the
                               * next request, so that the paths have to stay */
    /* 0: the engine itself lists it. -EREMOTEIO: it refused, with its reason, and does not have it. -EPROTO: it was
     * started without adapters; how to turn them on. -ECONNRESET, -ETIMEDOUT: ask `adapters`. */
    int (*adapter_load)(const struct ws_engine_target *t, const char *name, const char *path,
                        struct ws_error *err);
    /* 0: it does not list the name any more, or never did. Requests under way with it are waited for, or finish on it. */
    int (*adapter_unload)(const struct ws_engine_target *t, const char *name, struct ws_error *err);
    /* What it lists now. -EPROTO as adapter_load. */
    int (*adapters)(const struct ws_engine_target *t, struct ws_engine_adapters *out, struct ws_error *err);
    /* NULL: the kind cannot. As load, of a draft model with files of its own, while the engine is paused. -EPROTO: it has
     * none, or was started without what this needs; how to turn it on. */
    int (*load_draft)(const struct ws_engine_target *t, const char *path, const char *version,
                      struct ws_error *err);
    /* NULL: the kind cannot. Which process answers, in its own words, without blanks: another text is another process, started
     * since. -EPROTO: this one does not say. */
    int (*process)(const struct ws_engine_target *t, char out[WS_ENGINE_PROCESS_CHARS + 1],
                   struct ws_error *err);
    /* NULL: the kind cannot. One stage of a patch, asked of all workers (patch.h), which calls it. 0: all of them
     * answered, also where they refuse; after a put or an undo that all of them did the engine also reports the version
     * and the path that ask names. -EPROTO: it does not offer patches, and nothing was done. -EHOSTUNREACH, -EACCES,
     * -EAGAIN: nothing was done. Else workers may have done it, or out has what they said and the record failed. */
    int (*patch)(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                 struct ws_engine_patch_reply *out, struct ws_error *err);
};
extern const struct ws_engine_ops ws_engine_sglang, ws_engine_vllm, ws_engine_remote;
/* By kind; NULL when unknown. ws_engine_kinds: NULL-terminated list of names. */
const struct ws_engine_ops *ws_engine_find(const char *kind);
const char *const *ws_engine_kinds(void);

#endif
