#include "transports/dir/archive_listing.h"
#include "transports/base/json_size.h"
#include "transports/base/name.h"
#include "transports/base/number.h"
#include "transports/protocol/listing.h"
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

static bool read_version_id(const json_t *object, const char *number_key, const char *lineage_key,
                            struct ws_version_id *out)
{
    const char *lineage = json_string_value(json_object_get(object, lineage_key));
    if (!lineage || !ws_lineage_is_safe(lineage) ||
        ws_number_read(json_object_get(object, number_key), &out->version) < 0)
        return false;
    *out = ws_version_id_make(out->version, lineage);
    return true;
}

static bool read_entry(const json_t *json, struct ws_archive_entry *e)
{
    const char *digest = json_string_value(json_object_get(json, "digest"));
    *e = (struct ws_archive_entry){0};
    if (!read_version_id(json, "version", "run", &e->id) ||
        ws_number_read(json_object_get(json, "bytes"), &e->bytes) < 0 ||
        ws_number_read(json_object_get(json, "created_ns"), &e->created_ns) < 0 || !digest ||
        strlen(digest) != 32)
        return false;
    memcpy(e->digest, digest, sizeof(e->digest));
    return !json_is_false(json_object_get(json, "anchor")) ||
           read_version_id(json, "base", "base_run", &e->base);
}

static int damaged(const char *path, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG, "%s is damaged: it is no listing of an archive", path);
}

static int parse(struct ws_archive_listing *l, const json_t *listing, const char *path, struct ws_error *err)
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
            if (!read_entry(version, &e) || ws_archive_listing_find(l, name, e.id.version, NULL))
                return damaged(path, err);
            int rc = ws_archive_listing_add(l, name, &e, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

json_t *ws_archive_json(const char *text, size_t n)
{
    return ws_json_is_modest(text, n) ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
}

int ws_archive_listing_parse(const char *text, size_t n, const char *path, struct ws_archive_listing *out,
                             struct ws_error *err)
{
    *out = (struct ws_archive_listing){0};
    json_t *listing = ws_archive_json(text, n);
    ws_listing_join(listing);
    int rc = parse(out, listing, path, err);
    json_decref(listing);
    if (rc < 0)
        ws_archive_listing_free(out);
    return rc;
}

void ws_archive_listing_free(struct ws_archive_listing *l)
{
    for (size_t i = 0; i < l->models.len; i++)
        ws_archive_entries_reset(&l->models.ptr[i].entries);
    ws_archive_models_reset(&l->models);
    *l = (struct ws_archive_listing){0};
}

/* --- writing --- */

static json_t *entry_json(const struct ws_archive_entry *e)
{
    json_t *out = json_pack("{s:I,s:s,s:s,s:I,s:I,s:b}", "version", (json_int_t)e->id.version, "run",
                            e->id.lineage, "digest", e->digest, "bytes", (json_int_t)e->bytes, "created_ns",
                            (json_int_t)e->created_ns, "anchor", (int)ws_archive_entry_is_anchor(e));
    if (out && !ws_archive_entry_is_anchor(e)) {
        json_object_set_new(out, "base", json_integer((json_int_t)e->base.version));
        json_object_set_new(out, "base_run", json_string(e->base.lineage));
    }
    return out;
}

/* The lineage of what was committed last is the live one. */
static json_t *model_json(const struct ws_archive_model *m)
{
    const struct ws_archive_entry *newest = NULL;
    json_t *versions = json_array();
    for (size_t i = 0; i < m->entries.len; i++) {
        const struct ws_archive_entry *e = &m->entries.ptr[i];
        json_array_append_new(versions, entry_json(e));
        if (strcmp(e->id.lineage, m->entries.ptr[m->entries.len - 1].id.lineage) == 0 &&
            (!newest || e->id.version > newest->id.version))
            newest = e;
    }
    return json_pack("{s:s,s:I,s:s,s:s,s:o}", "name", m->name, "newest",
                     newest ? (json_int_t)newest->id.version : (json_int_t)0, "run",
                     newest ? newest->id.lineage : "", "digest", newest ? newest->digest : "", "versions",
                     versions);
}

json_t *ws_archive_listing_json(const struct ws_archive_listing *l, const char *model)
{
    json_t *models = json_array();
    for (size_t i = 0; i < l->models.len; i++)
        if (l->models.ptr[i].entries.len > 0 && (!model || strcmp(model, l->models.ptr[i].name) == 0))
            json_array_append_new(models, model_json(&l->models.ptr[i]));
    json_t *out = json_pack("{s:I,s:b,s:o}", "seq", (json_int_t)l->seq, "static", 1, "models", models);
    ws_listing_split(out);
    return out;
}

/* --- finding and changing --- */

struct ws_archive_model *ws_archive_listing_find_model(const struct ws_archive_listing *l, const char *name)
{
    for (size_t i = 0; i < l->models.len; i++)
        if (strcmp(l->models.ptr[i].name, name) == 0)
            return &l->models.ptr[i];
    return NULL;
}

struct ws_archive_entry *ws_archive_listing_find(const struct ws_archive_listing *l, const char *model,
                                                 uint64_t version, const char *lineage)
{
    const struct ws_archive_model *m = ws_archive_listing_find_model(l, model);
    for (size_t i = 0; m && i < m->entries.len; i++)
        if (m->entries.ptr[i].id.version == version &&
            (!lineage || !*lineage || strcmp(m->entries.ptr[i].id.lineage, lineage) == 0))
            return &m->entries.ptr[i];
    return NULL;
}

static int add_model(struct ws_archive_listing *l, const char *name, struct ws_archive_model **out)
{
    struct ws_archive_model model = {0};
    size_t at = l->models.len;
    snprintf(model.name, sizeof(model.name), "%s", name);
    while (at > 0 && strcmp(l->models.ptr[at - 1].name, name) > 0)
        at--;
    int rc = l->models.len < WS_MAX_MODELS ? ws_archive_models_insert(&l->models, model, at) : -E2BIG;
    *out = rc == 0 ? &l->models.ptr[at] : NULL;
    return rc;
}

int ws_archive_listing_add(struct ws_archive_listing *l, const char *model, const struct ws_archive_entry *e,
                           struct ws_error *err)
{
    struct ws_archive_model *m = ws_archive_listing_find_model(l, model);
    int rc = m ? 0 : add_model(l, model, &m);
    if (rc == 0 && m->entries.len >= WS_MAX_VERSIONS)
        rc = -E2BIG;
    if (rc == 0) {
        size_t at = m->entries.len;
        while (at > 0 && m->entries.ptr[at - 1].created_ns > e->created_ns)
            at--;
        rc = ws_archive_entries_insert(&m->entries, *e, at);
    }
    if (rc == -E2BIG)
        return ws_error_set(err, E2BIG, "an archive has at most %d models with %d versions each",
                            WS_MAX_MODELS, WS_MAX_VERSIONS);
    return rc < 0 ? ws_error_set(err, -rc, "no memory for a listing") : 0;
}

void ws_archive_listing_remove(struct ws_archive_model *m, size_t i)
{
    ws_archive_entries_remove(&m->entries, i);
}
