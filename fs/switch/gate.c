#include "fs/switch/gate.h"
#include "backends/engine/cpu_reload.h"
#include "fs/switch/needed.h"
#include "transports/base/log.h"
#include "transports/format/folder.h"
#include "transports/format/layout.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct headers {
    struct ws_safetensors *all[WS_MAX_FILES]; /* borrowed */
    size_t n;
};

/* All of them: of a version that is here in part only a comparison would say nothing. */
static int headers_of_version(struct ws_version *v, struct headers *out, struct ws_error *err)
{
    const struct ws_manifest *m = ws_version_manifest(v, err);
    out->n = 0;
    if (!m)
        return -err->code;
    for (size_t i = 0; i < m->n_files && out->n < WS_MAX_FILES; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, err) : NULL;
        if (st)
            out->all[out->n++] = (struct ws_safetensors *)(uintptr_t)st;
        else if (m->files[i].header_bytes)
            return -err->code;
    }
    return 0;
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
    struct ws_error why;
    int rc = headers_of_version(version, have, &why);
    if (rc < 0) {
        free(have);
        return ws_error_set(err, rc == -EAGAIN ? ENOENT : -rc,
                            "the layout of %s/%" PRIu64 " is not known here: %s; pull it first",
                            ws_model_name(model), ws_version_number(version), why.text);
    }
    rc = want->n > 0 ? ws_layout_compare(have->all, have->n, want->all, want->n, &report) : 0;
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

/* The served version may have been dropped or evicted, and the rollback would need it: it is fetched again,
 * while the new version stays. */
static int headers_of_served(const struct ws_gate *g, struct ws_version *served, struct headers *out,
                             struct ws_error *err)
{
    int rc = headers_of_version(served, out, err);
    if (rc == 0 || !g->fetch)
        return rc;
    ws_version_retain(g->version, 1);
    rc = g->fetch(g->arg, served, err);
    ws_version_retain(g->version, -1);
    return rc < 0 ? rc : headers_of_version(served, out, err);
}

static int compare_version(const struct ws_gate *g, struct ws_version *served, const char *what,
                           struct ws_error *err)
{
    char text[WS_MAX_NAME + 64];
    struct ws_error why;
    struct headers *want = malloc(sizeof(*want));
    if (!want)
        return ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
    snprintf(text, sizeof(text), "%s %" PRIu64, what, ws_version_number(served));
    int rc = headers_of_served(g, served, want, &why);
    if (rc == 0)
        rc = compare(g->model, g->version, want, text, err);
    else
        rc = ws_error_set(err, rc == -EAGAIN ? ENOENT : -rc,
                          "the layout of %s/%" PRIu64 " cannot be compared with %s, no engine was told; "
                          "add force-layout to switch all the same: %s",
                          ws_model_name(g->model), ws_version_number(g->version), text, why.text);
    free(want);
    return rc;
}

/* --- what an engine was started on --- */

struct start {
    char path[4096], prefix[4096], engine[WS_MAX_NAME + 1];
};

/* The version of this mount that a path of an engine names, of whichever model: a view (actor@fp8-block128) is not
 * mixed with what it is made of. NULL: the path is another. *ours: it is below the mount, where we must not read
 * ourselves. */
static struct ws_version *version_at(const struct start *s, struct ws_store *store, bool *ours)
{
    const size_t n = strlen(s->prefix);
    const char *rest = s->path + n;
    char model[WS_MAX_NAME + 1], name[WS_MAX_NAME + 1];
    struct ws_error err;
    *ours = strncmp(s->path, s->prefix, n) == 0 && (*rest == '/' || !*rest);
    if (!*ours || *rest++ != '/')
        return NULL;
    const size_t k = strcspn(rest, "/");
    snprintf(model, sizeof(model), "%.*s", (int)k, rest);
    struct ws_model *m = rest[k] ? ws_store_find(store, model) : NULL;
    if (!m)
        return NULL;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(rest + k + 1, "/"), rest + k + 1);
    struct ws_version *v = ws_version_find(m, name, &err);
    ws_model_put(m);
    return v;
}

