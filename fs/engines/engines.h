/* Engines: the inference servers that are registered with a model, and what is known of each. Private to
 * control and its files. */
#ifndef WS_FS_ENGINES_ENGINES_H
#define WS_FS_ENGINES_ENGINES_H
#include "fs/engines/backoff.h"
#include "fs/engines/condition.h"
#include "fs/engines/grammar.h"
#include "fs/store/histogram.h"

struct ws_control;
struct ws_controller;

#define WS_ENGINE_TEMPLATES 5
/* A registered engine. Never freed while a switch of its model runs. */
struct ws_engine {
    struct ws_engine *next;
    const struct ws_engine_ops *ops;
    char *name, *url, *prefix, *pause_mode, *load_format, *ca_file; /* never change; NULL: none */
    char *files, *token_file, *admin_token_file;                    /* never change */
    char *token, *admin_token; /* guarded by the control's lock until they are set, then never change */
    char *mounts;              /* "H1,H2:/wsync": mounts of other nodes that it reads; NULL: none */
    char *templates[WS_ENGINE_TEMPLATES]; /* remote: pause, load, flush, resume, serving; NULL: none */
    char *group;                          /* NULL: none; engines of one are never parted */
    char *line;                           /* the command that added it, for the state file */
    enum ws_engine_cache cache;
    unsigned timeout_ms, short_ms;
    /* guarded by the control's lock */
    struct ws_condition condition;
    struct ws_engine_facts facts;
    double pause_seconds;               /* of the last switch */
    struct ws_histogram pauses;         /* of all */
    unsigned refs;                      /* of threads that look at it beside a switch */
    bool removed;                       /* the last of them frees it */
    struct ws_backoff catch_up_backoff; /* of being brought along */
};

/* Adds or removes an engine. The command's words are kept. ask: it must answer now; else it is unknown until
 * the reconciler has asked it, and its tokens need not be there yet. -EEXIST, -EBUSY, -ENOENT, or why it cannot
 * be reached. */
WS_MUST_USE int ws_engine_add(struct ws_control *c, struct ws_controller *ctl,
                              const struct ws_command *command, bool ask, struct ws_error *err);
WS_MUST_USE int ws_engine_remove(struct ws_control *c, struct ws_controller *ctl, const char *name,
                                 struct ws_error *err);
/* What the functions of its kind need, with storage for what they point to. */
struct ws_engine_call {
    struct ws_engine_target target;
    struct ws_engine_facts facts;
    struct ws_engine_templates templates;
};
void ws_engine_call_init(struct ws_engine *e, struct ws_control *c, struct ws_engine_call *out);
/* For a look at the engine: waits most_ms at most, however long its own timeout is. */
void ws_engine_call_limit(struct ws_engine_call *call, unsigned most_ms);
/* Can it be called? Tokens that could not be read with the settings are read now. Until that works the engine is
 * unknown, and no switch goes without it. */
WS_MUST_USE int ws_engine_ready(struct ws_engine *e, struct ws_control *c, struct ws_error *err);
/* Asks it anew what it is and serves, whatever t knows of it. ws_engine_record keeps the answer: under the
 * control's lock, where nothing newer is known. */
WS_MUST_USE int ws_engine_query(const struct ws_engine *e, const struct ws_engine_target *t,
                                struct ws_engine_facts *facts, struct ws_engine_serving *out,
                                struct ws_error *err);
void ws_engine_record(struct ws_engine *e, const struct ws_engine_facts *facts,
                      const struct ws_engine_serving *now);
/* All engines of a model, held: none is freed before they are released. NULL: no memory. */
struct ws_engine **ws_engine_get_all(struct ws_control *c, struct ws_controller *ctl, size_t *n);
void ws_engine_put_all(struct ws_control *c, struct ws_engine **all, size_t n); /* and the array */
void ws_engine_free(struct ws_engine *e);                                       /* NULL is fine */

#endif
