#include "transports/dir/archive_listing.h"
#include "transports/base/below.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include <errno.h>
#include <stdlib.h>

void ws_archive_path(char out[WS_ARCHIVE_PATH_BYTES], const char *root, const char *model, uint64_t version,
                     const char *what)
{
    int n = snprintf(out, WS_ARCHIVE_PATH_BYTES, "%s/v1", root);
    if (model)
        n += snprintf(out + n, WS_ARCHIVE_PATH_BYTES - (size_t)n, "/%s", model);
    if (version != UINT64_MAX)
        n += snprintf(out + n, WS_ARCHIVE_PATH_BYTES - (size_t)n, "/%" PRIu64, version);
    if (what)
        snprintf(out + n, WS_ARCHIVE_PATH_BYTES - (size_t)n, "/%s", what);
}

/* --- reading --- */

static bool read_mark(const json_t *object, const char *number, const char *lineage, struct ws_mark *out)
{
    const char *run = json_string_value(json_object_get(object, lineage));
    if (!run || !ws_run_is_safe(run) || ws_number_read(json_object_get(object, number), &out->version) < 0)
        return false;
    *out = ws_mark_of(out->version, run);
    return true;
}

static bool read_entry(const json_t *json, struct ws_archive_entry *e)
{
    const char *digest = json_string_value(json_object_get(json, "digest"));
    *e = (struct ws_archive_entry){0};
    if (!read_mark(json, "version", "run", &e->mark) ||
        ws_number_read(json_object_get(json, "bytes"), &e->bytes) < 0 ||
        ws_number_read(json_object_get(json, "created_ns"), &e->created_ns) < 0 || !digest ||
        strlen(digest) != 32)
        return false;
    memcpy(e->digest, digest, sizeof(e->digest));
    return !json_is_false(json_object_get(json, "anchor")) || read_mark(json, "base", "base_run", &e->base);
}

static int damaged(const char *path, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG, "%s is damaged: it is no listing of an archive", path);
}

