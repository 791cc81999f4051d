/* Patch: what an engine's worker processes do to go from a version that they hold to another one by writing the elements
 * that differ, and no others, into their live weights. wsync's package in the workers knows how; each answers one object
 * for each stage. What they answer is input: its size is bounded, and each member is checked. */
#ifndef WS_ENGINE_PATCH_H
#define WS_ENGINE_PATCH_H
#include "backends/engine/call.h"

enum ws_engine_patch_stage {
    WS_PATCH_STATE, /* can it, and what does it hold? */
    WS_PATCH_PREPARE, /* while it serves: which elements differ, where they are, whether they hold the old values */
    WS_PATCH_PUT,   /* in the pause: the new values */
    WS_PATCH_UNDO,  /* the old ones, also after a put that was cut off */
    WS_PATCH_DROP,  /* forgets the plan */
    WS_PATCH_VERIFY /* is what it holds what the file has? */
};
const char *ws_engine_patch_stage_name(enum ws_engine_patch_stage s);

#define WS_PATCH_PLAN_DIGITS 32
#define WS_PATCH_WORKERS     4096 /* at most */
struct ws_engine_patch {
    enum ws_engine_patch_stage stage;
    const char *plan;          /* of one switch and one engine; NULL: state, verify */
    const char *target, *base; /* folders, as the engine sees them; prepare alone */
    /* What the engine reports once all workers have put or undone it. */
    const char *version, *path;
};
/* A version by what identifies it: names are given anew, digests are not. */
struct ws_engine_patch_served {
    char version[64]; /* "42@RUN" */
    char digest[33];  /* of its manifest */
};
/* What all workers say together. */
struct ws_engine_patch_reply {
    size_t workers;
    bool ok;                 /* every one; of state: is ready */
    bool wrote;              /* one may have written a parameter, or does not say */
    bool differs;            /* of verify: what one holds is not what the file has */
    bool put;                /* of state: a plan was put and not dropped */
    double seconds;          /* of the slowest */
    double patchable;        /* of state: the least share of the elements that can be patched; else 1 */
    uint64_t changed, bytes; /* of prepare: the sum */
    char plan[WS_PATCH_PLAN_DIGITS + 1];  /* of state: that one has */
    struct ws_engine_patch_served served; /* of state, where all say the same; empty: not said */
    char whole[200];                      /* modules that are loaded whole, as far as there is room */
    char why[400];                        /* of the first that is not ok, with its rank */
};
/* results: of all workers; what: for people. -EPROTO: these are no workers' answers, or another number than `workers`
 * (0: any). */
WS_MUST_USE int ws_engine_patch_read(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                                     const json_t *results, size_t workers, struct ws_engine_patch_reply *out,
                                     struct ws_error *err);
/* The arguments of a stage as an object, as workers take them. NULL: no UTF-8, or no memory. */
json_t *ws_engine_patch_arguments(const struct ws_engine_patch *ask);
/* How long a stage may take: state and drop as a short call, prepare a third of a load, the others as a load. */
unsigned ws_engine_patch_within_ms(const struct ws_engine_target *t, enum ws_engine_patch_stage stage);
/* The engine answered, and no worker of it did: -EPROTO, with what it said. */
int ws_engine_patch_not_offered(const struct ws_engine_target *t, const struct ws_http_reply *reply,
                                struct ws_error *err);

/* --- on any kind's table --- */

/* What has become of a put or an undo. */
enum ws_engine_patch_outcome {
    WS_PATCH_NOTHING, /* no parameter was written: the engine holds what it held */
    WS_PATCH_DONE,    /* all workers did it, and the engine reports the version */
    WS_PATCH_UNKNOWN
};
/* In the pause: puts the plan that `workers` workers have prepared. Their answers to that and to the pause came, so that there
 * is nothing to wait for (drain). Else than DONE: err says why. */
enum ws_engine_patch_outcome ws_engine_patch_put(const struct ws_engine_ops *ops,
                                                 const struct ws_engine_target *t,
                                                 const struct ws_engine_patch *ask, size_t workers,
                                                 double *seconds, struct ws_error *err);
/* In the pause: the way back of a put, whatever has become of it; once more where the first was not answered. */
enum ws_engine_patch_outcome ws_engine_patch_undo(const struct ws_engine_ops *ops,
                                                  const struct ws_engine_target *t,
                                                  const struct ws_engine_patch *ask, size_t workers,
                                                  struct ws_error *err);

#endif
