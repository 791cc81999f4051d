#include "fs/store/needs.h"
#include "fs/store/node_parts.h"
#include "fs/store/part_view.h"
#include "transports/base/name.h"
#include "transports/format/subset.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEARN "learn"

/* Where the patterns begin, and the model's name before that; empty: there is none. No tensor's name has a '='. */
static int split(const char *text, char model[WS_MAX_NAME + 1], const char **patterns, struct ws_error *err)
{
    const size_t n = strcspn(text, "=;");

    *patterns = text;
    model[0] = '\0';
    if (text[n] != '=')
        return 0;
    *patterns = text + n + 1;
    if (n > WS_MAX_NAME)
        return ws_error_set(err, EINVAL, "'%.100s...' is no model's name", text);
    memcpy(model, text, n);
    model[n] = '\0';
    if (ws_name_is_view(model, NULL, NULL))
        return ws_error_set(
            err, EINVAL,
            "%s is a view, which comes whole: name what is needed of the model that it is made of, and "
            "mount that without the view",
            model);
    if (!ws_name_is_model(model))
        return ws_error_set(err, EINVAL, "'%s' is no model's name; %s", model, WS_MODEL_NAME_RULE);
    return 0;
}

/* *out NULL with 0: what is learned. */
static int parse(const char *patterns, struct ws_need **out, struct ws_error *err)
{
    const size_t n = strlen(LEARN);
    bool has_learn = false;

    *out = NULL;
    if (strcmp(patterns, LEARN) == 0)
        return 0;
    for (const char *p = patterns; p; p = strchr(p, ';')) {
        p += *p == ';';
        has_learn = has_learn || (strncmp(p, LEARN, n) == 0 && (p[n] == ';' || !p[n]));
    }
    if (has_learn)
        return ws_error_set(err, EINVAL,
                            "'" LEARN "' stands alone: write it without patterns, which say what is needed "
                            "before anything is read");
    return ws_need_parse(patterns, out, err);
}

int ws_needs_check(const char *text, struct ws_error *err)
{
    char model[WS_MAX_NAME + 1];
    struct ws_need *need = NULL;
    const char *patterns;
    int rc = split(text, model, &patterns, err);

    if (rc == 0)
        rc = parse(patterns, &need, err);
    ws_need_free(need);
    return rc;
}

int ws_needs_add(struct ws_store *s, const char *text, struct ws_error *err)
{
    char model[WS_MAX_NAME + 1];
    const char *patterns;
    int rc = split(text, model, &patterns, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < s->n_needs; i++)
        if (strcmp(s->needs[i].model ? s->needs[i].model : "", model) == 0)
            return ws_error_set(err, EEXIST,
                                "need= says twice what is needed of %s: write all patterns in one",
                                model[0] ? model : "all models");
    if (s->n_needs == WS_MAX_NEEDS)
        return ws_error_set(err, E2BIG, "there may be %d", WS_MAX_NEEDS);
    struct ws_store_need *n = &s->needs[s->n_needs];
    rc = parse(patterns, &n->need, err);
    if (rc < 0)
        return rc;
    s->n_needs++;
    if (model[0] && !(n->model = strdup(model)))
        return ws_error_set(err, ENOMEM, "no memory for what is needed of %s", model);
    return 0;
}

void ws_needs_free(struct ws_store *s)
{
    for (size_t i = 0; i < s->n_needs; i++) {
        free(s->needs[i].model);
        ws_need_free(s->needs[i].need);
    }
}

static const struct ws_store_need *find(const struct ws_store *s, const char *model)
{
    const struct ws_store_need *of_all = NULL;

    if (ws_name_is_view(model, NULL, NULL))
        return NULL;
    for (size_t i = 0; i < s->n_needs; i++) {
        if (s->needs[i].model && strcmp(s->needs[i].model, model) == 0)
            return &s->needs[i];
        if (!s->needs[i].model)
            of_all = &s->needs[i];
    }
    return of_all;
}

const struct ws_need *ws_needs_find(const struct ws_store *s, const char *model)
{
    const struct ws_store_need *n = find(s, model);

    return n ? n->need : NULL;
}

bool ws_needs_learns(const struct ws_store *s, const char *model)
{
    const struct ws_store_need *n = find(s, model);

    return n && !n->need;
}

bool ws_store_learns(const struct ws_store *s)
{
    bool learns = false;

    for (size_t i = 0; i < s->n_needs; i++)
        learns = learns || !s->needs[i].need;
    return learns;
}

bool ws_version_leaves_out(struct ws_version *v, const char *name, bool is_tensor, struct ws_error *why)
{
    struct ws_node_part_map *map = NULL;
    bool has_file = false;

    pthread_mutex_lock(&v->store->lock);
    const struct ws_version *part = v->model->need ? ws_node_parts_shown(v, 0) : NULL;
    if (part && is_tensor)
        map = ws_node_part_map_get(v->parts->map);
    else if (part)
        has_file = ws_manifest_find(atomic_load(&part->manifest), name);
    pthread_mutex_unlock(&v->store->lock);
    const bool leaves = map ? ws_subset_leaves_out(map, name) : has_file;
    ws_node_part_map_put(map);
    if (leaves)
        ws_error_set(
            why, ENOENT,
            "%s/%lu has the %s %s at its source, and it is not in what this mount needs of it: need=%.400s",
            v->model->name, v->number, is_tensor ? "tensor" : "file", name, ws_need_text(v->model->need));
    return leaves;
}

const char *ws_store_need_text(const struct ws_store *s, const char *model)
{
    const struct ws_store_need *n = find(s, model);

    return !n ? "" : n->need ? ws_need_text(n->need) : LEARN;
}

const char *ws_model_need_text(const struct ws_model *m)
{
    return m->need ? ws_need_text(m->need) : NULL;
}

int ws_version_compare_need(struct ws_version *v, const char *had, size_t *n, char some[WS_MAX_NAME + 1],
                            struct ws_error *err)
{
    struct ws_node_part_map *map = NULL;
    struct ws_need *need = NULL;
    const char *tensor = NULL;
    int rc = had[0] ? ws_need_parse(had, &need, err) : 0;

    *n = 0;
    pthread_mutex_lock(&v->store->lock);
    if (rc == 0 && v->model->need && v->parts)
        map = ws_node_part_map_get(v->parts->map);
    pthread_mutex_unlock(&v->store->lock);
    if (map)
        rc = ws_subset_compare(map, need, n, &tensor, err);
    snprintf(some, WS_MAX_NAME + 1, "%s", tensor ? tensor : "");
    ws_node_part_map_put(map);
    ws_need_free(need);
    return rc;
}