static int take(struct ws_archive_listing *l, const json_t *listing, const char *path, struct ws_error *err)
{
    const json_t *models = json_object_get(listing, "models"), *model, *version;
    size_t i, k;
    if (ws_number_read(json_object_get(listing, "seq"), &l->seq) < 0 || !json_is_array(models))
        return damaged(path, err);
    json_array_foreach(models, i, model)
    {
        const char *name = json_string_value(json_object_get(model, "name"));
        if (!name || !ws_name_is_offered(name) || !json_is_array(json_object_get(model, "versions")))
            return damaged(path, err);
        json_array_foreach(json_object_get(model, "versions"), k, version)
        {
            struct ws_archive_entry e;
            if (!read_entry(version, &e) || ws_archive_entry(l, name, e.mark.version, NULL))
                return damaged(path, err);
            int rc = ws_archive_listing_add(l, name, &e, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int ws_archive_listing_read(const char *root, const char *below, struct ws_archive_listing *out,
                            struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    size_t n;
    *out = (struct ws_archive_listing){0};
    ws_archive_path(path, root, NULL, UINT64_MAX, "models");
    int rc = ws_below_read(below, path, WS_MAX_REPLY_BYTES, &text, &n, err);
    if (rc < 0)
        return rc;
    json_t *listing = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    rc = take(out, listing, path, err);
    json_decref(listing);
    if (rc < 0)
        ws_archive_listing_free(out);
    return rc;
}

void ws_archive_listing_free(struct ws_archive_listing *l)
{
    for (size_t i = 0; i < l->n_models; i++)
        free(l->models[i].entries);
    free(l->models);
    *l = (struct ws_archive_listing){0};
}

/* --- writing --- */

static json_t *entry_json(const struct ws_archive_entry *e)
{
    json_t *out = json_pack("{s:I,s:s,s:s,s:I,s:I,s:b}", "version", (json_int_t)e->mark.version, "run",
                            e->mark.run, "digest", e->digest, "bytes", (json_int_t)e->bytes, "created_ns",
                            (json_int_t)e->created_ns, "anchor", (int)ws_archive_is_anchor(e));
    if (out && !ws_archive_is_anchor(e)) {
        json_object_set_new(out, "base", json_integer((json_int_t)e->base.version));
        json_object_set_new(out, "base_run", json_string(e->base.run));
    }
    return out;
}

/* The lineage of what was committed last is the live one. */
static json_t *model_json(const struct ws_archive_model *m)
{
    const struct ws_archive_entry *newest = NULL;
    json_t *versions = json_array();
    for (size_t i = 0; i < m->n; i++) {
        const struct ws_archive_entry *e = &m->entries[i];
        json_array_append_new(versions, entry_json(e));
        if (strcmp(e->mark.run, m->entries[m->n - 1].mark.run) == 0 &&
            (!newest || e->mark.version > newest->mark.version))
            newest = e;
    }
    return json_pack("{s:s,s:I,s:s,s:s,s:o}", "name", m->name, "newest",
                     newest ? (json_int_t)newest->mark.version : (json_int_t)0, "run",
                     newest ? newest->mark.run : "", "digest", newest ? newest->digest : "", "versions",
                     versions);
}

json_t *ws_archive_listing_json(const struct ws_archive_listing *l, const char *model)
{
    json_t *models = json_array();
    for (size_t i = 0; i < l->n_models; i++)
        if (l->models[i].n > 0 && (!model || strcmp(model, l->models[i].name) == 0))
            json_array_append_new(models, model_json(&l->models[i]));
    return json_pack("{s:I,s:b,s:o}", "seq", (json_int_t)l->seq, "static", 1, "models", models);
}

/* --- finding and changing --- */

struct ws_archive_model *ws_archive_model(const struct ws_archive_listing *l, const char *name)
{
    for (size_t i = 0; i < l->n_models; i++)
        if (strcmp(l->models[i].name, name) == 0)
            return &l->models[i];
    return NULL;
}

struct ws_archive_entry *ws_archive_entry(const struct ws_archive_listing *l, const char *model,
                                          uint64_t version, const char *run)
{
    const struct ws_archive_model *m = ws_archive_model(l, model);
    for (size_t i = 0; m && i < m->n; i++)
        if (m->entries[i].mark.version == version &&
            (!run || !*run || strcmp(m->entries[i].mark.run, run) == 0))
            return &m->entries[i];
    return NULL;
}

static struct ws_archive_model *add_model(struct ws_archive_listing *l, const char *name)
{
    size_t at = l->n_models;
    struct ws_archive_model *more = at < WS_MAX_MODELS ? realloc(l->models, (at + 1) * sizeof(*more)) : NULL;
    if (!more)
        return NULL;
    l->models = more;
    while (at > 0 && strcmp(more[at - 1].name, name) > 0)
        at--;
    memmove(&more[at + 1], &more[at], (l->n_models++ - at) * sizeof(*more));
    more[at] = (struct ws_archive_model){0};
    snprintf(more[at].name, sizeof(more[at].name), "%s", name);
    return &more[at];
}

int ws_archive_listing_add(struct ws_archive_listing *l, const char *model, const struct ws_archive_entry *e,
                           struct ws_error *err)
{
    struct ws_archive_model *m = ws_archive_model(l, model);
    if (!m)
        m = add_model(l, model);
    if (!m || m->n >= WS_MAX_VERSIONS)
        return ws_error_set(err, E2BIG, "an archive has at most %d models with %d versions each",
                            WS_MAX_MODELS, WS_MAX_VERSIONS);
    struct ws_archive_entry *more = realloc(m->entries, (m->n + 1) * sizeof(*more));
    if (!more)
        return ws_error_set(err, ENOMEM, "no memory for a listing");
    size_t at = m->n;
    m->entries = more;
    while (at > 0 && more[at - 1].created_ns > e->created_ns)
        at--;
    memmove(&more[at + 1], &more[at], (m->n++ - at) * sizeof(*more));
    more[at] = *e;
    return 0;
}

void ws_archive_listing_remove(struct ws_archive_model *m, size_t i)
{
    m->n--;
    memmove(&m->entries[i], &m->entries[i + 1], (m->n - i) * sizeof(m->entries[0]));
}
