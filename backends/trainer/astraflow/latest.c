#include "backends/trainer/astraflow/latest.h"
#include "transports/base/name.h"
#include <errno.h>

#define TRIES 20 /* the newest may be gone between asking for it and holding it */

int ws_latest_find(const struct ws_latest_scope *t, struct ws_latest *out, struct ws_error *err)
{
    json_t *all, *found = NULL, *m;
    const char *part = NULL;
    size_t i;
    *out = (struct ws_latest){0};
    int rc = t->catalog.ops->models(t->catalog.self, NULL, &all, err);
    if (rc < 0)
        return rc;
    const json_t *models = json_object_get(all, "models");
    json_array_foreach(models, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        char base[WS_MAX_NAME + 1];
        if (name && ws_name_is_node_part(name, base, NULL, NULL)) {
            if (!t->model || strcmp(base, t->model) == 0)
                part = name;
            continue;
        }
        if (name && (t->model ? strcmp(name, t->model) == 0 : !ws_name_is_view(name, NULL, NULL))) {
            if (found)
                rc = ws_error_set(err, EINVAL,
                                  "this agent has several models and was not told which of them is "
                                  "AstraFlow's; start it with --astraflow MODEL=HOST:PORT");
            found = m;
        }
    }
    if (rc == 0 && part && !(found && json_array_size(json_object_get(found, "versions"))))
        rc = ws_error_set(
            err, ENOENT,
            "the trainer spans nodes and this agent has only %s: AstraFlow's receivers are served of a "
            "trainer on one node",
            part);
    if (rc == 0 && !found)
        rc = ws_error_set(err, ENOENT, "no version was published yet");
    if (rc == 0) {
        snprintf(out->model, sizeof(out->model), "%s", json_string_value(json_object_get(found, "name")));
        out->version = ws_version_id_make((uint64_t)json_integer_value(json_object_get(found, "newest")),
                                          json_string_value(json_object_get(found, "run")));
    }
    json_decref(all);
    return rc;
}

int ws_latest_acquire(const struct ws_latest_scope *t, const char *holder, void (*revoked)(void *), void *arg,
                      struct ws_latest *what, struct ws_lease **out, struct ws_error *err)
{
    int rc = -ESTALE;
    for (int i = 0; i < TRIES && rc == -ESTALE; i++) {
        rc = ws_latest_find(t, what, err);
        if (rc == 0)
            rc = t->catalog.ops->lease(t->catalog.self, what->model, what->version.version,
                                       what->version.lineage, holder, revoked, arg, out, err);
    }
    return rc;
}

void ws_latest_release(const struct ws_latest_scope *t, struct ws_lease **lease)
{
    if (*lease)
        t->catalog.ops->release(t->catalog.self, *lease);
    *lease = NULL;
}
