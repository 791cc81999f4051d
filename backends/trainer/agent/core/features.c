/* Calls the hooks of all features of an agent: features.h. */
#include "backends/trainer/agent/core/features.h"
#include <string.h>

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
}

void ws_features_free(const struct ws_agent *a, struct ws_agent_model *m)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->free)
            (*f)->free(m);
}

bool ws_features_written(const struct ws_agent *a, struct ws_agent_model *m, const struct ws_slot *s)
{
    bool announced = false;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->written)
            announced = (*f)->written(m, s) || announced;
    return announced;
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
                         const struct ws_hold *target)
{
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->encoded)
            (*f)->encoded(a, m, d, target);
}

int ws_features_want(struct ws_agent *a, struct ws_agent_model *m, uint64_t version, const char *run,
                     struct ws_error *err)
{
    int rc = 0;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->want && rc == 0)
            rc = (*f)->want(a, m, version, run, err);
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
    int rc = WS_ROUTE_NOT_MINE;
    for (const struct ws_agent_feature *const *f = a->features; *f; f++)
        if ((*f)->route && rc == WS_ROUTE_NOT_MINE)
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
