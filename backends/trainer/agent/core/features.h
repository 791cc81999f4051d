/* Features: a feature of the agent is a table of hooks, ws_feature_NAME, in a file of its own, and a line in
 * feature_list.h. The core calls the hooks by ws_features_*, and knows no feature by name. A hook that is NULL
 * does nothing. The hooks of one kind are called in the order of the list.
 *
 * A feature keeps its state in feature_state[WS_FEATURE_NAME] of the agent and of each model: bytes that the
 * core allocates, and only the feature's own files look into. */
#ifndef WS_TRAINER_AGENT_CORE_FEATURES_H
#define WS_TRAINER_AGENT_CORE_FEATURES_H
#include "backends/trainer/agent/core/state.h"
#include "transports/protocol/api.h"

/* A request that is not the catalog's (transports/protocol/api.h). */
struct ws_agent_request {
    const struct ws_identity *who;
    const char *method, *path, *query;
    const struct ws_api_request *q; /* the parsed path */
    const json_t *body;
};
#define WS_ROUTE_OTHER 1 /* the route is not this feature's: the next one is asked */

/* A request to /v1/local/VERB, from the connection's own thread. */
struct ws_rank_call {
    struct ws_agent *a;
    struct ws_ipc_peer *peer;
    struct ws_session *session;
    json_t *body; /* may be emptied */
    const int *fds_in;
    size_t n_in;
    json_t **reply;
    int *fds; /* of the reply: at most `max` */
    size_t max;
    size_t *n_fds;
};
struct ws_rank_route {
    const char *verb;
    enum ws_role role;
    int (*handle)(struct ws_rank_call *q, struct ws_error *err); /* not under lock */
};
/* A line of a table names its role, or does not compile. */
#define WS_RANK_ROUTE(verb, role, handle)                                                                    \
    {                                                                                                        \
        verb, WS_ROLE_##role, handle                                                                         \
    }

struct ws_agent_feature {
    /* --- its own state: so many zeroed bytes of the agent, from before `start` until after `end`, and of each
     * model, until after `free`. It is at feature_state[WS_FEATURE_NAME]; 0: none --- */
    size_t agent_bytes, model_bytes;

    /* --- the agent's life; not under lock --- */
    /* Starts, where the options ask for it. No request comes yet. */
    int (*start)(struct ws_agent *a, struct ws_error *err);
    /* TCP is served, and its port is known; no rank can connect yet. */
    int (*serve)(struct ws_agent *a, struct ws_error *err);
    /* a->stop is set: ends its threads, and whatever requests wait for. Requests still come. Is called also
     * where the feature has not started. */
    void (*stop)(struct ws_agent *a);
    /* No request comes any more: frees what the feature's state of the agent / of a model owns. */
    void (*end)(struct ws_agent *a);
    void (*free)(struct ws_agent_model *m);

    /* Not under lock: a version is hashed, in a slot that is still HASHING; it may be announced next. */
    void (*sealed)(struct ws_agent *a);

