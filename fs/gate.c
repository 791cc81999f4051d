#include "fs/gate.h"
#include "transports/folder.h"
#include "transports/layout.h"
#include "transports/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct headers {
    struct ws_safetensors *all[WS_MAX_FILES]; /* borrowed */
    size_t n;
};

static void headers_of_version(struct ws_version *v, struct headers *out)
{
    struct ws_error err;
    const struct ws_manifest *m = ws_version_manifest(v, &err);
    out->n = 0;
    for (size_t i = 0; m && i < m->n_files && out->n < WS_MAX_FILES; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, &err) : NULL;
        if (st)
            out->all[out->n++] = (struct ws_safetensors *)(uintptr_t)st;
    }
}

static void headers_of_folder(const struct ws_folder *f, struct headers *out)
{
    out->n = 0;
    for (size_t i = 0; i < f->n_files && out->n < WS_MAX_FILES; i++)
        if (f->files[i].st)
            out->all[out->n++] = f->files[i].st;
}

/* what: "the served version 3", "what engine e1 was started on, /models/base". */
static int compare(struct ws_model *model, struct ws_version *version, const struct headers *want,
                   const char *what, struct ws_error *err)
{
    char *report = NULL;
    struct headers *have = malloc(sizeof(*have));
    if (!have)
        return ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
    headers_of_version(version, have);
    int rc = want->n > 0 ? ws_layout_compare(have->all, have->n, want->all, want->n, &report) : 0;
    if (rc == -EPROTO)
        ws_error_set(err, EPROTO,
                     "the layout of %s/%" PRIu64
                     " differs from %s, no engine was told; add force-layout to switch "
                     "all the same: %.700s",
                     ws_model_name(model), ws_version_number(version), what, report ? report : "");
    else if (rc < 0)
        ws_error_set(err, -rc, "the layouts could not be compared");
    if (rc == -EPROTO && err)
        for (char *p = err->text; *p; p++)
            *p = *p == '\n' ? ';' : *p;
    free(report);
    free(have);
    return rc;
}

static int compare_version(struct ws_model *model, struct ws_version *version, struct ws_version *served,
                           const char *what, struct ws_error *err)
{
    char text[WS_MAX_NAME + 64];
    struct headers *want = malloc(sizeof(*want));
    if (!want)
        return ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
    headers_of_version(served, want);
    snprintf(text, sizeof(text), "%s %" PRIu64, what, ws_version_number(served));
    int rc = compare(model, version, want, text, err);
    free(want);
    return rc;
}

/* --- what an engine was started on --- */

struct start {
    char path[4096], prefix[4096], engine[WS_MAX_NAME + 1];
};

/* The version of this mount that a path of an engine names; NULL: the path is another. *ours: it is below the
 * mount, where we must not read ourselves. */
static struct ws_version *version_at(const struct start *s, struct ws_model *model, bool *ours)
{
    size_t n = strlen(s->prefix), k = strlen(ws_model_name(model));
    const char *rest = s->path + n;
    char name[WS_MAX_NAME + 1];
    struct ws_error err;
    *ours = strncmp(s->path, s->prefix, n) == 0 && (*rest == '/' || !*rest);
    if (!*ours || *rest++ != '/' || strncmp(rest, ws_model_name(model), k) != 0 || rest[k] != '/')
        return NULL;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(rest + k + 1, "/"), rest + k + 1);
    return ws_version_find(model, name, &err);
}

static int compare_start(const struct start *s, struct ws_model *model, struct ws_version *version,
                         bool *compared, struct ws_error *err)
{
    bool ours;
    char what[sizeof(s->path) + sizeof(s->engine) + 64];
    struct ws_folder *folder = NULL;
    struct ws_version *served = version_at(s, model, &ours);
    int rc = 0;
    if (served && served != version) {
        snprintf(what, sizeof(what), "what engine %s serves, version", s->engine);
        rc = compare_version(model, version, served, what, err);
        *compared = true;
    } else if (served) {
        *compared = true; /* the same again */
    } else if (!ours && s->path[0] == '/' && ws_folder_open(s->path, &folder, NULL) == 0) {
        struct headers *want = malloc(sizeof(*want));
        if (want)
            headers_of_folder(folder, want);
        snprintf(what, sizeof(what), "what engine %s serves, %s", s->engine, s->path);
        rc = want ? compare(model, version, want, what, err)
                  : ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
        *compared = true;
        free(want);
    }
    ws_folder_free(folder);
    if (served)
        ws_version_put(served);
    return rc;
}

static struct start *starts_of(struct ws_control *c, const struct ws_desk *d, size_t *n)
{
    *n = 0;
    pthread_mutex_lock(&c->lock);
    struct start *all = calloc(d->n_engines + 1, sizeof(*all));
    for (const struct ws_engine *e = d->engines; all && e; e = e->next) {
        struct start *s = &all[(*n)++];
        snprintf(s->path, sizeof(s->path), "%s", e->condition.path);
        snprintf(s->prefix, sizeof(s->prefix), "%s", e->prefix ? e->prefix : c->options.mountpoint);
        snprintf(s->engine, sizeof(s->engine), "%s", e->name);
    }
    pthread_mutex_unlock(&c->lock);
    return all;
}

static int gate_first(struct ws_control *c, struct ws_desk *d, struct ws_model *model,
                      struct ws_version *version, struct ws_error *err)
{
    size_t n;
    bool compared = false;
    struct start *all = starts_of(c, d, &n);
    int rc = all ? 0 : ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = compare_start(&all[i], model, version, &compared, err);
    free(all);
    if (rc < 0 || compared || n == 0)
        return rc;
    struct ws_version *below = ws_version_below(version);
    if (below) {
        rc = compare_version(model, version, below, "the version below it,", err);
        ws_version_keep(below, -1);
        ws_version_put(below);
    } else {
        ws_log(WS_LOG_WARN, "gate", "nothing to compare a first version with model=%s version=%" PRIu64,
               ws_model_name(model), ws_version_number(version));
    }
    return rc;
}

int ws_gate(struct ws_control *c, struct ws_desk *d, struct ws_model *model, struct ws_version *version,
            struct ws_error *err)
{
    struct ws_version *served = ws_model_current(model);
    if (!served)
        return gate_first(c, d, model, version, err);
    int rc = compare_version(model, version, served, "the served version", err);
    ws_version_put(served);
    return rc;
}
