/* Features: calls the hooks of all of them, and owns the memory of their states (features.h). */
#include "backends/trainer/agent/core/features.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void free_states(void *states[WS_N_FEATURES])
{
    for (size_t i = 0; i < WS_N_FEATURES; i++) {
        free(states[i]);
        states[i] = NULL;
    }
}

int ws_features_init(struct ws_agent *a)
{
    for (size_t i = 0; a->features[i]; i++)
        if (a->features[i]->agent_bytes && !(a->feature_state[i] = calloc(1, a->features[i]->agent_bytes))) {
            free_states(a->feature_state);
            return -ENOMEM;
        }
    return 0;
}

int ws_features_init_model(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (size_t i = 0; a->features[i]; i++)
        if (a->features[i]->model_bytes && !(m->feature_state[i] = calloc(1, a->features[i]->model_bytes))) {
            free_states(m->feature_state);
            return -ENOMEM;
        }
    return 0;
}

int ws_features_start(struct ws_agent *a, struct ws_error *err)
{
    int rc = 0;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->start && rc == 0)
            rc = (*f)->start(a, err);
    return rc;
}

int ws_features_serve(struct ws_agent *a, struct ws_error *err)
{
    int rc = 0;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->serve && rc == 0)
            rc = (*f)->serve(a, err);
    return rc;
}

void ws_features_stop(struct ws_agent *a)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->stop)
            (*f)->stop(a);
}

void ws_features_end(struct ws_agent *a)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->end)
            (*f)->end(a);
    free_states(a->feature_state);
}

void ws_features_free(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->free)
            (*f)->free(m);
    free_states(m->feature_state);
}

void ws_features_sealed(struct ws_agent *a)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->sealed)
            (*f)->sealed(a);
}

bool ws_features_written(const struct ws_agent *a, struct ws_agent_model *m, const struct ws_slot *s)
{
    bool announced = false;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->written)
            announced = (*f)->written(m, s) || announced;
    return announced;
}

void ws_features_filled(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->filled)
            (*f)->filled(a, m, s);
}

void ws_features_published(struct ws_agent *a, struct ws_agent_model *m, struct ws_slot *s)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->published)
            (*f)->published(a, m, s);
}

void ws_features_announced(struct ws_agent *a)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->announced)
            (*f)->announced(a);
}

bool ws_features_recorded(struct ws_agent *a, struct ws_agent_model *m, const struct ws_rank_deltas *r)
{
    bool changed = false;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->recorded)
            changed = (*f)->recorded(a, m, r) || changed;
    return changed;
}

void ws_features_discarded(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->discarded)
            (*f)->discarded(m);
}

void ws_features_abandoned(struct ws_agent *a, struct ws_agent_model *m, const char *why)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->abandoned)
            (*f)->abandoned(a, m, why);
}

void ws_features_encoded(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                         const struct ws_lease *target)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->encoded)
            (*f)->encoded(a, m, d, target);
}

void ws_features_delta_made(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                            const struct ws_lease *base, const struct ws_lease *target)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->delta_made)
            (*f)->delta_made(a, m, d, base, target);
}

int ws_features_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *lineage,
                     struct ws_error *err)
{
    int rc = 0;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->want && rc == 0)
            rc = (*f)->want(a, m, version, lineage, err);
    return rc;
}

int ws_features_signature(struct ws_agent *a, struct ws_agent_model *m, const struct ws_version_id *target,
                          const struct ws_version_id *base, char **text)
{
    int rc = -ENOENT;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->signature && rc == -ENOENT)
            rc = (*f)->signature(a, m, target, base, text);
    return rc;
}

void ws_features_left(struct ws_agent *a, struct ws_agent_model *m)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->left)
            (*f)->left(a, m);
}

void ws_features_gone(struct ws_agent *a, const struct ws_session *c)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->gone)
            (*f)->gone(a, c);
}

void ws_features_list(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->list)
            (*f)->list(a, m, out);
}

void ws_features_model_status(const struct ws_agent *a, const struct ws_agent_model *m, json_t *out)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->model_status)
            (*f)->model_status(a, m, out);
}

void ws_features_status(const struct ws_agent *a, json_t *out)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->status)
            (*f)->status(a, out);
}

void ws_features_metrics(const struct ws_agent *a, FILE *out)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->metrics)
            (*f)->metrics(a, out);
}

int ws_features_route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                      struct ws_error *err)
{
    int rc = WS_ROUTE_OTHER;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->route && rc == WS_ROUTE_OTHER)
            rc = (*f)->route(a, r, reply, err);
    return rc;
}

const struct ws_rank_route *ws_features_rank_route(const struct ws_agent *a, const char *verb)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        for (const struct ws_rank_route *r = (*f)->rank_routes; r && r->verb; r++)
            if (strcmp(r->verb, verb) == 0)
                return r;
    return NULL;
}
