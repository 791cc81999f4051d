/* A feature of the agent is a table of hooks, ws_feature_NAME, in a file of its own, and a line in the list
 * below. The core calls the hooks by ws_features_*, and knows no feature by name. A slot that is NULL has
 * nothing to do. The hooks of one kind are called in the order of the list. */
#ifndef WS_TRAINER_AGENT_CORE_FEATURES_H
#define WS_TRAINER_AGENT_CORE_FEATURES_H
#include "backends/trainer/agent/core/state.h"
#include "transports/protocol/api.h"

/* A request that is none of the catalog's (transports/protocol/api.h). */
struct ws_agent_request {
    const char *method, *path, *query;
    const struct ws_api_request *q; /* the path, taken apart */
    const json_t *body;
};
#define WS_ROUTE_NOT_MINE 1 /* the next feature is asked */

/* A request to /v1/local/VERB, from the connection's own thread. */
struct ws_rank_call {
    struct ws_agent *a;
    struct ws_ipc_peer *peer;
    struct ws_session *c;
    const json_t *body;
    const int *fds_in;
    size_t n_in;
    json_t **reply;
    int *fds; /* of the reply: at most `max` */
    size_t max;
    size_t *n_fds;
};
struct ws_rank_route {
    const char *verb;
    int (*handle)(struct ws_rank_call *q, struct ws_error *err); /* not under lock */
};

struct ws_agent_feature {
    /* --- the agent's life; not under lock --- */
    /* Begins, where the options ask for it. No request comes yet. */
    int (*start)(struct ws_agent *a, struct ws_error *err);
    /* TCP is served, and its port is known; no rank can come yet. */
    int (*serve)(struct ws_agent *a, struct ws_error *err);
    /* a->stop is set: ends its threads, and what makes a request wait. Requests still come. Also where it
     * has not started. */
    void (*stop)(struct ws_agent *a);
    /* Nothing asks any more: frees what it has of the agent / of a model. */
    void (*end)(struct ws_agent *a);
    void (*free)(struct ws_agent_model *m);

    /* --- what happens to versions and ranks; under lock --- */
    /* The version on its way is whole in this slot. true: it was announced before. */
    bool (*written)(struct ws_agent_model *m, const struct ws_slot *s);
    /* It is about to be announced: m->owner has the newest one before it still. m: the ranks' model. */
    void (*published)(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
    /* Pollers are to look at the listing. */
    void (*announced)(struct ws_agent *a);
    /* The version on its way is thrown away; m->why says why. */
    void (*discarded)(struct ws_agent_model *m);
    /* That was this node's decision, before all its ranks had committed. */
    void (*abandoned)(struct ws_agent *a, struct ws_agent_model *m, const char *why);
    /* The delta to a version has ended, whole or not; its slot is held. */
    void (*encoded)(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                    const struct ws_hold *target);
    /* A reader asks for a version that no slot has. 0: it is none of these; -EINPROGRESS: it is being made;
     * another error: what went wrong just now. */
    int (*want)(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                struct ws_error *err);
    /* A rank is none of the model any more. */
    void (*left)(struct ws_agent *a, struct ws_agent_model *m);
    /* Not under lock: a connection to the socket has ended; its session goes next. */
    void (*gone)(struct ws_agent *a, const struct ws_session *c);

    /* --- what is shown; under lock. `out` is an object that it adds to: the model's entry of the listing, of
     * the status; the status --- */
    void (*list)(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out);
    void (*model_status)(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out);
    void (*status)(const struct ws_agent *a, json_t *out);
    void (*metrics)(const struct ws_agent *a, FILE *f);

    /* --- what is asked; not under lock --- */
    /* WS_ROUTE_NOT_MINE: it is none of its routes. */
    int (*route)(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err);
    const struct ws_rank_route *rank_routes; /* up to one without a verb; NULL: none */
};

/* The list. Routes: the group forwards to the primary what only the primary can answer, which a broadcast is
 * not and what mounts report is. */
#define WS_AGENT_FEATURES(_)                                                                                 \
    _(delta)                                                                                                 \
    _(archive)                                                                                               \
    _(audit)                                                                                                 \
    _(gpu)                                                                                                   \
    _(astraflow)                                                                                             \
    _(broadcast)                                                                                             \
    _(group)                                                                                                 \
    _(fleet)

#define WS_DECLARE_FEATURE(name) extern const struct ws_agent_feature ws_feature_##name;
WS_AGENT_FEATURES(WS_DECLARE_FEATURE)
#undef WS_DECLARE_FEATURE

WS_MUST_USE int ws_features_start(struct ws_agent *a, struct ws_error *err);
WS_MUST_USE int ws_features_serve(struct ws_agent *a, struct ws_error *err);
void ws_features_stop(struct ws_agent *a);
void ws_features_end(struct ws_agent *a);
void ws_features_free(const struct ws_agent *a, struct ws_agent_model *m);
bool ws_features_written(const struct ws_agent *a, struct ws_agent_model *m, const struct ws_slot *s);
void ws_features_published(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
void ws_features_announced(struct ws_agent *a);
void ws_features_discarded(const struct ws_agent *a, struct ws_agent_model *m);
void ws_features_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why);
void ws_features_encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                         const struct ws_hold *target);
WS_MUST_USE int ws_features_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version,
                                 const char *run, struct ws_error *err);
void ws_features_left(struct ws_agent *a, struct ws_agent_model *m);
void ws_features_gone(struct ws_agent *a, const struct ws_session *c);
void ws_features_list(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out);
void ws_features_model_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out);
void ws_features_status(const struct ws_agent *a, json_t *out);
void ws_features_metrics(const struct ws_agent *a, FILE *f);
WS_MUST_USE int ws_features_route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                                  struct ws_error *err);
const struct ws_rank_route *ws_features_rank_route(const struct ws_agent *a, const char *verb); /* or NULL */

#endif
