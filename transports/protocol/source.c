/* The wrappers around struct ws_transport_ops: arguments and results are checked here, once. */
#include "transports/protocol/source.h"
#include "transports/protocol/listing.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ws_source_open_by(const struct ws_transport_ops *ops, const char *url,
                      const struct ws_source_options *options, struct ws_source **out, struct ws_error *err)
{
    static const struct ws_source_options defaults;
    assert(ops && url && out && strlen(url) <= WS_MAX_URL);
    *out = NULL;
    int rc = ops->open(url, options ? options : &defaults, out, err);
    assert(rc <= 0 && (rc < 0 || (*out && (*out)->ops == ops && (*out)->url)));
    if (rc == 0 && options && options->mount_id && !((*out)->mount_id = strdup(options->mount_id))) {
        ws_source_close(*out);
        *out = NULL;
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    return rc;
}

void ws_source_close(struct ws_source *s)
{
    if (!s)
        return;
    char *mount_id = s->mount_id;
    s->ops->close(s);
    free(mount_id);
}

const char *ws_source_transport(const struct ws_source *s)
{
    return s->ops->name;
}

int ws_source_models(struct ws_source *s, const char *model, uint64_t since, unsigned timeout_ms,
                     const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    *out = NULL;
    int rc = s->ops->models(s, model, since, timeout_ms, cancel, out, err);
    assert(rc <= 0 && (rc < 0) == (*out == NULL));
    if (rc == 0)
        ws_listing_join(*out);
    return rc;
}

int ws_source_manifest(struct ws_source *s, const char *model, uint64_t version, const char *lineage,
                       const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    *out = NULL;
    int rc = s->ops->manifest(s, model, version, lineage, cancel, out, err);
    if (rc == 0 && (strcmp((*out)->model, model) != 0 || (*out)->version != version ||
                    (lineage && *lineage && strcmp((*out)->lineage, lineage) != 0))) {
        rc = ws_error_set(err, EPROTO, "%s was asked for %s/%llu and sent the manifest of %s/%llu run %s",
                          s->url, model, (unsigned long long)version, (*out)->model,
                          (unsigned long long)(*out)->version, (*out)->lineage);
        ws_manifest_free(*out);
        *out = NULL;
    }
    assert(rc <= 0);
    return rc;
}

int ws_source_map(struct ws_source *s, const struct ws_manifest *m, struct ws_region **regions,
                  struct ws_error *err)
{
    if (!s->ops->map)
        return ws_error_set(err, ENOTSUP, "%s cannot hand over memory: only unix: sources can", s->url);
    return s->ops->map(s, m, regions, err);
}

void ws_source_unmap(struct ws_source *s, const char *model, uint64_t version, const char *lineage)
{
    if (s->ops->unmap)
        s->ops->unmap(s, model, version, lineage);
}

int ws_lane_open(struct ws_source *s, struct ws_lane **out, struct ws_error *err)
{
    *out = NULL;
    int rc = s->ops->lane_open(s, out, err);
    assert(rc <= 0 && (rc < 0 || (*out)->source == s));
    return rc;
}

void ws_lane_close(struct ws_lane *l)
{
    if (l)
        l->source->ops->lane_close(l);
}

int ws_lane_fetch(struct ws_lane *l, const struct ws_fetch *f, struct ws_error *err)
{
    assert(f->manifest && f->file < f->manifest->n_files && f->dst && f->block && f->n > 0);
    assert(f->first + f->n <= f->manifest->files[f->file].n_blocks);
    int rc = l->source->ops->fetch(l, f, err);
    assert(rc <= 0);
    return rc;
}

int ws_source_deltas(struct ws_source *s, const char *model, const struct ws_version_id *version,
                     const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES], size_t *n,
                     struct ws_error *err)
{
    *n = 0;
    int rc = s->ops->deltas ? s->ops->deltas(s, model, version, cancel, out, n, err) : 0;
    assert(rc <= 0 && *n <= WS_MAX_DELTA_ENTRIES);
    return rc;
}

int ws_lane_delta(struct ws_lane *l, const struct ws_delta_fetch *f, struct ws_error *err)
{
    assert(f->model && f->sink.record && f->part < f->parts);
    if (!l->source->ops->delta)
        return ws_error_set(err, ENOENT, "%s has no deltas", l->source->url);
    int rc = l->source->ops->delta(l, f, err);
    assert(rc <= 0);
    return rc;
}

int ws_source_call(struct ws_source *s, const char *method, const char *path, const json_t *body,
                   json_t **reply, struct ws_error *err)
{
    *reply = NULL;
    if (!s->ops->call)
        return ws_error_set(err, ENOTSUP, "%s is no agent: it answers no %s", s->url, path);
    int rc = s->ops->call(s, method, path, body, reply, err);
    assert(rc <= 0 && (rc < 0) == (*reply == NULL));
    return rc;
}

bool ws_source_is_away(int rc)
{
    return rc == -EHOSTUNREACH || rc == -ETIMEDOUT || rc == -ECONNRESET || rc == -ECONNREFUSED ||
           rc == -EPIPE;
}
