#include "fs/fuse/names.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <errno.h>
#include <string.h>

#define FILE_MODE 0644 /* as frameworks' own; folders get 0755 with it */

/* What the root has besides. */
static bool is_taken(const struct ws_names *n)
{
    static const char *const taken[] = {"ctl",    "status",  "events",   "metrics", "last_error",
                                        "latest", "current", "previous", ".regions"};
    uint64_t number;
    bool is_taken = ws_pattern_match(&n->pattern, n->model, &number);

    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        is_taken = is_taken || ws_pattern_match(&n->pattern, taken[i], &number);
    return is_taken;
}

int ws_names_init(struct ws_names *n, struct ws_mount_options *o, struct ws_error *err)
{
    int rc;

    if (!o->root)
        return o->names ? ws_error_set(err, EINVAL,
                                       "the mount option names=%.100s says how the versions of one model are "
                                       "called: add root=MODEL",
                                       o->names)
                        : 0;
    if (!ws_name_is_model(o->root))
        return ws_error_set(err, EINVAL, "the mount option root takes a model, not '%.100s': %s", o->root,
                            WS_MODEL_NAME_RULE);
    rc = ws_pattern_parse(o->names ? o->names : "{N}", o->root, &n->pattern, err);
    if (rc < 0)
        return rc;
    n->model = o->root;
    n->is_written = o->names;
    if (is_taken(n))
        return ws_error_set(err, EINVAL,
                            "versions cannot be called %.100s: the mount has something of that name; "
                            "wsync(7), FRAMEWORKS' NAMES, lists what",
                            o->names);
    if (o->names && !o->has_mode && !o->group)
        o->mode = FILE_MODE;
    return 0;
}

struct ws_version *ws_names_find(const struct ws_names *n, struct ws_store *store, const char *name)
{
    uint64_t number = 0;
    struct ws_model *m =
        n->model && ws_pattern_match(&n->pattern, name, &number) ? ws_store_find(store, n->model) : NULL;
    struct ws_version *v = NULL;

    if (!m)
        return NULL;
    v = n->pattern.is_constant ? ws_model_latest(m) : ws_version_at(m, number, NULL);
    ws_model_put(m);
    return v;
}

/* Its number, where it is of the live run: a superseded one is called N@RUN, which no framework could read. */
static bool number_of(struct ws_version *v, uint64_t *number)
{
    char name[WS_MAX_NAME + 1];

    ws_version_name(v, name);
    return name[0] && ws_text_u64(name, number) == 0;
}

bool ws_names_of(const struct ws_names *n, struct ws_version *v, char out[WS_MAX_NAME + 1])
{
    uint64_t number = 0;

    if (!n->model || strcmp(ws_model_name(ws_version_model(v)), n->model) != 0)
        return false;
    if (!n->pattern.is_constant && !number_of(v, &number))
        return false;
    ws_pattern_name(&n->pattern, number, out);
    return true;
}

struct each {
    const struct ws_names *names;
    void (*visit)(void *arg, const char *name, struct ws_version *v);
    void *arg;
};

static void visit_version(void *arg, struct ws_version *v)
{
    const struct each *e = arg;
    char name[WS_MAX_NAME + 1];

    if (ws_names_of(e->names, v, name))
        e->visit(e->arg, name, v);
}

void ws_names_each(const struct ws_names *n, struct ws_store *store,
                   void (*visit)(void *arg, const char *name, struct ws_version *v), void *arg)
{
    struct each e = {n, visit, arg};
    struct ws_model *m = ws_store_find(store, n->model);
    struct ws_version *newest = m && n->pattern.is_constant ? ws_model_latest(m) : NULL;

    if (newest) {
        visit_version(&e, newest);
        ws_version_put(newest);
    } else if (m && !n->pattern.is_constant) {
        ws_model_each(m, visit_version, &e);
    }
    if (m)
        ws_model_put(m);
}
