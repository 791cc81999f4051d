#include "backends/engine/load.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool names(const struct ws_engine_serving *now, const char *version)
{
    return now->version[0] && strcmp(now->version, version) == 0;
}

/* *changes: afterwards it names the version only where this load was done. *renamed: until then it names
 * another one, or may. */
static int get_ready(const struct ws_engine_ops *ops, const struct ws_engine_target *t, const char *version,
                     bool *changes, bool *renamed, struct ws_error *err)
{
    struct ws_engine_serving before;
    char other[sizeof(before.version)];
    *changes = true;
    *renamed = false;
    int rc = ops->settle ? ops->settle(t, err) : 0;
    if (rc == 0)
        rc = ops->serving(t, &before, err);
    if (rc != 0 || !names(&before, version))
        return rc;
    snprintf(other, sizeof(other), "loading %s", version);
    rc = ops->label ? ops->label(t, other, err) : -EPROTO;
    *renamed = rc != -EPROTO;
    if (rc == 0)
        rc = ops->serving(t, &before, err);
    *changes = rc == 0 && !names(&before, version); /* of several workers one took the label */
    return rc == -EPROTO ? 0 : rc;
}

/* It never heard of the load: it holds what it held, and says so again. One that cannot be told goes on to
 * say that it is loading, which is no version of anybody's. */
static void name_again(const struct ws_engine_ops *ops, const struct ws_engine_target *target,
                       const char *version)
{
    struct ws_engine_target t = *target;
    memset(t.cancel, 0, sizeof(t.cancel));
    (void)ops->label(&t, version, NULL);
}

/* Its reply was lost. */
static int ask(const struct ws_engine_ops *ops, const struct ws_engine_target *target, const char *path,
               const char *version, int rc)
{
    struct ws_engine_target t = *target;
    struct ws_engine_serving now;
    memset(t.cancel, 0, sizeof(t.cancel)); /* it was told, whoever has lost patience */
    if (ops->serving(&t, &now, NULL) == 0 && names(&now, version) &&
        (!now.path[0] || strcmp(now.path, path) == 0))
        rc = 0;
    return rc;
}

int ws_engine_load(const struct ws_engine_ops *ops, const struct ws_engine_target *t, const char *path,
                   const char *version, bool *told, struct ws_error *err)
{
    const bool doubted = *told;
    bool changes, renamed;
    *told = false;
    int rc = get_ready(ops, t, version, &changes, &renamed, err);
    if (rc == 0) {
        rc = ops->load(t, path, version, err);
        *told = rc != -EHOSTUNREACH && rc != -EAGAIN;
    }
    if (!*told && renamed && !doubted)
        name_again(ops, t, version);
    if (!*told)
        return rc;
    if (changes && (rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -ECANCELED))
        rc = ask(ops, t, path, version, rc);
    return rc;
}

int ws_engine_confirm(const struct ws_engine_ops *ops, const struct ws_engine_target *target,
                      const char *version, struct ws_error *err)
{
    struct ws_engine_target patient = *target, *t = &patient; /* requests that waited keep it busy */
    struct ws_engine_serving now;
    t->short_ms = t->timeout_ms;
    int rc = ops->serving(t, &now, err);
    if (rc == 0 && now.version[0] && !names(&now, version))
        rc = ws_error_set(err, EREMOTEIO,
                          "%s was told version %s and says '%s' after the resume: it was started anew, or "
                          "somebody else drives it too",
                          t->url, version, now.version);
    return rc;
}
