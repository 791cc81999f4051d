#include "fs/switch/adapter_gate.h"
#include "backends/engine/adapter_config.h"
#include "fs/switch/adapter_base.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What an adapter is: its two files, and no weights beside them. */
static bool looks_like_adapter(const struct ws_manifest *m)
{
    size_t weights = 0;
    for (size_t i = 0; i < m->n_files; i++)
        weights += m->files[i].header_bytes > 0;
    return weights == 1 && ws_manifest_find(m, WS_ADAPTER_CONFIG_NAME) &&
           ws_manifest_find(m, WS_ADAPTER_WEIGHTS_NAME);
}

/* --- who is to serve it --- */

struct server {
    const char *kind;
    unsigned max_rank;
    char engine[WS_MAX_NAME + 1], base[WS_MAX_NAME + 1]; /* base: the model of its target */
};

static bool is_same(const struct server *a, const struct server *b)
{
    return strcmp(a->kind, b->kind) == 0 && a->max_rank == b->max_rank && strcmp(a->base, b->base) == 0;
}

/* One engine of each kind, limit and base. malloc'ed; NULL: no memory. */
static struct server *list_servers(struct ws_control *c, const char *model, size_t *n)
{
    size_t room = 1;
    *n = 0;
    pthread_mutex_lock(&c->lock);
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, model, &at);)
        room++;
    struct server *all = calloc(room, sizeof(*all));
    for (struct ws_engine_at at = {0}; all && ws_engine_next_of(c, model, &at);) {
        struct server *s = &all[*n];
        size_t same = 0;
        s->kind = at.engine->ops->kind;
        s->max_rank = at.engine->facts.known ? at.engine->facts.max_adapter_rank : 0;
        snprintf(s->engine, sizeof(s->engine), "%s", at.engine->name);
        snprintf(s->base, sizeof(s->base), "%s", at.controller->name);
        while (same < *n && !is_same(&all[same], s))
            same++;
        *n += same == *n;
    }
    pthread_mutex_unlock(&c->lock);
    return all;
}

/* --- what it says and holds --- */

static int check_config(struct ws_version *v, const struct ws_manifest *m, const struct server *s,
                        struct ws_error *err)
{
    const struct ws_manifest_file *f = ws_manifest_find(m, WS_ADAPTER_CONFIG_NAME);
    struct ws_region *r = ws_version_region(v, (size_t)(f - m->files));
    const struct ws_adapter_server server = {.kind = s->kind, .max_rank = s->max_rank};
    return ws_adapter_check(r ? (const char *)ws_region_data(r) : "", r ? f->size_bytes : 0, &server, NULL,
                            err);
}

/* The current version of the base: what engines serve is of its layout. 0 too where none is here, or only what this mount needs
 * of it: what cannot be told is left to the engine. */
static int check_base(struct ws_control *c, struct ws_version *v, const struct ws_manifest *m,
                      const char *base, struct ws_error *err)
{
    const struct ws_safetensors *all[WS_MAX_FILES];
    size_t n = 0;
    int rc = 0;
    const struct ws_manifest_file *f = ws_manifest_find(m, WS_ADAPTER_WEIGHTS_NAME);
    const struct ws_safetensors *adapter = ws_version_header(v, (size_t)(f - m->files), err);
    if (!adapter)
        return -err->code;
    struct ws_model *model = ws_store_find(c->store, base);
    struct ws_version *current = model ? ws_model_current(model) : NULL;
    const struct ws_manifest *of =
        current && ws_version_is_complete(current) ? ws_version_manifest(current, NULL) : NULL;
    bool is_whole = of && !ws_model_need_text(model);
    for (size_t i = 0; of && i < of->n_files && n < WS_MAX_FILES; i++) {
        const struct ws_safetensors *st =
            of->files[i].header_bytes ? ws_version_header(current, i, NULL) : NULL;
        if (st)
            all[n++] = st;
        is_whole = is_whole && (st || !of->files[i].header_bytes);
    }
    rc = ws_adapter_base_check(adapter, all, n, is_whole, err);
    if (current)
        ws_version_put(current);
    if (model)
        ws_model_put(model);
    return rc;
}

static int check_adapter(struct ws_control *c, const struct ws_controller *ctl, struct ws_version *v,
                         const struct ws_manifest *m, struct ws_error *err)
{
    const uint64_t number = ws_version_number(v);
    size_t n = 0;
    if (!looks_like_adapter(m))
        return ws_error_set(err, EINVAL,
                            "%s/%" PRIu64
                            " is no adapter, and engines take versions of %s as such (adapters=): one has "
                            "%s and %s, as PEFT's save_pretrained writes them",
                            ctl->name, number, ctl->name, WS_ADAPTER_CONFIG_NAME, WS_ADAPTER_WEIGHTS_NAME);
    if (!ws_version_is_complete(v))
        return ws_error_set(err, ENOENT, "%s/%" PRIu64 " is not here: pull it first", ctl->name, number);
    if (ws_model_has_one_copy(ws_version_model(v)))
        return ws_error_set(
            err, EINVAL,
            "memory of this mount holds one version of %s, and engines keep several adapters: mount with "
            "copies=2 or copies=auto",
            ctl->name);
    struct server *all = list_servers(c, ctl->name, &n);
    int rc = all ? 0 : ws_error_set(err, ENOMEM, "no memory for a list of engines");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = check_config(v, m, &all[i], err);
        if (rc == 0)
            rc = check_base(c, v, m, all[i].base, err);
        if (rc < 0)
            rc = ws_error_prefix(
                err, "%s/%" PRIu64 " is no adapter for engine %.100s of %.100s, and none was told", ctl->name,
                number, all[i].engine, all[i].base);
    }
    free(all);
    return rc;
}

int ws_adapter_gate_check(struct ws_control *c, const struct ws_controller *ctl, struct ws_version *v,
                          bool *is_adapter, struct ws_error *err)
{
    const struct ws_manifest *m = ws_version_manifest(v, err);
    *is_adapter = false;
    if (!m)
        return -err->code;
    const bool as_target = ws_engine_has_role(c, ctl->name, WS_MEMBER_TARGET);
    const bool as_draft = ws_engine_has_role(c, ctl->name, WS_MEMBER_DRAFT);
    if ((as_target || as_draft) && looks_like_adapter(m))
        return ws_error_set(err, EINVAL,
                            "%s/%" PRIu64
                            " is an adapter, and engines take versions of %s as %s: add it to the engines of "
                            "its base, as in engine add NAME KIND URL adapters=%s",
                            ctl->name, ws_version_number(v), ctl->name,
                            as_target ? "all of their weights" : "their draft model (draft=)", ctl->name);
    if (!ws_engine_has_role(c, ctl->name, WS_MEMBER_ADAPTER))
        return 0;
    *is_adapter = !as_target && !as_draft;
    return check_adapter(c, ctl, v, m, err);
}
