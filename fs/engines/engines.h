/* Engines: the inference servers that are registered with a model, and what is known of each. Private to
 * control and its files. */
#ifndef WS_FS_ENGINES_ENGINES_H
#define WS_FS_ENGINES_ENGINES_H
#include "fs/engines/backoff.h"
#include "fs/engines/condition.h"
#include "fs/engines/draft.h"
#include "fs/engines/grammar.h"
#include "fs/engines/members.h"
#include "fs/engines/patching.h"
#include "fs/store/histogram.h"
#include "transports/access/bearer.h"

struct ws_control;
struct ws_controller;

#define WS_ENGINE_TEMPLATES 6
/* A token of an engine's. Its file is looked at before each use of the engine; what it held before stays, since calls
 * may have it. Guarded by the control's lock. */
struct ws_engine_token {
    char *text; /* in secret memory; NULL: none yet */
    struct ws_bearer_file file;
    struct ws_engine_old_token {
        struct ws_engine_old_token *before;
        char *text;
    } * old;
};
/* A registered engine. Never freed while a switch of its model runs. */
struct ws_engine {
    struct ws_engine *next;
    const struct ws_engine_ops *ops;
    char *name, *url, *prefix, *pause_mode, *load_format, *ca_file; /* never change; NULL: none */
    char *files, *token_file, *admin_token_file;                    /* never change */
    struct ws_engine_token token, admin_token;
    char *mounts; /* "H1,H2:/wsync": mounts of other nodes that it reads; NULL: none */
    char *templates[WS_ENGINE_TEMPLATES]; /* remote: pause, load, flush, resume, serving, patch; NULL: none */
    char *group;                          /* NULL: none; engines of one are never parted */
    char *line;                           /* the command that added it, for the state file */
    struct ws_members members;            /* never change */
    enum ws_engine_cache cache;           /* never changes, nor does: */
    enum ws_engine_sleep sleep;
    unsigned timeout_ms, short_ms;
    /* guarded by the control's lock */
    struct ws_condition condition;
    struct ws_engine_facts facts;
    double pause_seconds;               /* of the last switch */
    struct ws_histogram pauses;         /* of all */
    unsigned refs;                      /* of threads that look at it beside a switch */
    bool removed;                       /* the last of them frees it */
    struct ws_backoff catch_up_backoff; /* of being brought along */
    char *listed;        /* names of its members' adapters, as it listed them last; NULL: none */
    char *strays;        /* names of the same form under which it has what somebody else loaded */
    char *adapter_error; /* why they are not as they should be; NULL: they are, or were not asked for */
    unsigned lost_looks; /* looks in a row at which it listed adapters whose files are gone */
    struct ws_backoff adapter_backoff;
    struct ws_draft draft;
    struct ws_patching patching; /* update and verify_s never change */
};

/* Would such an engine be understood? Nothing is asked of it. -EINVAL. */
WS_MUST_USE int ws_engine_check(const struct ws_command *command, struct ws_error *err);
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
/* An engine that serves a model, and the controller that it was added to. */
struct ws_engine_at {
    struct ws_controller *controller;
    struct ws_engine *engine;
    const struct ws_member *member; /* as which it serves the model; NULL: as its target */
};
/* Goes from one to the next; begins with all zero. False: there is no other. Under the control's lock. */
bool ws_engine_next_of(struct ws_control *c, const char *model, struct ws_engine_at *at);
/* Is there one that serves the model so? Takes the lock. */
bool ws_engine_has_role(struct ws_control *c, const char *model, enum ws_member_role role);
/* How many versions of an adapter's model the engines keep at most; 0: none has such adapters. Under the lock. */
unsigned ws_engine_most_kept(struct ws_control *c, const char *model);
/* All engines of a model, held: none is freed before they are released. of_others: those, too, that were added to
 * another model and serve this one as a draft or as adapters. NULL: no memory. */
struct ws_engine **ws_engine_get_all(struct ws_control *c, struct ws_controller *ctl, bool of_others,
                                     size_t *n);
void ws_engine_put_all(struct ws_control *c, struct ws_engine **all, size_t n); /* and the array */
void ws_engine_free(struct ws_engine *e);                                       /* NULL is fine */

#endif