static int compare_start(const struct ws_gate *g, struct ws_store *store, const struct start *s,
                         bool *compared, struct ws_error *err)
{
    bool ours;
    char what[sizeof(s->path) + sizeof(s->engine) + 64];
    struct ws_folder *folder = NULL;
    struct ws_version *served = version_at(s, store, &ours);
    int rc = 0;
    if (served && served != g->version) {
        const bool same = ws_version_model(served) == g->model;
        snprintf(what, sizeof(what), "what engine %s serves, %s%sversion", s->engine,
                 same ? "" : ws_model_name(ws_version_model(served)), same ? "" : " ");
        rc = compare_version(g, served, what, err);
        *compared = rc != -ESTALE;
        rc =
            rc == -ESTALE ? 0 : rc; /* gone here and at the source, as those are that have no name any more */
    } else if (served) {
        *compared = true; /* the same again */
    } else if (!ours && s->path[0] == '/' && ws_folder_open(s->path, &folder, NULL) == 0) {
        struct headers *want = malloc(sizeof(*want));
        if (want)
            headers_of_folder(folder, want);
        snprintf(what, sizeof(what), "what engine %s serves, %s", s->engine, s->path);
        rc = want ? compare(g->model, g->version, want, what, err)
                  : ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
        *compared = want && want->n > 0;
        free(want);
    }
    ws_folder_free(folder);
    if (served)
        ws_version_put(served);
    return rc;
}

static struct start *list_starts(struct ws_control *c, const struct ws_controller *ctl, size_t *n)
{
    *n = 0;
    pthread_mutex_lock(&c->lock);
    struct start *all = calloc(ctl->n_engines + 1, sizeof(*all));
    for (const struct ws_engine *e = ctl->engines; all && e; e = e->next) {
        struct start *s = &all[(*n)++];
        snprintf(s->path, sizeof(s->path), "%s", e->condition.path);
        snprintf(s->prefix, sizeof(s->prefix), "%s", e->prefix ? e->prefix : c->options.mountpoint);
        snprintf(s->engine, sizeof(s->engine), "%s", e->name);
    }
    pthread_mutex_unlock(&c->lock);
    return all;
}

static int check_first(const struct ws_gate *g, struct ws_control *c, const struct ws_controller *ctl,
                       struct ws_error *err)
{
    size_t n;
    bool compared = false;
    struct start *all = list_starts(c, ctl, &n);
    int rc = all ? 0 : ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        bool one = false;
        rc = compare_start(g, c->store, &all[i], &one, err);
        compared |= one;
    }
    free(all);
    if (rc < 0 || compared || n == 0)
        return rc;
    struct ws_version *below = ws_version_below(g->version);
    if (below) {
        rc = compare_version(g, below, "the version below it,", err);
        ws_version_retain(below, -1);
        ws_version_put(below);
    } else {
        ws_log(WS_LOG_WARN, "gate", "nothing to compare a first version with model=%s version=%" PRIu64,
               ws_model_name(g->model), ws_version_number(g->version));
    }
    return rc;
}

int ws_gate_check(const struct ws_gate *g, struct ws_control *c, const struct ws_controller *ctl,
                  struct ws_error *err)
{
    int rc = ws_needed_check(c, ctl, g->model, g->version, err);
    if (rc < 0)
        return rc;
    struct ws_version *served = ws_model_current(g->model);
    if (!served)
        return check_first(g, c, ctl, err);
    rc = served == g->version ? 0 : compare_version(g, served, "the served version", err);
    ws_version_put(served);
    return rc;
}

/* --- what an engine can reload --- */

static bool is_limited(const struct ws_engine_facts *f)
{
    return f->frees_int8_scales || f->leaves_experts;
}

int ws_gate_check_reload(struct ws_version *version, const struct ws_engine_facts *facts, const char *name,
                         struct ws_error *err)
{
    struct headers *all = is_limited(facts) ? malloc(sizeof(*all)) : NULL;
    if (!all)
        return is_limited(facts) ? ws_error_set(err, ENOMEM, "no memory for a version's layout") : 0;
    int rc = headers_of_version(version, all, err);
    if (rc == 0)
        rc = ws_cpu_reload_check(facts, name, all->all, all->n, err);
    free(all);
    return rc;
}

struct limited {
    struct ws_engine_facts facts;
    char name[WS_MAX_NAME + 1];
};

static struct limited *list_limited(struct ws_control *c, const struct ws_controller *ctl, size_t *n)
{
    *n = 0;
    pthread_mutex_lock(&c->lock);
    struct limited *all = calloc(ctl->n_engines + 1, sizeof(*all));
    for (const struct ws_engine *e = ctl->engines; all && e; e = e->next) {
        if (!e->facts.known || !is_limited(&e->facts))
            continue;
        all[*n].facts = e->facts;
        snprintf(all[*n].name, sizeof(all[*n].name), "%s", e->name);
        (*n)++;
    }
    pthread_mutex_unlock(&c->lock);
    return all;
}

int ws_gate_check_reloads(struct ws_version *version, struct ws_control *c, const struct ws_controller *ctl,
                          struct ws_error *err)
{
    size_t n;
    struct limited *all = list_limited(c, ctl, &n);
    int rc = all ? 0 : ws_error_set(err, ENOMEM, "no memory for what engines said");
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = ws_gate_check_reload(version, &all[i].facts, all[i].name, err);
    free(all);
    return rc;
}