    /* --- what happens to versions and ranks; under lock --- */
    /* The version on its way is complete in this slot. true: it was announced before. */
    bool (*written)(struct ws_agent_model *m, const struct ws_slot *s);
    /* The same, whether it was announced before or not: its manifest is sealed. m: the ranks' model. */
    void (*filled)(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
    /* It is about to be announced; m->slot_owner still has the newest one before it. m: the ranks' model. */
    void (*published)(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
    /* The listing has changed. */
    void (*announced)(struct ws_agent *a);
    /* A rank has given records of the version on its way, which its slot will own; they and its blocks' hashes were
     * checked. true: the listing has changed. */
    bool (*recorded)(struct ws_agent *a, struct ws_agent_model *m, const struct ws_rank_deltas *r);
    /* The version on its way is discarded; m->why says why. */
    void (*discarded)(struct ws_agent_model *m);
    /* This node decided that, before all its ranks had committed. */
    void (*abandoned)(struct ws_agent *a, struct ws_agent_model *m, const char *why);
    /* The delta to a version has ended, whole or given up; target is the version's lease. */
    void (*encoded)(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                    const struct ws_lease *target);
    /* Not under lock: the delta is whole; both leases hold. */
    void (*delta_made)(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                       const struct ws_lease *base, const struct ws_lease *target);
    /* A reader asks for a version that no slot has. 0: this feature cannot make it; -EINPROGRESS: it is being
     * made; another error: why it could not be made just now. */
    int (*want)(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *lineage,
                struct ws_error *err);
    /* The signature of a version (base NULL), or of the delta that leads to it: *text, malloc'ed. -ENOENT: there is
     * none; -EAGAIN: it is being made, `changed` says when it is there; -ESTALE: it was given up; -ENOMEM. Under
     * lock, which it leaves meanwhile when it returns 0 or -ENOMEM. */
    int (*signature)(struct ws_agent *a, struct ws_agent_model *m, const struct ws_version_id *target,
                     const struct ws_version_id *base, char **text);
    /* A rank has left the model. */
    void (*left)(struct ws_agent *a, struct ws_agent_model *m);
    /* Not under lock: a connection to the unix socket has ended, and its session is freed next. */
    void (*gone)(struct ws_agent *a, const struct ws_session *c);

    /* --- what is shown; under lock. Each adds to `out`: the model's entry of the listing, its entry of the
     * status, the status, the metrics --- */
    void (*list)(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out);
    void (*model_status)(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out);
    void (*status)(const struct ws_agent *a, json_t *out);
    void (*metrics)(const struct ws_agent *a, FILE *f);

    /* --- requests; not under lock --- */
    /* The routes that `route` serves, with the role of each; no other path reaches it. Ends with {0}; NULL: none. */
    const struct ws_api_route *routes;
    /* 0, -errno, or WS_ROUTE_OTHER. */
    int (*route)(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err);
    const struct ws_rank_route *rank_routes; /* ends with one without a verb; NULL: none */
};

#define WS_DECLARE_FEATURE(name) extern const struct ws_agent_feature ws_feature_##name;
WS_AGENT_FEATURES(WS_DECLARE_FEATURE)
#undef WS_DECLARE_FEATURE

/* Not under lock: the agent's states / under lock: a new model's. -ENOMEM: none was made. */
WS_MUST_USE int ws_features_init(struct ws_agent *a);
WS_MUST_USE int ws_features_init_model(const struct ws_agent *a, struct ws_agent_model *m);
WS_MUST_USE int ws_features_start(struct ws_agent *a, struct ws_error *err);
WS_MUST_USE int ws_features_serve(struct ws_agent *a, struct ws_error *err);
void ws_features_stop(struct ws_agent *a);
void ws_features_end(struct ws_agent *a);
void ws_features_free(const struct ws_agent *a, struct ws_agent_model *m);
void ws_features_sealed(struct ws_agent *a);
bool ws_features_written(const struct ws_agent *a, struct ws_agent_model *m, const struct ws_slot *s);
void ws_features_filled(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
void ws_features_published(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s);
void ws_features_announced(struct ws_agent *a);
bool ws_features_recorded(struct ws_agent *a, struct ws_agent_model *m, const struct ws_rank_deltas *r);
void ws_features_discarded(const struct ws_agent *a, struct ws_agent_model *m);
void ws_features_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why);
void ws_features_encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                         const struct ws_lease *target);
void ws_features_delta_made(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                            const struct ws_lease *base, const struct ws_lease *target);
WS_MUST_USE int ws_features_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version,
                                 const char *lineage, struct ws_error *err);
WS_MUST_USE int ws_features_signature(struct ws_agent *a, struct ws_agent_model *m,
                                      const struct ws_version_id *target, const struct ws_version_id *base,
                                      char **text);
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
