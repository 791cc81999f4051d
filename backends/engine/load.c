#include "backends/engine/load.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A label: of a load that has not been confirmed, though the engine had the label of that version. */
#define LOADING "loading "

const char *ws_engine_labelled_version(const char *label)
{
    return strncmp(label, LOADING, strlen(LOADING)) == 0 ? label + strlen(LOADING) : label;
}

static bool names(const struct ws_engine_serving *now, const char *version)
{
    return now->version[0] && strcmp(now->version, version) == 0;
}

int ws_engine_settle(const struct ws_engine_ops *ops, const struct ws_engine_target *t,
                     struct ws_engine_serving *out, struct ws_error *err)
{
    int rc = ops->drain ? ops->drain(t, err) : 0;
    return rc == 0 ? ops->serving(t, out, err) : rc;
}

/* Prepares a load. *changes: afterwards the engine reports the version only if this load was done. *renamed:
 * until then it reports another version, or may. */
static int get_ready(const struct ws_engine_ops *ops, const struct ws_engine_target *target,
                     const char *version, const char *known, bool *changes, bool *renamed,
                     struct ws_error *err)
{
    struct ws_engine_target named = *target, *t = &named;
    struct ws_engine_serving before;
    named.only_named = true;
    char other[sizeof(before.version)];
    *changes = true;
    *renamed = false;
    if (known && strcmp(known, version) != 0)
        return 0;
    int rc = ws_engine_settle(ops, t, &before, err);
    if (rc != 0 || !names(&before, version))
        return rc;
    snprintf(other, sizeof(other), LOADING "%s", version);
    rc = ops->label ? ops->label(t, other, err) : -EPROTO;
    *renamed = rc != -EPROTO;
    if (rc == 0)
        rc = ops->serving(t, &before, err);
    *changes = rc == 0 && !names(&before, version); /* of several workers only one got the label */
    return rc == -EPROTO ? 0 : rc;
}

/* The engine never got the load: it holds what it held, and should report that again. If the label does not
 * arrive, it goes on to report "loading ...", which is no version. */
static void restore_label(const struct ws_engine_ops *ops, const struct ws_engine_target *target,
                          const char *version)
{
    struct ws_engine_target t = *target;
    memset(t.cancel, 0, sizeof(t.cancel));
    (void)ops->label(&t, version, NULL);
}

/* The load's reply was lost: asks the engine what it serves. */
static int query_result(const struct ws_engine_ops *ops, const struct ws_engine_target *target,
                        const char *path, const char *version, int rc)
{
    struct ws_engine_target t = *target;
    struct ws_engine_serving now;
    memset(t.cancel, 0, sizeof(t.cancel)); /* the load was sent, so a cancel comes too late */
    t.only_named = true;
    if (ops->serving(&t, &now, NULL) == 0 && names(&now, version) &&
        (!now.path[0] || strcmp(now.path, path) == 0))
        rc = 0;
    return rc;
}

int ws_engine_load(const struct ws_engine_ops *ops, const struct ws_engine_target *t, const char *path,
                   const char *version, const char *before, bool *sent, struct ws_error *err)
{
    const bool uncertain = *sent;
    bool changes, renamed;
    *sent = false;
    int rc = get_ready(ops, t, version, before, &changes, &renamed, err);
    if (rc == 0) {
        rc = ops->load(t, path, version, err);
        *sent = rc != -EHOSTUNREACH && rc != -EAGAIN;
    }
    if (!*sent && renamed && !uncertain)
        restore_label(ops, t, version);
    if (!*sent)
        return rc;
    if (changes && (rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -ECANCELED))
        rc = query_result(ops, t, path, version, rc);
    return rc;
}

int ws_engine_confirm(const struct ws_engine_ops *ops, const struct ws_engine_target *target,
                      const char *version, struct ws_error *err)
{
    struct ws_engine_target patient = *target, *t = &patient; /* requests that waited keep it busy */
    struct ws_engine_serving now;
    t->short_ms = t->timeout_ms;
    t->only_named = true;
    int rc = ops->serving(t, &now, err);
    if (rc == 0 && now.version[0] && !names(&now, version))
        rc = ws_error_set(err, EREMOTEIO,
                          "%s was sent version %s and reports '%s' after the resume: it was restarted, or "
                          "another controller drives it too",
                          t->url, version, now.version);
    return rc;
}
